-- Unpacks jobs that are due soon. Moves due jobs, earliest first: with tries left they become ready, without they die;
-- members of deleted jobs are dropped. A score without a fraction is lmstfy's, which truncates the fraction: it is due a
-- second later, so that no job is early.
-- KEYS    timer_set | sorted set of buckets | in a cluster: the lease of the partition's pump
-- ARGV    maximum number of jobs, ms that a dead job lives (0 = forever), us before its due time when to unpack a job (''
--         = do not unpack); in a cluster: the server, 1 = it has stored a job that is due now, and pumps without the
--         lease too
-- returns {now, members removed, us until the next is due (-1 = none), invalid members, members postponed because their
--         list has another type, {ns/queue that got ready jobs}, {per ns/queue: name, jobs that are ready again after
--         their ttr, jobs that died}, us left of another server's lease (0 = this server holds it), {per ns/queue: name,
--         timers of delayed jobs removed, of running ones}, {per timer removed whose score is in whole seconds: its
--         job's key, its score}, us until the next is to be unpacked (-1 = none)}
-- bound   200 members (the caller's), a bucket of about 62 jobs: about a millisecond
local t, buckets, byte, held = KEYS[1], KEYS[2], string.byte, 0
if ARGV[4] then
  local LEASE, RENEW = 1250, 1100
  local holder, left = call('GET', KEYS[3]), call('PTTL', KEYS[3])
  if holder and holder ~= ARGV[4] then held = math.max(left, 1) * 1000 end
  if held > 0 and ARGV[5] ~= '1' then return {now, 0, -1, 0, 0, {}, {}, held, {}, {}, -1} end
  if held == 0 and left < RENEW then
    -- The first write needs no memory, since a full Redis refuses only a first write that does.
    call('ZREM', t, '')
    call('SET', KEYS[3], ARGV[4], 'PX', LEASE)
  end
end
-- Returns the bucket with the job that is due first, and when to unpack it.
local function next_bucket()
  local first = ARGV[3] ~= '' and call('ZRANGE', buckets, 0, 0, 'WITHSCORES') or {}
  return first[1], first[1] and tonumber(first[2]) * 1000000 - ARGV[3]
end
local bucket, at = next_bucket()
if bucket and at <= now then
  local key = packed_base .. bucket
  -- All jobs of a usual bucket, or a part of a larger hash; an error if the key is another program's.
  local cursor, jobs, found = 0, {}, nil
  repeat
    found = redis.pcall('HSCAN', key, cursor, 'COUNT', 100)
    cursor, jobs = found[1] or '0', found[2] or {}
  until #jobs > 0 or cursor == '0'
  -- The first write frees memory, as below.
  if cursor == '0' then call('ZREM', buckets, bucket) end
  if #jobs > 0 then
    local fields = {}
    for i = 1, #jobs, 2 do fields[#fields + 1] = jobs[i] end
    if cursor == '0' then call('UNLINK', key) else call('HDEL', key, unpack(fields)) end
    unpack_jobs(t, bucket, jobs)
  end
  bucket, at = next_bucket()
end
local second = string.format('%.0f', math.floor(now / 1000000))
local most, dead_ttl = tonumber(ARGV[1]), tonumber(ARGV[2])
-- Appends the members of a range and their scores. Delayed jobs are due at even microseconds and running ones at odd
-- ones, which identifies redeliveries.
local function read_due(from, to, limit, due, scores)
  local found = call('ZRANGEBYSCORE', t, from, to, 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #found, 2 do
    due[#due + 1] = found[i]
    scores[#due] = found[i + 1]
  end
  return due, scores
end
local due, scores = read_due('-inf', score(now), most, {}, {})
-- Members of this second without a fraction are not due yet, but lie between due ones.
local below, early = #due, #due > 0 and call('ZCOUNT', t, second, second) or 0
if early > 0 then
  due, scores = read_due('-inf', '(' .. second, most, {}, {})
  below = #due
  if below < most then read_due('(' .. second, score(now), most - below, due, scores) end
end
local n, garbage, put_off, ready, told = #due, 0, 0, {}, {}
-- Per ns/queue: its numbers of timers. lmstfy's whole seconds do not tell delayed jobs from running ones; our delayed
-- jobs due at whole seconds are written half a microsecond later.
local moved, moved_of, last_group, whole_seconds = {}, {}, nil, {}
-- Counts a removed timer. Returns whether it was a running job's.
local function ran(score, group, key)
  local part = (score % 1) * 1000000
  if part == 0 then
    whole_seconds[#whole_seconds + 1], whole_seconds[#whole_seconds + 2] = key, score
    return false
  end
  if group ~= last_group then
    last_group, moved_of = group, moved[group] or {0, 0}
    moved[group] = moved_of
  end
  local runs = part >= 0.75 and math.floor(part + 0.5) % 2 == 1
  local kind = runs and 2 or 1
  moved_of[kind] = moved_of[kind] + 1
  return runs
end
-- Names prefix of the last member, and its group: usually the next member has the same.
local names, group
-- A member consists of two names, tries and an id. Returns the group, tries, id, and the member's end from the tries
-- on, which is the job's list element; nil if the member is invalid.
local function read(m)
  if not names or string.sub(m, 1, #names) ~= names then
    local at, parts = 1, {}
    for i = 1, 2 do
      local lo, hi = byte(m, at, at + 1)
      if not hi then return end
      local to = at + 1 + lo + 256 * hi
      parts[i] = string.sub(m, at + 2, to)
      at = to + 1
    end
    -- Truncated names must not match the next member's.
    if at > #m then return end
    names, group = string.sub(m, 1, at - 1), parts[1] .. '/' .. parts[2]
  end
  local at = #names + 1
  local a, b, c, d = byte(m, at, at + 3)
  if not d or c + 256 * d ~= #m - at - 3 or c + d == 0 then return end
  return group, a + 256 * b, string.sub(m, at + 4), string.sub(m, at)
end
if n > 0 then
  -- The first write frees memory, so that a full Redis can still be drained; no later write may fail.
  if n > below then call('ZREMRANGEBYRANK', t, below + early, n + early - 1) end
  if below > 0 then call('ZREMRANGEBYRANK', t, 0, below - 1) end
  local keys, groups, tries, entries, whole, again, k = {}, {}, {}, {}, {}, {}, 0
  for i = 1, n do
    local group, left, id, entry = read(due[i])
    if group then
      k = k + 1
      keys[k], groups[k], tries[k], entries[k], whole[k] = base .. 'j/' .. group .. '/' .. id, group, left, entry, due[i]
      again[k] = ran(scores[i], group, keys[k]) and left > 0 and 1 or 0
    else
      garbage = garbage + 1
    end
  end
  local live = k > 0 and call('EXISTS', unpack(keys)) or 0
  local lists, order = {}, {}
  for i = 1, live > 0 and k or 0 do
    if live == k or call('EXISTS', keys[i]) == 1 then
      local list, entry = base .. 'q/' .. groups[i], entries[i]
      if tries[i] == 0 then
        end_life(keys[i], dead_ttl)
        list, entry = base .. 'd/' .. groups[i], '\1\0' .. string.sub(entry, 3)
      end
      local l = lists[list]
      if not l then
        l = {whole = {}, group = tries[i] > 0 and groups[i], of = groups[i], again = 0}
        lists[list] = l
        order[#order + 1] = list
      end
      l[#l + 1] = entry
      l.whole[#l.whole + 1] = whole[i]
      l.again = l.again + again[i]
    end
  end
  for _, list in ipairs(order) do
    local l = lists[list]
    if type(redis.pcall('LPUSH', list, unpack(l))) == 'table' then
      -- Another program's key. Retry in a minute, so that it does not block other jobs.
      for i = 1, #l do call('ZADD', t, score(now + 60000000 + i), l.whole[i]) end
      put_off = put_off + #l
    else
      if l.group then ready[#ready + 1] = l.group end
      if l.again > 0 or not l.group then
        local k = #told
        told[k + 1], told[k + 2], told[k + 3] = l.of, l.again, l.group and 0 or #l
      end
    end
  end
end
local head, next_due = call('ZRANGE', t, 0, 0, 'WITHSCORES'), -1
if head[2] then
  local at = tonumber(head[2])
  if at % 1 == 0 then
    -- lmstfy's. One of our members after it may be due earlier.
    local behind = call('ZRANGEBYSCORE', t, '(' .. head[2], '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    at = math.min(at + 1, tonumber(behind[2] or at + 1))
  end
  next_due = math.ceil(at * 1000000 - now)
  if next_due < 0 then next_due = 0 end
  if next_due > 1000000000 then next_due = 1000000000 end
end
local counts = {}
for group, of in pairs(moved) do
  local k = #counts
  counts[k + 1], counts[k + 2], counts[k + 3] = group, of[1], of[2]
end
local unpack_in = bucket and math.max(0, math.min(math.ceil(at - now), 1000000000)) or -1
return {now, n, next_due, garbage, put_off, ready, told, held, counts, whole_seconds, unpack_in}
