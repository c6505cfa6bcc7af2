-- Ends pauses. An expired pause does not change the version: every server knows its end.
-- KEYS    hash of paused queues
-- ARGV    1 = only expired pauses, queues as ns/queue
-- returns {now, the version before, the version after (0 = nothing is paused), {per queue: 1 = it is not paused now}}
-- bound   the caller's queues, three fields each
local only_if_over = ARGV[1] == '1'
local before = tonumber(call('HGET', KEYS[1], '')) or 0
local version, over = before, {}
for i = 2, #ARGV do
  local ends = tonumber(call('HGET', KEYS[1], ARGV[i]))
  over[i - 1] = 1
  if ends and only_if_over and (ends == 0 or ends * 1000 > now) then
    over[i - 1] = 0
  elseif ends then
    local namespace = string.match(ARGV[i], '^[^/]*/')
    call('HDEL', KEYS[1], ARGV[i])
    if call('HINCRBY', KEYS[1], namespace, -1) <= 0 then call('HDEL', KEYS[1], namespace) end
    if not only_if_over then version = math.max(now, before + 1) end
  end
end
if call('HLEN', KEYS[1]) <= 1 then
  call('DEL', KEYS[1])
  version = 0
elseif version > before then
  call('HSET', KEYS[1], '', string.format('%.0f', version))
end
return {now, before, version, over}
