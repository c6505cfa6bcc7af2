-- Returns the settings that have changed since a version.
-- KEYS    records | stream of changes
-- ARGV    version, maximum number of changes
-- returns {version reached, 1 = any may have changed, key and version of each change}
-- bound   1000 changes (the caller's)
local version = call('HGET', KEYS[1], '') or '0'
if version == ARGV[1] then return {version, 0} end
local log = call('XRANGE', KEYS[2], ARGV[1] .. '-0', '+', 'COUNT', ARGV[2] + 1)
-- That change was trimmed, or lost by a failover, and others may be missing too.
if not log[1] or log[1][1] ~= ARGV[1] .. '-0' then return {version, 1} end
local answer = {ARGV[1], 0}
for i = 2, #log do
  answer[1] = string.match(log[i][1], '^%d+')
  answer[#answer + 1] = log[i][2][2]
  answer[#answer + 1] = answer[1]
end
return answer
