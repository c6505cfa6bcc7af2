-- Reads due schedules, earliest first, or one step of a scan over all. Removes members whose schedule no longer exists.
-- KEYS    sorted set of schedules by due time, hash of statistics
-- ARGV    prefix of the keys of their hashes, maximum number, cursor of a scan of all ('' = only due ones), bytes of
--         bodies after which the reply ends, only those that became due within this many ms ('' = any)
-- returns {now, next due time in ms ('' = none), number of schedules in each of five states, name and count of each
--         kind of placer, cursor to continue the scan ('0' = finished, '' = no scan), per schedule its row as in
--         lua/list_schedules.lua}
-- bound   256 schedules or one step of ZSCAN, and the requested bytes plus one body (the caller's)
return due_of(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
