-- Stores a record of the settings with an expiry, replacing any other.
-- KEYS    records | sorted set of their keys
-- ARGV    key, ms until it expires, value
-- returns 1
-- bound   one record
-- A full Redis accepts a delete as the first write, and then the rest.
call('HDEL', KEYS[1], ARGV[1])
call('HSET', KEYS[1], ARGV[1], string.format('%.0f %.0f ', time[1] * 1000000 + time[2], now + ARGV[2]) .. ARGV[3])
call('ZADD', KEYS[2], 0, ARGV[1])
return 1
