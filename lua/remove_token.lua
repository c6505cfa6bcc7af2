-- Deletes a token and its limit.
-- KEYS    tokens of its namespace | limits
-- ARGV    the token, the limit's field
-- returns number of tokens deleted
-- bound   two fields
redis.call('HDEL', KEYS[2], ARGV[2])
return redis.call('HDEL', KEYS[1], ARGV[1])
