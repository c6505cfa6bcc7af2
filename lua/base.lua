-- Stands behind lua/clock.lua in every script of a pool's jobs. `base` is what every key of the partition begins with: the
-- argument before the deadline. It is empty on a single Redis. In a cluster the last key is the partition's guard, which
-- nobody ever writes: a node that migrates the slot rejects the whole call before it starts, where a script could
-- otherwise stop half-way. The script sees neither of them.
local base = table.remove(ARGV)
if base ~= '' then table.remove(KEYS) end
