-- Stores the jobs of a publish call that has keys, or instants, or is safe to repeat, or is of a namespace with a quota: all
-- or nothing.
-- KEYS    the partition's guard
-- ARGV    #queues, their names (ns/queue), per queue in 4 bytes what the caller knows of it (0 = it is gathered, n =
--         gathered until it has n jobs, 2^32-2 = it is spread and this is its home, 2^32-1 = it is spread), #calls;
--         fingerprint ('' = not safe to repeat), its name, ms that it is remembered, how many jobs, bytes and queues it may
--         add ('' = any number)
--         per call (behind the first: jobs whose keys others get, which go with it unless they run): #jobs, number of
--         the queue of the job that it replaces (0 = none), the job's place
--         per job: a text of its queue, tries, ttl in ms (0 = forever), delay in us, at in ms (0 = after the delay), from
--         when on in ms it is near (0 = now) and size of the value that compact/stage.lua has stored (0 = none); its
--         place; its value; key ('' = none), conflict, other, other_due in us (see lua/publish_with.lua)
-- returns {now, 'done', what became of the jobs, and if it may not add any number: jobs, bytes and queues that it has
--         added}; {now, 'replay', what became of the jobs}; {now, 'mismatch'}; {now, 'conflict', job from 0, place of the
--         job that has its key}; {now, 'taken'}: one of its ids is stored already; {now, 'ended'}: a value that was stored
--         before has ended; {now, 'needs', jobs, bytes, queues}: more than it may add; {now, 'spread'}: a queue is, and
--         was not said to be; {now, 'busy'}: a publish that is not shown yet has one of its keys; as `done` {now, 'would',
--         .., {its keys}, {where values were stored before}, n, d or r for each job} if it only looks; `judged` has those
--         letters of a part that was looked at before, and they stand. What became of a job is n (new), d
--         (duplicate) or r (it has replaced another one); due time in 7 bytes (0 = not known); its id; of r the id of the replaced job. An id is its length in one
--         byte, and a place, or x and what was told as other
-- bound   64 jobs, and 1 MiB of values or one value (the caller's)
local INLINE, SPREAD_HOME, SPREAD = 1000, 4294967294, 4294967295
local a = 0
local function arg() a = a + 1; return ARGV[a] end
local function number() a = a + 1; return tonumber(ARGV[a]) end
local names, admit = {}, {}
local find, remove, free_key, state_of, details_of = jobs()
for i = 1, number() do names[i] = arg() end
local modes = arg()
local count, calls = number(), {}
local fingerprint, record, remembered = arg(), arg(), arg()
for i = 1, 3 do admit[i] = tonumber(arg()) end
record = fingerprint ~= '' and base .. 'o' .. names[1] .. '/' .. record
for c = 1, count do
  local of, jobs = {}, number()
  calls[c] = of
  local replaced, place = number(), arg()
  if replaced > 0 then of.replaces = {name = names[replaced], place = place} end
  for i = 1, jobs do
    local queue, tries, ttl, delay, at, near, size = unpack_of('>HHI6I7I6I6I4', ARGV[a + 1])
    local place, body = ARGV[a + 2], ARGV[a + 3]
    a = a + 3
    local job = {name = names[queue], place = place, tries = tries, ttl = ttl, delay = delay, at = at, near = near,
      size = size > 0 and size or #body, staged = size > 0, body = body, state = WAITING}
    job.large = job.size > INLINE
    job.key, job.conflict, job.other, job.other_due = arg(), arg(), arg(), arg()
    of[i] = job
  end
end

local from = from or now
for i, name in ipairs(names) do
  local q, mode = queue_of(name), unpack_of('>I4', modes, 4 * i - 3)
  q.mode = mode
  if mode == SPREAD then
    q.spread = q.spread or PART
  elseif mode ~= SPREAD_HOME and q.spread then
    return {now, 'spread'}
  end
end

-- Nothing changes: values that were stored before go.
local function answer(...)
  for _, job in ipairs(calls[1]) do
    if job.staged then call('UNLINK', base .. 'x' .. job.place .. job.name) end
  end
  return {now, ...}
end
local done = record and call('GET', record)
if done then
  if sub(done, 1, 16) ~= fingerprint then return answer('mismatch') end
  return answer('replay', sub(done, 17))
end

-- Look before the first write.
local by_bucket, taken = {}, false
for i, job in ipairs(calls[1]) do
  local q = queue_of(job.name)
  job.q, job.was = q, judged and sub(judged, i, i)
  if job.staged and job.was ~= 'd' and call('EXISTS', base .. 'x' .. job.place .. job.name) == 0 then
    return {now, 'ended'}
  end
  if q.number then
    local bucket = sub(job.place, 1, 3)
    local all = by_bucket[bucket] or {fields = {}, places = {}, queues = {}}
    by_bucket[bucket] = all
    local n = #all.fields + 1
    all.fields[n], all.places[n], all.queues[n] = sub(job.place, 4) .. q.number, job.place, q
  end
end
for bucket, all in pairs(by_bucket) do
  local key, values = base .. 'b' .. bucket, nil
  if #all.fields == 1 then values = {call('HGET', key, all.fields[1])}
  else values = call('HMGET', key, unpack(all.fields)) end
  for n, value in ipairs(values) do
    if value then
      local stored, over = find(all.queues[n], all.places[n])
      if over then remove(over) elseif stored then taken = true end
    end
  end
end
if taken then return answer('taken') end
local replaced = calls[1].replaces
local gone = replaced and find(queue_of(replaced.name), replaced.place)
local needs = {0, 0, 0}
for i, job in ipairs(calls[1]) do
  if job.conflict == 'duplicate' then
    job.how, job.told, job.due = 'd', 'x' .. job.other, tonumber(job.other_due)
  elseif job.was == 'd' then
    job.how = 'd'
  elseif job.key ~= '' then
    local lock = call('GET', base .. 'L' .. job.name .. '/' .. job.key)
    if lock and lock ~= own then return {now, 'busy'} end
    local place = call('GET', base .. 'k' .. job.name .. '/' .. job.key)
    local holder = place and find(job.q, place)
    local has = holder and holder.state ~= DEAD and not (gone and gone.place == place and gone.q == job.q)
      and details_of(holder) == job.key
    if has and job.was then
      -- Nobody got the key meanwhile: this one had it then. It goes if that was told and it does not run by now.
      job.holder, job.removes = holder, job.was == 'r' and state_of(holder) ~= 'running'
    elseif has then
      if job.conflict == 'fail' then return answer('conflict', i - 1, place) end
      local state = state_of(holder)
      if job.conflict == 'keep' then
        job.how, job.told, job.due = 'd', place, holder.due
      else
        job.holder = holder
        if state ~= 'running' then job.how, job.told_gone, job.removes = 'r', place, true end
      end
    end
    if job.other ~= '' then job.how, job.told_gone = 'r', 'x' .. job.other end
  end
end
if admit[1] then
  local new = {}
  for _, job in ipairs(calls[1]) do
    if job.how ~= 'd' then
      needs[1], needs[2] = needs[1] + 1, needs[2] + job.size
      if not job.q.number and job.q.spread ~= PART and not new[job.q] then new[job.q], needs[3] = true, needs[3] + 1 end
      if job.removes then needs[1], needs[2] = needs[1] - 1, needs[2] - job.holder.size end
    end
  end
  if gone then needs[1], needs[2] = needs[1] - 1, needs[2] - gone.size end
  -- Those whose keys go to other partitions.
  for c = 2, count do
    local of = calls[c].replaces
    local job = of and find(queue_of(of.name), of.place)
    if job and state_of(job) ~= 'running' then needs[1], needs[2] = needs[1] - 1, needs[2] - job.size end
  end
  for n = 1, 3 do
    -- Values that were stored before stay for the next attempt.
    if needs[n] > admit[n] then return {now, 'needs', needs[1], needs[2], needs[3]} end
  end
end

-- When a job is due, and whether that is an instant. Those that would be due together are due in the order given.
local function due_of(job, later)
  if job.at > 0 then
    if job.at * 1000 > from then return job.at * 1000, true end
    return from
  end
  return job.delay > 0 and from + job.delay + later or from
end

if looks then
  local outcome, locks, stored, hows, later = {}, {}, {}, {}, 0
  for i, job in ipairs(calls[1]) do
    local due = job.due
    if job.how ~= 'd' then
      due = due_of(job, later)
      if job.key ~= '' then locks[#locks + 1] = job.name .. '/' .. job.key end
      if job.staged then stored[#stored + 1] = base .. 'x' .. job.place .. job.name end
    end
    if job.delay > 0 and job.at == 0 then later = later + 1 end
    local told = job.told or job.place
    hows[i] = job.how or 'n'
    outcome[i] = hows[i] .. pack('>I7', due or 0) .. char(#told) .. told
      .. (job.told_gone and char(#job.told_gone) .. job.told_gone or '')
  end
  return {now, 'would', table.concat(outcome), needs[1], needs[2], needs[3], locks, stored, table.concat(hows)}
end

local sets, ready, set, fars, over, delayed = {}, {}, {}, {}, {}, 0
for _, job in ipairs(calls[1]) do
  local later = delayed
  if job.delay > 0 and job.at == 0 then delayed = delayed + 1 end
  if job.how ~= 'd' then
    local q, bucket = job.q, sub(job.place, 1, 3)
    if not q.number then pieces()(q) end
    if job.ttl > 0 then job.ends = floor(from / 1000) + job.ttl end
    job.details = job.key ~= ''
    local is_instant
    job.due, is_instant = due_of(job, later)
    if is_instant and job.due > now then job.seq = call('HINCRBY', base .. 'm', 's', 1) % 4294967296 end
    if job.due <= now then
      local entries = ready[q] or {}
      ready[q] = entries
      entries[#entries + 1] = pack('>I7', job.due) .. job.place
    else
      q.delayed = q.delayed + 1
      -- What ends before it is near needs a timer: nobody looks for what has ended in a far bucket.
      job.far = job.near > 0 and is_beyond(job.near) and job.near * 1000 <= job.due
        and (not job.ends or job.ends > job.near)
      if job.far then
        fars[bucket] = math.min(fars[bucket] or job.near, job.near)
      else
        set[#set + 1] = job.due
        set[#set + 1] = (job.seq and 's' .. pack('>I4', job.seq) or 'd') .. job.place .. q.number
      end
    end
    if job.ends and not job.far then over[bucket] = math.min(over[bucket] or job.ends, job.ends) end
    local pairs_of = sets[bucket] or {}
    sets[bucket] = pairs_of
    pairs_of[#pairs_of + 1] = sub(job.place, 4) .. q.number
    pairs_of[#pairs_of + 1] = write(job, job.body)
    if job.staged then call('PERSIST', base .. 'x' .. job.place .. q.name)
    elseif job.large then call('SET', base .. 'x' .. job.place .. q.name, job.body) end
    q.jobs, q.bytes, q.changed, q.stored = q.jobs + 1, q.bytes + job.size, true, (q.stored or 0) + 1
  end
end
for bucket, all in pairs(sets) do call('HSET', base .. 'b' .. bucket, unpack(all)) end
for bucket, near in pairs(fars) do call('ZADD', far, 'LT', near, bucket) end
for bucket, at in pairs(over) do call('ZADD', ends, 'LT', at, bucket) end
if #set > 0 then call('ZADD', timers, unpack(set)) end
for q, entries in pairs(ready) do call('RPUSH', base .. 'r' .. q.name, unpack(entries)) end
for c, of in ipairs(calls) do
  if of.replaces then
    local job = find(queue_of(of.replaces.name), of.replaces.place)
    if job and c > 1 and state_of(job) == 'running' then free_key(job) elseif job then remove(job) end
  end
end
local outcome = {}
for i, job in ipairs(calls[1]) do
  if job.how == 'd' then
    if job.staged then call('UNLINK', base .. 'x' .. job.place .. job.name) end
  elseif job.key ~= '' then
    if job.holder then
      -- Whoever had the key before and is there still has it no more.
      if job.removes then remove(job.holder) else free_key(job.holder) end
    end
    call('SET', base .. 'k' .. job.name .. '/' .. job.key, job.place)
    call('HSET', base .. 'h' .. job.place .. job.q.number, 'k', job.key)
  end
  local told = job.told or job.place
  outcome[i] = (job.how or 'n') .. pack('>I7', job.due or 0) .. char(#told) .. told
    .. (job.told_gone and char(#job.told_gone) .. job.told_gone or '')
end
outcome = table.concat(outcome)
if record then call('SET', record, fingerprint .. (told_all or outcome), 'PX', remembered) end
for i, name in ipairs(names) do
  local q = queue_of(name)
  if q.stored and outgrows(q) then spread(q, now_ms) end
end
save()
return {now, 'done', outcome, needs[1], needs[2], needs[3]}
