-- Spreads queues over all partitions, for good.
-- This is the queue's home: whoever asks it is told from now on.
local function spread(q, since)
  q.spread, q.window, q.taken, q.changed = since, 0, 0, true
  call('HSET', base .. 'S', q.name, since)
  call('HINCRBY', base .. 'm', 'S', 1)
end

-- Whether home is too small for what was stored of a queue, as its caller has said. Ten seconds begin with their first job,
-- so that a burst is not cut in two.
local function outgrows(q)
  if q.mode == 0 or q.mode > 4294967293 or q.spread then return false end
  local second, began = floor(now_ms / 1000), q.window or 0
  if second < began or second >= began + 10 then q.window, q.taken = second, 0 end
  q.taken = q.taken + q.stored
  return q.jobs >= q.mode or q.taken >= q.mode
end
