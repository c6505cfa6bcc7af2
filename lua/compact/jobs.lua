-- Stands behind lua/clock.lua before every script of the compact layout, whose keys and bytes docs/redis.md draws. The one
-- key that such a script declares is the partition's guard, which nobody ever writes: while the partition's slot moves to
-- another node, the server refuses the call before it begins. All other keys of the partition begin as the guard does.
-- A job is found by its place, three bytes of its bucket and then its tail, and by the number of its queue. `queue_of`
-- reads the record of a queue once; who changes it sets `changed`, and `save` writes it at the end of the script.
local base, now_ms = string.sub(KEYS[1], 1, -2), math.floor(now / 1000)
local sub, byte, char, pack, unpack_of, floor = string.sub, string.byte, string.char, struct.pack, struct.unpack, math.floor
local WAITING, RUNNING, DEAD = 0, 1, 2
local timers, far, ends = base .. 't', base .. 'f', base .. 'e'
local queues, loaded = {}, {}

-- The names of a namespace's queues stand in pieces of up to 120, each under the name that it begins at; where there are
-- several, those names stand in a directory. A Redis keeps such a piece in a tenth of the memory of a large sorted set.
local function piece_of(namespace, name)
  local from = call('ZREVRANGEBYLEX', base .. 'i' .. namespace, '[' .. name, '-', 'LIMIT', 0, 1)[1] or ''
  return base .. 'j' .. namespace .. '/' .. from, from
end

local function add_name(of)
  local namespace, name = string.match(of, '^(.-)/(.*)$')
  local piece = piece_of(namespace, name)
  call('ZADD', piece, 0, name)
  if call('ZCARD', piece) > 120 then
    local upper = call('ZRANGE', piece, 60, -1)
    local other, with_scores = base .. 'j' .. namespace .. '/' .. upper[1], {}
    for i, moved in ipairs(upper) do with_scores[2 * i - 1], with_scores[2 * i] = 0, moved end
    call('ZADD', other, unpack(with_scores))
    call('ZREMRANGEBYRANK', piece, 60, -1)
    call('ZADD', base .. 'i' .. namespace, 0, upper[1])
  end
end

local function remove_name(of)
  local namespace, name = string.match(of, '^(.-)/(.*)$')
  local piece, from = piece_of(namespace, name)
  call('ZREM', piece, name)
  if from ~= '' and call('EXISTS', piece) == 0 then call('ZREM', base .. 'i' .. namespace, from) end
end

-- Up to so many names behind this one ('' = the first).
local function names_behind(namespace, after, most)
  local piece, from = piece_of(namespace, after)
  local found = {}
  while true do
    local some = call('ZRANGEBYLEX', piece, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, most - #found)
    for _, name in ipairs(some) do found[#found + 1] = name end
    from = #found < most and call('ZRANGEBYLEX', base .. 'i' .. namespace, '(' .. from, '+', 'LIMIT', 0, 1)[1]
    if not from then return found end
    piece = base .. 'j' .. namespace .. '/' .. from
  end
end

-- A number in as few bytes as it needs.
local function bytes_of(n)
  if n < 256 then return char(n) end
  return pack(n < 65536 and '>H' or n < 16777216 and '>I3' or '>I4', n)
end

local function queue_of(name)
  local q = queues[name]
  if not q then
    q = {name = name, key = base .. 'q' .. name}
    local of = call('HMGET', q.key, 'n', 'j', 'd', 'u', 'x', 'b', 'p')
    q.jobs, q.delayed, q.running = tonumber(of[2] or 0), tonumber(of[3] or 0), tonumber(of[4] or 0)
    q.dead, q.bytes, q.pause = tonumber(of[5] or 0), tonumber(of[6] or 0), tonumber(of[7] or nil)
    if of[1] then q.number = bytes_of(tonumber(of[1])) end
    queues[name] = q
    loaded[#loaded + 1] = q
  end
  return q
end

-- The name of a queue by its number's bytes.
local names = {}
local function name_of(number)
  local name = names[number]
  if name == nil then
    local n = unpack_of('>I' .. #number, number)
    name = call('HGET', base .. 'n' .. floor(n / 64), n % 64)
    names[number] = name
  end
  return name
end

local function save()
  for _, q in ipairs(loaded) do
    if q.changed then
      call('HSET', q.key, 'j', q.jobs, 'd', q.delayed, 'u', q.running, 'x', q.dead, 'b', q.bytes)
    end
  end
end

-- What a bucket has of a job.
local function read(value)
  local flags, due = unpack_of('>BI7', value)
  local job, at, seq, large = {due = due, value = value}, 9, false, false
  if flags >= 128 then
    job.tries, at, flags = unpack_of('>H', value, 9), 11, flags - 128
  elseif flags >= 64 then
    job.tries, at, flags = byte(value, 9), 10, flags - 64
  else
    job.tries = 1
  end
  if flags >= 32 then job.details, flags = true, flags - 32 end
  if flags >= 16 then large, flags = true, flags - 16 end
  if flags >= 8 then seq, flags = true, flags - 8 end
  if flags >= 4 then job.ends, at, flags = unpack_of('>I6', value, at), at + 6, flags - 4 end
  if seq then job.seq, at = unpack_of('>I4', value, at), at + 4 end
  if flags == RUNNING then job.since, at = unpack_of('>I7', value, at), at + 7 end
  if large then job.large, job.size, at = true, unpack_of('>I4', value, at), at + 4 else job.size = #value - at + 1 end
  job.state, job.body_at = flags, at
  return job
end

-- The same with what has changed.
local function write(job, body)
  local flags, tail = job.state, ''
  if job.state == RUNNING then tail = pack('>I7', job.since) end
  if job.seq then flags, tail = flags + 8, pack('>I4', job.seq) .. tail end
  if job.ends then flags, tail = flags + 4, pack('>I6', job.ends) .. tail end
  if job.tries > 255 then flags, tail = flags + 128, pack('>H', job.tries) .. tail
  elseif job.tries ~= 1 then flags, tail = flags + 64, char(job.tries) .. tail end
  if job.details then flags = flags + 32 end
  if job.large then flags, body = flags + 16, pack('>I4', job.size) end
  return pack('>BI7', flags, job.due) .. tail .. (body or sub(job.value, job.body_at))
end

local function bucket_key(place) return base .. 'b' .. sub(place, 1, 3) end
local function field_of(q, place) return sub(place, 4) .. q.number end
local function body_key(q, place) return base .. 'x' .. place .. q.name end
local function details_key(q, place) return base .. 'h' .. place .. q.number end
local function put(job, body) call('HSET', bucket_key(job.place), field_of(job.q, job.place), write(job, body)) end
local function entry_of(job, time) return pack('>I7', time) .. job.place end
local function is_over(job) return job.ends and job.ends <= now_ms end

-- A job that has not ended. The second value is one that has, and whose bytes are still there.
local function find(q, place)
  local value = q.number and call('HGET', bucket_key(place), field_of(q, place))
  if not value then return nil end
  local job = read(value)
  job.q, job.place = q, place
  if is_over(job) then return nil, job end
  return job
end

-- Its member among the timers. Those with a sequence number stand in its order if they are due together.
local function member_of(job)
  local of = job.place .. job.q.number
  if job.state == RUNNING then return 'r' .. of end
  return job.seq and 's' .. pack('>I4', job.seq) .. of or 'd' .. of
end

-- The place in a member, or in what a bucket has behind its three bytes, from `at` on; and the queue's number behind it.
local function split(text, at)
  local length = floor(byte(text, at + 10) % 16 / 2)
  -- 5 says that six bytes follow: an id that names another partition.
  local to = at + 10 + (length == 5 and 6 or length)
  return sub(text, at, to), sub(text, to + 1)
end

-- Whether a waiting job without a timer is delayed: its bucket is far, and it has not been near yet.
local function is_far(job)
  local from = job.state == WAITING and call('ZSCORE', far, sub(job.place, 1, 3))
  return from and job.due >= from * 1000
end

local function state_of(job)
  if job.state == DEAD then return 'dead' end
  if call('ZSCORE', timers, member_of(job)) then return job.state == RUNNING and 'running' or 'delayed' end
  return is_far(job) and 'delayed' or 'ready'
end

-- Whether this very hand-over still stands.
local function is_held(job, due, tries)
  return job.state == RUNNING and job.due == due and job.tries == tries and now < due
end

local function free_key(job)
  local details = job.details and details_key(job.q, job.place)
  local key = details and call('HGET', details, 'k')
  if key then
    local record = base .. 'k' .. job.q.name .. '/' .. key
    if call('GET', record) == job.place then call('DEL', record) end
    call('HDEL', details, 'k')
  end
end

-- Its timer goes, if it has one, and the queue's figures follow.
local function leave_state(job)
  local q = job.q
  if job.state == DEAD then
    q.dead = q.dead - 1
  elseif call('ZREM', timers, member_of(job)) == 1 then
    if job.state == RUNNING then q.running = q.running - 1 else q.delayed = q.delayed - 1 end
  elseif is_far(job) then
    q.delayed = q.delayed - 1
  end
  q.changed = true
end

-- Forgets a job in whatever state it is. What stands of it in a list is passed over there.
local function remove(job)
  leave_state(job)
  local q, place = job.q, job.place
  q.jobs, q.bytes = q.jobs - 1, q.bytes - job.size
  call('HDEL', bucket_key(place), field_of(q, place))
  if job.large then call('UNLINK', body_key(q, place)) end
  if job.details then
    free_key(job)
    call('DEL', details_key(q, place))
  end
end

-- A job that has left its state dies at this time. Its key is free, and it has no end.
local function die(job, at)
  local q = job.q
  free_key(job)
  job.state, job.due, job.ends, job.seq, job.tries = DEAD, at, nil, nil, 0
  put(job)
  call('RPUSH', base .. 'd' .. q.name, entry_of(job, at))
  q.dead, q.changed = q.dead + 1, true
end

-- From when on the pump has set no timers yet, in ms: what is near later stays in its bucket until then.
local horizon
local function is_beyond(near, due)
  if near == 0 or near * 1000 > due then return false end
  if not horizon then
    horizon = tonumber(call('HGET', base .. 'm', 'h') or nil)
    if not horizon then
      horizon = now_ms + 4000
      call('HSET', base .. 'm', 'h', horizon)
    end
  end
  return near >= horizon
end

-- A job that has left its state is due then, and near from then on in ms.
local function delay(job, due, near)
  job.state, job.due, job.seq = WAITING, due, nil
  local bucket = sub(job.place, 1, 3)
  local from = is_beyond(near, due) and (call('ZSCORE', far, bucket) or near)
  -- All of a bucket are near at the same time.
  if tonumber(from or nil) == near and (not job.ends or job.ends > near) then
    call('ZADD', far, near, bucket)
  else
    call('ZADD', timers, due, member_of(job))
    if job.ends then call('ZADD', ends, 'LT', job.ends, bucket) end
  end
  put(job)
  job.q.delayed, job.q.changed = job.q.delayed + 1, true
end

local function body_of(job)
  if job.large then return call('GET', body_key(job.q, job.place)) or '' end
  return sub(job.value, job.body_at)
end

local function ttl_of(job) return job.ends and job.ends - now_ms or -1 end

-- The rank in a sorted set of what stands behind this score and member, which need not be there.
local function rank_behind(key, score, member)
  local from = call('ZCOUNT', key, '-inf', '(' .. score)
  local to = from + call('ZCOUNT', key, score, score)
  while from < to do
    local middle = floor((from + to) / 2)
    if call('ZRANGE', key, middle, middle)[1] <= member then from = middle + 1 else to = middle end
  end
  return from
end
