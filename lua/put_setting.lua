-- Stores or deletes a record of the settings, if its version is the expected one.
-- KEYS    records | sorted set of their keys | stream of changes
-- ARGV    key, expected version ('' = no record), number of changes to keep, 1 = store or 0 = delete, value
-- returns {1, version, ''}; {0, current version ('' = no record), its value}, and nothing has changed
-- bound   one record
local version, value = read(ARGV[1])
if (version or '') ~= ARGV[2] then return {0, version or '', value or ''} end
local new = new_version()
-- Deletes first: a full Redis accepts a write that frees memory, and then the rest of this script. It refuses only new
-- records.
if version then call('HDEL', KEYS[1], ARGV[1]) end
if ARGV[4] == '0' then
  call('ZREM', KEYS[2], ARGV[1])
else
  call('HSET', KEYS[1], ARGV[1], new .. ' 0 ' .. ARGV[5])
  call('ZADD', KEYS[2], 0, ARGV[1])
end
call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], new .. '-0', 'key', ARGV[1])
call('HSET', KEYS[1], '', new)
return {1, new, ''}
