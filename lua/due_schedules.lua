-- Reads the schedules that are due, the earliest first. Forgets when those are due that are not there any more.
-- KEYS    sorted set of schedules by when they are due, hash of figures
-- ARGV    what the keys of their hashes begin with, how many at most, where a scan of all goes on ('' = only those that are due),
--         after how many bytes of bodies the answer ends, within how many ms they have become due ('' = since ever)
-- returns {now, when the next one is due in ms ('' = there is none), how many are in each of five states, name and count
--         of each kind of placer, where the scan goes on ('0' = it has ended, '' = there was none), per schedule its row as
--         lua/list_schedules.lua has it}
-- bound   256 schedules, or what a step of ZSCAN has, and the bytes that were asked for beyond which the next one goes (the caller's)
return due_of(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
