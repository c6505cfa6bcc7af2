-- Reads the schedules of this partition that are due, as lua/due_schedules.lua does.
-- KEYS    the partition's guard
-- ARGV    how many at most, where a scan of all goes on ('' = only those that are due), after how many bytes of bodies the
--         answer ends, within how many ms they have become due ('' = since ever)
-- returns as lua/due_schedules.lua
-- bound   256 schedules, and the bytes that were asked for beyond which the next one goes (the caller's)
return due_of(base .. 'w', base .. 'v', base .. 's', ARGV[1], ARGV[2], ARGV[3], ARGV[4])
