-- Stores the jobs of several publish calls, each call as a whole or not at all. None of them has a key or is due at an
-- instant, no call is safe to repeat, and no namespace has a quota: all that is for compact/publish_with.lua.
-- KEYS    the partition's guard
-- ARGV    #queues, their names (ns/queue), per queue in 4 bytes what the caller knows of it (see compact/publish_with.lua),
--         per call in one byte how many jobs it has, #jobs that are replaced, per such job: the call that replaces it from
--         1, its queue, its place
--         in the order of the calls rows of jobs that have in common, in one text: queue, how many, tries, ttl in ms (0 =
--         forever), delay in us, from when on in ms they are near (0 = now), where their values are (0 = in the bucket, 1 =
--         by themselves, 2 = compact/stage.lua has stored them), the three bytes of their bucket
--         per job of a row: its tail; its value, or the size of one that is stored already
-- returns {now, calls that were refused since one of their ids is stored already, from 0 ...}, or {now, -1}: a value that
--         was stored before has ended, or -1 - n: queue n is spread
-- bound   64 jobs, and 1 MiB of values or one value (the caller's)
local SPREAD_HOME, SPREAD, APART, STAGED = 4294967294, 4294967295, 1, 2
local count, all, stale, find, remove = tonumber(ARGV[1]), {}, {}, nil, nil
local modes, calls, replaced = ARGV[2 + count], ARGV[3 + count], tonumber(ARGV[4 + count])
for i = 1, count do
  local q, mode = queue_of(ARGV[1 + i]), unpack_of('>I4', modes, 4 * i - 3)
  q.mode, all[i] = mode, q
  if mode == SPREAD then q.spread = q.spread or PART
  elseif mode ~= SPREAD_HOME and q.spread then stale[#stale + 1] = -1 - i end
end

-- Look before the first write.
local rows, a, n, refused, call_of = {}, 5 + count + 3 * replaced, 0, nil, nil
while a <= #ARGV do
  local queue, k, tries, ttl, delay, near, where, bucket = unpack_of('>HHHI6I7I6Bc3', ARGV[a])
  local q, fields = all[queue], {}
  rows[#rows + 1] = {q = q, k = k, tries = tries, ttl = ttl, delay = delay, near = near, where = where, bucket = bucket,
    a = a, fields = fields}
  for i = 1, where == STAGED and k or 0 do
    if call('EXISTS', base .. 'x' .. bucket .. ARGV[a + 2 * i - 1] .. q.name) == 0 then return {now, -1} end
  end
  local number, values = q.number, nil
  if number then
    for i = 1, k do fields[i] = ARGV[a + 2 * i - 1] .. number end
    if k == 1 then values = {call('HGET', base .. 'b' .. bucket, fields[1])}
    else values = call('HMGET', base .. 'b' .. bucket, unpack(fields)) end
    for i = 1, k do
      if values[i] then
        if not find then find, remove = jobs() end
        local stored, over = find(q, bucket .. ARGV[a + 2 * i - 1])
        if over then
          remove(over)
        elseif stored then
          if not refused then
            refused, call_of = {}, {}
            for c = 1, #calls do
              for _ = 1, byte(calls, c) do call_of[#call_of + 1] = c end
            end
          end
          refused[call_of[n + i]] = true
        end
      end
    end
  end
  a, n = a + 1 + 2 * k, n + k
end

local now7, later, timed, job = pack('>I7', now), 0, nil, 0
for _, row in ipairs(rows) do
  local q, k, ttl, delay, where, bucket, a, fields = row.q, row.k, row.ttl, row.delay, row.where, row.bucket, row.a, row.fields
  local key, place_key, stores, set, m = base .. 'b' .. bucket, nil, k, {}, 0
  for i = 1, refused and k or 0 do
    if refused[call_of[job + i]] then stores = stores - 1 end
  end
  if stores > 0 then
    if not q.number then pieces()(q) end
    if not fields[1] then
      for i = 1, k do fields[i] = ARGV[a + 2 * i - 1] .. q.number end
    end
    -- What the jobs of a row have in common of their values, before and behind the time at which they are due.
    local flags, behind, ends_at, tries = WAITING, '', nil, row.tries
    if ttl > 0 then ends_at, flags, behind = now_ms + ttl, 4, pack('>I6', now_ms + ttl) end
    if tries > 255 then flags, behind = flags + 128, pack('>H', tries) .. behind
    elseif tries ~= 1 then flags, behind = flags + 64, char(tries) .. behind end
    if where > 0 then flags = flags + 16 end
    flags = char(flags)
    local head, entry_head, entries = flags .. now7 .. behind, now7 .. bucket, nil
    if delay == 0 then
      entries = q.entries or {}
      q.entries = entries
    end
    local bytes, near, ready, far_from, is_near = 0, row.near, entries and #entries, nil, delay == 0
    for i = 1, k do
      local due
      if delay > 0 then due, later = now + delay + later, later + 1 end
      if not refused or not refused[call_of[job + i]] then
        local tail, value = ARGV[a + 2 * i - 1], ARGV[a + 2 * i]
        if where > 0 then
          place_key = base .. 'x' .. bucket .. tail .. q.name
          if where == STAGED then bytes = bytes + value; call('PERSIST', place_key)
          else bytes = bytes + #value; call('SET', place_key, value) end
          value = pack('>I4', where == STAGED and value or #value)
        else
          bytes = bytes + #value
        end
        if entries then
          set[m + 1], set[m + 2] = fields[i], head .. value
          ready = ready + 1
          entries[ready] = entry_head .. tail
        else
          set[m + 1], set[m + 2] = fields[i], flags .. pack('>I7', due) .. behind .. value
          -- What ends before it is near needs a timer: nobody looks for what has ended in a far bucket.
          if near > 0 and is_beyond(near) and near * 1000 <= due and (not ends_at or ends_at > near) then
            far_from = near
          else
            is_near = true
            timed = timed or {}
            timed[#timed + 1], timed[#timed + 2] = string.format('%d', due), 'd' .. bucket .. fields[i]
          end
        end
        m = m + 2
      end
    end
    call('HSET', key, unpack(set))
    if far_from then call('ZADD', far, 'LT', far_from, bucket) end
    if ends_at and is_near then call('ZADD', ends, 'LT', string.format('%d', ends_at), bucket) end
    q.jobs, q.bytes, q.changed, q.stored = q.jobs + stores, q.bytes + bytes, true, (q.stored or 0) + stores
    if not entries then q.delayed = q.delayed + stores end
  end
  job = job + k
end
if timed then call('ZADD', timers, unpack(timed)) end
for _, q in ipairs(all) do
  if q.entries and q.entries[1] then call('RPUSH', base .. 'r' .. q.name, unpack(q.entries)) end
end
for i = 5 + count, 2 + count + 3 * replaced, 3 do
  if not refused or not refused[tonumber(ARGV[i])] then
    if not find then find, remove = jobs() end
    local old = find(all[tonumber(ARGV[i + 1])], ARGV[i + 2])
    if old then remove(old) end
  end
end
for i, q in ipairs(all) do
  if q.stored and outgrows(q) then
    spread(q, now_ms)
    stale[#stale + 1] = -1 - i
  end
end
save()
local answer = {now}
for c = 1, refused and #calls or 0 do
  if refused[c] then answer[#answer + 1] = c - 1 end
end
for _, queue in ipairs(stale) do answer[#answer + 1] = queue end
return answer
