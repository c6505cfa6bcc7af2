-- Puts a record of the settings that ends by itself, whatever is there.
-- KEYS    records | sorted set of their keys
-- ARGV    key, ms after which it ends, value
-- returns 1
-- bound   one record
-- First, since a full Redis refuses other first writes.
call('HDEL', KEYS[1], ARGV[1])
call('HSET', KEYS[1], ARGV[1], string.format('%.0f %.0f ', time[1] * 1000000 + time[2], now + ARGV[2]) .. ARGV[3])
call('ZADD', KEYS[2], 0, ARGV[1])
return 1
