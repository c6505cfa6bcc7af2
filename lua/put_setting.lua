-- Puts or deletes a record of the settings, if it is the one that the caller expects.
-- KEYS    records | sorted set of their keys | stream of changes
-- ARGV    key, version that is expected ('' = there is none), how many changes are kept, 1 = puts or 0 = deletes, value
-- returns {1, version, ''}; {0, version of what is there ('' = nothing), its value}, and nothing has changed
-- bound   one record
local version, value = read(ARGV[1])
if (version or '') ~= ARGV[2] then return {0, version or '', value or ''} end
local new = new_version()
-- Deletes first: a Redis without memory takes what frees some, and then the rest of this script.
if ARGV[4] == '0' then
  call('HDEL', KEYS[1], ARGV[1])
  call('ZREM', KEYS[2], ARGV[1])
else
  call('HSET', KEYS[1], ARGV[1], new .. ' 0 ' .. ARGV[5])
  call('ZADD', KEYS[2], 0, ARGV[1])
end
call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], new .. '-0', 'key', ARGV[1])
call('HSET', KEYS[1], '', new)
return {1, new, ''}
