-- Stands behind lua/clock.lua before every script of the compact layout, whose keys and bytes docs/redis.md draws. The one
-- key that such a script declares is the partition's guard, which nobody ever writes: while the partition's slot moves to
-- another node, the server refuses the call before it begins. All other keys of the partition begin as the guard does.
-- A job is found by its place, three bytes of its bucket and then its tail, and by the number of its queue. Further
-- preambles stand between this one and a script that needs them: each function costs every call a tenth of a microsecond.
local base, now_ms = string.sub(KEYS[1], 1, -2), math.floor(now / 1000)
local sub, byte, char, pack, unpack_of, floor = string.sub, string.byte, string.char, struct.pack, struct.unpack, math.floor
local WAITING, RUNNING, DEAD = 0, 1, 2
local timers, far, ends = base .. 't', base .. 'f', base .. 'e'
