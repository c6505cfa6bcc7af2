-- Stores the jobs of several publish calls, each call as a whole or not at all; a republish also acks the old.
-- KEYS    timer_set | ready lists | job keys in publish order | old job keys | hashes of known names
-- ARGV    #lists, #jobs, #olds
--         per job: call, list (0 = delayed), ttl in ms (0 = forever), delay in us, list element or timer
--         member, value
--         per old: call, exact timer member ('' = not known)
--         per hash: the name to record
-- returns {now, 0 or 1 = all refused, call, ...}: the calls refused because an id is stored already. All are
--         refused, and nothing has changed, when a key is not of the type that it must be.
-- bound   64 jobs (the caller's)
local lists, jobs, olds = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local first, refused, out = 1 + lists, {}, {now, 0}

-- Look before the first write.
local keys = {}
for i = 1, jobs do keys[i] = KEYS[first + i] end
if call('EXISTS', unpack(keys)) > 0 then
  for i = 1, jobs do
    local c = ARGV[6 * i - 2]
    if not refused[c] and call('EXISTS', keys[i]) == 1 then
      refused[c] = true
      out[#out + 1] = tonumber(c)
    end
  end
end

-- The first write is a SET: a Redis that is full refuses it, and with it the whole call. What comes after the
-- first write is not refused for memory.
local pushes, timers, nt = {}, {}, 0
for i = 1, jobs do
  local a = 6 * i - 2
  if not refused[ARGV[a]] then
    if ARGV[a + 2] == '0' then call('SET', keys[i], ARGV[a + 5])
    else call('SET', keys[i], ARGV[a + 5], 'PX', ARGV[a + 2]) end
    local l = tonumber(ARGV[a + 1])
    if l == 0 then
      -- One microsecond apart, so that jobs due together keep their order.
      timers[nt + 1] = score(now + tonumber(ARGV[a + 3]) + i)
      timers[nt + 2] = ARGV[a + 4]
      nt = nt + 2
    else
      local p = pushes[l]
      if not p then p = {}; pushes[l] = p end
      p[#p + 1] = ARGV[a + 4]
    end
  end
end
local failed = false
if nt > 0 then failed = redis.pcall('ZADD', KEYS[1], unpack(timers)) end
failed = type(failed) == 'table'
local done = 0
for l = 1, failed and 0 or lists do
  if pushes[l] then
    if type(redis.pcall('LPUSH', KEYS[1 + l], unpack(pushes[l]))) == 'table' then failed = true; break end
  end
  done = l
end
if failed then
  -- Some key has the wrong type. Take everything back: a publish happens as a whole or not at all.
  for l = 1, done do
    if pushes[l] then call('LPOP', KEYS[1 + l], #pushes[l]) end
  end
  for i = 2, nt, 2 do redis.pcall('ZREM', KEYS[1], timers[i]) end
  for i = 1, jobs do
    if not refused[ARGV[6 * i - 2]] then call('DEL', keys[i]) end
  end
  out[2] = 1
  return out
end

local a = 4 + 6 * jobs
for i = 1, olds do
  if not refused[ARGV[a]] then
    call('DEL', KEYS[first + jobs + i])
    if ARGV[a + 1] ~= '' then call('ZREM', KEYS[1], ARGV[a + 1]) end
  end
  a = a + 2
end
for i = first + jobs + olds + 1, #KEYS do
  redis.pcall('HSET', KEYS[i], ARGV[a], 1)
  a = a + 1
end
return out
