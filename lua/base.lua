-- Follows lua/clock.lua in every script of a pool's jobs. `base` is the prefix of every key of the partition: the
-- argument before the deadline, empty on a single Redis. In a cluster the last key is the partition's guard, which is
-- never written: a node that migrates the slot rejects the whole call before it starts, whereas the script could
-- otherwise stop half-way. The script sees neither of them.
local base = table.remove(ARGV)
if base ~= '' then table.remove(KEYS) end
