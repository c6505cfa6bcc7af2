-- Pauses a queue.
-- KEYS    hash of paused queues
-- ARGV    ns/queue, maximum number of paused queues in a namespace, duration in us (none = until it is resumed)
-- returns {now, end in ms (0 = until it is resumed, -1 = too many are paused, and nothing has changed), the version
--         before, the version after}
-- bound   three fields
local ends = ARGV[3] and math.ceil((now + ARGV[3]) / 1000) or 0
local before = tonumber(call('HGET', KEYS[1], '')) or 0
if call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  -- The field of a namespace, without a queue, counts its paused queues.
  local namespace = string.match(ARGV[1], '^[^/]*/')
  if (tonumber(call('HGET', KEYS[1], namespace)) or 0) >= tonumber(ARGV[2]) then return {now, -1, before, before} end
  call('HINCRBY', KEYS[1], namespace, 1)
end
-- The field without a name is the version.
local version = math.max(now, before + 1)
call('HSET', KEYS[1], ARGV[1], string.format('%.0f', ends), '', string.format('%.0f', version))
return {now, ends, before, version}
