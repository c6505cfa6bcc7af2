-- Looks up a token.
-- KEYS    tokens of its namespace | limits
-- ARGV    the token, the limit's field
-- returns whether it exists (0 or 1), and its limit as stored, or nil
-- bound   two fields
return {redis.call('HEXISTS', KEYS[1], ARGV[1]), redis.call('HGET', KEYS[2], ARGV[2])}
