-- Moves due jobs, earliest first: those with tries left become ready, those without become dead. Before that the buckets
-- that are near now get timers; after it, if asked, jobs that have ended go, and queues that are empty for long. One
-- server pumps a partition: it takes a lease with the call, and renews it. A call of another one does nothing, unless
-- that server has stored what is due now: who holds the lease may not know of it yet.
-- KEYS    the partition's guard
-- ARGV    how many timers at most; 1 = look for jobs that have ended, 2 = for empty queues too; ms after which an empty
--         queue is forgotten; the server, 1 = it has stored what is due now
-- returns {now, how many left the timers, us until the next is due (-1 = none, 0 = now), {per queue that got ready jobs:
--         its name, since when in us the first of them is ready}, jobs that have ended, their bytes, queues that were
--         forgotten, per namespace of those: name, jobs, bytes, queues, {per queue with some: its name, jobs whose
--         hand-over has ended and that are ready again, jobs that died}, for how many us another server still has the
--         lease (0 = it is this server's), how many queues were spread that are at home here, {parts of publishes that
--         wait for too long}, 1 = more jobs have ended}
-- bound   200 timers (the caller's), 4 buckets that are near and 2 with ended jobs (of 128 jobs), 512 queues
local most, sweeps, empty_for = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local LEASE, RENEW = 1250000, 1100000
-- From when on a bucket is near, in ms. Moved a second at a time: each move is a write.
local meta, buckets, find, remove, die = base .. 'm', 4, nil, nil, nil
local figures, held = call('HMGET', meta, 'l', 'S', 'h'), 0
local lease, spread_here, horizon = figures[1], tonumber(figures[2] or 0), tonumber(figures[3] or 0)
if lease then
  local left = unpack_of('>I7', lease) - now
  -- One that ends later is of a clock that was set back.
  if left <= 0 or left > LEASE then lease = nil
  elseif sub(lease, 8) ~= ARGV[4] then held = left
  elseif left < RENEW then lease = nil end
end
if held > 0 and ARGV[5] ~= '1' then return {now, 0, -1, {}, 0, 0, 0, {}, {}, held, spread_here, {}, 0} end
local target = math.max(horizon, now_ms + 3000 >= horizon and now_ms + 4000 or 0)
local first = call('ZRANGE', far, 0, 0, 'WITHSCORES')
-- A full Redis refuses a script's first write if that needs memory, and this one needs none: the pool can be drained.
if not lease or sweeps > 0 or target > horizon or first[1] and tonumber(first[2]) < target then call('ZREM', far, '') end
if not lease then call('HSET', meta, 'l', pack('>I7', now + LEASE) .. ARGV[4]) end
while first[1] and tonumber(first[2]) < target and buckets > 0 do
  local bucket, from, set, end_of = first[1], first[2] * 1000, {}, nil
  local all = call('HGETALL', base .. 'b' .. bucket)
  for i = 1, #all, 2 do
    local job = read(all[i + 1])
    if job.state == WAITING and job.due >= from then
      set[#set + 1] = job.due
      set[#set + 1] = (job.seq and 's' .. pack('>I4', job.seq) or 'd') .. bucket .. all[i]
    end
    if job.ends then end_of = math.min(end_of or job.ends, job.ends) end
  end
  if end_of then call('ZADD', ends, 'LT', end_of, bucket) end
  if #set > 0 then call('ZADD', timers, unpack(set)) end
  call('ZREM', far, bucket)
  buckets = buckets - 1
  first = call('ZRANGE', far, 0, 0, 'WITHSCORES')
end
if target > horizon and not (first[1] and tonumber(first[2]) < target) then
  call('HSET', meta, 'h', target)
end
-- Nothing is moved that is due later than what has no timer yet.
local until_then = now
if first[1] then until_then = math.min(now, first[2] * 1000 - 1) end
local due = call('ZRANGEBYSCORE', timers, '-inf', until_then, 'WITHSCORES', 'LIMIT', 0, most)
local moved, lists, order, ready_now, told, order_told = #due / 2, {}, {}, {}, {}, {}
-- One more of a queue has come again, or died.
local function tell(name, n)
  local of = told[name]
  if not of then
    of = {0, 0}
    told[name], order_told[#order_told + 1] = of, name
  end
  of[n] = of[n] + 1
end
if moved > 0 then
  call('ZREMRANGEBYRANK', timers, 0, moved - 1)
  for i = 1, #due, 2 do
    local member, time = due[i], tonumber(due[i + 1])
    local kind = sub(member, 1, 1)
    local place, number = split(member, kind == 's' and 6 or 2)
    local name = name_of(number)
    local q = name and queue_of(name)
    if q then
      local ready = kind ~= 'r'
      if ready then
        q.delayed = q.delayed - 1
      else
        q.running = q.running - 1
        if not find then find, remove, die = jobs() end
        local job = find(q, place)
        if job then
          ready = job.tries > 0
          if not ready then die(job, time) end
          tell(name, ready and 1 or 2)
        end
      end
      q.changed = true
      if ready then
        local list = lists[name]
        if not list then
          list = {}
          lists[name], order[#order + 1] = list, name
        end
        list[#list + 1] = pack('>I7', time) .. place
      end
    end
  end
  for _, name in ipairs(order) do
    call('RPUSH', base .. 'r' .. name, unpack(lists[name]))
    ready_now[#ready_now + 1], ready_now[#ready_now + 2] = name, unpack_of('>I7', lists[name][1])
  end
end

local gone, by_namespace, more = {0, 0, 0}, {}, 0
local function count(name, n, by)
  local namespace = string.match(name, '^(.-)/')
  local of = by_namespace[namespace] or {0, 0, 0}
  by_namespace[namespace] = of
  of[n], gone[n] = of[n] + by, gone[n] + by
end
if sweeps > 0 then
  local over = call('ZRANGEBYSCORE', ends, '-inf', now_ms, 'LIMIT', 0, 3)
  if over[3] then more, over[3] = 1, nil end
  for _, bucket in ipairs(over) do
    local all, next_end = call('HGETALL', base .. 'b' .. bucket), nil
    for i = 1, #all, 2 do
      local job = read(all[i + 1])
      if job.ends then
        if job.ends <= now_ms then
          if not find then find, remove, die = jobs() end
          local place, number = split(bucket .. all[i], 1)
          local name = name_of(number)
          job.place, job.q = place, name and queue_of(name)
          if job.q then
            remove(job)
            count(name, 1, 1)
            count(name, 2, job.size)
          else
            call('HDEL', base .. 'b' .. bucket, all[i])
          end
        else
          next_end = math.min(next_end or job.ends, job.ends)
        end
      end
    end
    -- A bucket is looked at again after ten seconds at the earliest.
    if next_end then call('ZADD', ends, math.max(next_end, now_ms + 10000), bucket) else call('ZREM', ends, bucket) end
  end
end
if sweeps > 1 then
  -- Some queues, in turn: all of them in five minutes, if they are not too many.
  local last, turn = tonumber(call('HGET', meta, 'q') or 0), tonumber(call('HGET', meta, 'w') or 0)
  local shards = floor(last / 64) + 1
  for _ = 1, math.min(8, math.ceil(shards / 150)) do
    local shard = base .. 'n' .. turn
    local all = call('HGETALL', shard)
    for i = 1, #all, 2 do
      local name = all[i + 1]
      local q = queue_of(name)
      if q.jobs > 0 or q.changed or q.pause == 1 or q.pause > now_ms or q.spread and q.spread ~= PART then
        if q.empty > 0 then q.empty, q.changed = 0, true end
      elseif q.empty == 0 then
        q.empty, q.changed = now_ms, true
      elseif now_ms - q.empty >= empty_for then
        call('DEL', q.key, base .. 'r' .. name, base .. 'd' .. name)
        call('HDEL', shard, all[i])
        -- Its number is the next new queue's.
        call('RPUSH', base .. 'u', q.n)
        local _, remove_name = pieces()
        remove_name(name)
        if not q.spread then count(name, 3, 1) end
      end
    end
    turn = turn + 1 < shards and turn + 1 or 0
  end
  if shards > 1 then call('HSET', meta, 'w', turn) end
end
save()
local next_due = -1
if first[1] then next_due = math.max(first[2] * 1000 - 3000000 - now, 0) end
local head = call('ZRANGE', timers, 0, 0, 'WITHSCORES')
if head[2] then
  local left = math.max(tonumber(head[2]) - now, 0)
  if next_due < 0 or left < next_due then next_due = left end
end
-- Parts of publishes that nobody has shown or dropped for too long.
local staged = sweeps > 0 and call('ZRANGEBYSCORE', base .. 'W', '-inf', now_ms, 'LIMIT', 0, 16) or {}
local freed = {}
for namespace, of in pairs(by_namespace) do
  freed[#freed + 1] = namespace
  for n = 1, 3 do freed[#freed + 1] = of[n] end
end
local ended = {}
for _, name in ipairs(order_told) do
  local k = #ended
  ended[k + 1], ended[k + 2], ended[k + 3] = name, told[name][1], told[name][2]
end
return {now, moved, math.min(next_due, 1000000000), ready_now, gone[1], gone[2], gone[3], freed, ended, held, spread_here, staged, more}
