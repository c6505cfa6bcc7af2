-- Counts some of the keys, for one server at a time.
-- KEYS    the hash of lua/quotas.lua | the server that counts
-- ARGV    the server, ms for its turn, cursor (0 takes the turn, if it is free), approximate number of keys to scan,
--         names of namespaces
-- returns {}: another server's turn; or {cursor, per namespace: jobs and bytes found, jobs and bytes as recorded now}
-- bound   about the caller's number of keys
local turn = call('GET', KEYS[2])
if turn ~= ARGV[1] and (turn or ARGV[3] ~= '0') then return {} end
-- A full Redis refuses SET as the first write.
call('DEL', KEYS[2])
call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
local part, found = call('SCAN', ARGV[3], 'MATCH', job_base .. '*', 'COUNT', ARGV[4]), {}
for arg = 5, #ARGV do found[ARGV[arg]] = {0, 0} end
for _, key in ipairs(part[2]) do
  local of = found[string.match(string.sub(key, #job_base + 1), '^([^/]*)/')]
  local size = of and redis.pcall('STRLEN', key)
  if type(size) == 'number' then of[1], of[2] = of[1] + 1, of[2] + size end
end
local answer = {part[1]}
for arg = 5, #ARGV do
  local name, of = ARGV[arg], found[ARGV[arg]]
  local now = call('HMGET', KEYS[1], name .. '/jobs', name .. '/bytes')
  for _, number in ipairs({of[1], of[2], tonumber(now[1]) or 0, tonumber(now[2]) or 0}) do answer[#answer + 1] = number end
end
return answer
