-- Counts some of the keys, for one server at a time.
-- KEYS    the hash of lua/quotas.lua | the server that counts | sorted set of buckets
-- ARGV    the server, ms for its turn, cursor (0 takes the turn, if it is free), approximate number of keys to scan,
--         names of namespaces
-- returns {}: another server's turn; or {cursor, per namespace: jobs and bytes found, jobs and bytes as recorded now}
-- bound   about the caller's number of keys
local turn = call('GET', KEYS[2])
if turn ~= ARGV[1] and (turn or ARGV[3] ~= '0') then return {} end
-- A full Redis refuses SET as the first write.
call('DEL', KEYS[2])
call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
-- A bucket of packed jobs takes as long as sixty keys.
local buckets = call('EXISTS', KEYS[3]) == 1
local pattern, count = buckets and base .. '[jd]*' or job_base .. '*', buckets and math.ceil(ARGV[4] / 10) or ARGV[4]
local part, found = call('SCAN', ARGV[3], 'MATCH', pattern, 'COUNT', count), {}
for arg = 5, #ARGV do found[ARGV[arg]] = {0, 0} end
for _, key in ipairs(part[2]) do
  local is_job = string.sub(key, 1, #job_base) == job_base
  local is_bucket = not is_job and string.sub(key, 1, #packed_base) == packed_base
  local rest = string.sub(key, 1 + #(is_job and job_base or packed_base))
  local of = (is_job or is_bucket) and found[string.match(rest, '^([^/]*)/')]
  if of and is_job then
    local size = redis.pcall('STRLEN', key)
    if type(size) == 'number' then of[1], of[2] = of[1] + 1, of[2] + size end
  elseif of then
    for _, value in ipairs(redis.pcall('HVALS', key)) do of[1], of[2] = of[1] + 1, of[2] + #value - 12 end
  end
end
local answer = {part[1]}
for arg = 5, #ARGV do
  local name, of = ARGV[arg], found[ARGV[arg]]
  local now = call('HMGET', KEYS[1], name .. '/jobs', name .. '/bytes')
  for _, number in ipairs({of[1], of[2], tonumber(now[1]) or 0, tonumber(now[2]) or 0}) do
    answer[#answer + 1] = number
  end
end
return answer
