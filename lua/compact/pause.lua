-- Pauses a queue in this partition, or ends its pause. One partition, which the namespace decides, is asked first and says
-- how many may be paused and until when.
-- KEYS    the partition's guard
-- ARGV    name of the queue, until when in ms (0 = until it is resumed, -1 = resumed), for how many us from now on in its
--         place ('' = as told), the most paused queues of a namespace ('' = another one has decided)
-- returns {now, until when in ms, or -2: too many are paused}
-- bound   1000 pauses of the namespace
local namespace, short = string.match(ARGV[1], '^(.-)/(.*)$')
local of, till = base .. 'p' .. namespace, tonumber(ARGV[2])
-- What stands in the record of a queue.
local function pause(name, pause)
  local q = queue_of(namespace .. '/' .. name)
  q.pause, q.changed = pause, true
  -- Nothing else is known of a queue that was paused and never used.
  if pause == 0 and q.n == 0 and not q.spread then
    call('DEL', q.key)
    q.changed = false
  end
end
if ARGV[3] ~= '' then till = math.ceil((now + ARGV[3]) / 1000) end
if till < 0 then
  call('HDEL', of, short)
  if call('EXISTS', of) == 0 then call('SREM', base .. 'a', namespace) end
  pause(short, 0)
  save()
  return {now, till}
end
if ARGV[4] ~= '' and call('HLEN', of) >= tonumber(ARGV[4]) and call('HEXISTS', of, short) == 0 then
  local all, left = call('HGETALL', of), 0
  for i = 1, #all, 2 do
    local ends_at = tonumber(all[i + 1])
    if ends_at > 0 and ends_at <= now_ms then
      call('HDEL', of, all[i])
      pause(all[i], 0)
    else
      left = left + 1
    end
  end
  if left >= tonumber(ARGV[4]) then
    save()
    return {now, -2}
  end
end
call('HSET', of, short, till)
call('SADD', base .. 'a', namespace)
pause(short, till == 0 and 1 or till)
save()
return {now, till}
