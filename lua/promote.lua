-- Makes a delayed job ready, after all ready jobs.
-- KEYS    timer_set | job key | ready list | details
-- ARGV    prefix of the queue's timer members, id, the key that the job must have ('' = any or none), the last second
--         when one of lmstfy's timers can be the job's delay (0 = none)
-- returns {now, 'ready'}; otherwise nothing has changed: {now, 'gone'}: no such job, or it has another key; {now,
--         'other'}: it is not delayed; {now, 'type'}: the ready list has another type
-- bound   1,313 names of timers, 1,000 members of the timer set
local id, prefix, last = ARGV[2], ARGV[1], tonumber(ARGV[4])
if call('EXISTS', KEYS[2]) == 0 then return {now, 'gone'} end
if ARGV[3] ~= '' and key_of(KEYS[2], KEYS[4]) ~= ARGV[3] then return {now, 'gone'} end
-- Few tries first: the other names cost 0.3 ms.
local found, tries, member = find_timer(KEYS[1], prefix, id, 31)
if not found then
  found, tries, member = find_timer(KEYS[1], prefix, id, tonumber(call('HGET', KEYS[4], 'tries') or 1023))
end
-- The timer of a job with more tries is searched for near the end of its first delay.
if not found and last > 0 then
  for _, other in ipairs(call('ZRANGEBYSCORE', KEYS[1], last - 3, last + 2, 'LIMIT', 0, 1000)) do
    if string.sub(other, 1, #prefix) == prefix and string.sub(other, #prefix + 5) == id then
      found, tries, member = call('ZSCORE', KEYS[1], other), struct.unpack('<H', other, #prefix + 1), other
    end
  end
end
if not found then return {now, 'other'} end
local due, runs = read_score(found)
-- lmstfy's scores do not distinguish delayed from running: its delayed jobs are due at the time in their ids.
if runs and (due % 1000000 > 0 or due / 1000000 > last) then return {now, 'other'} end
-- First, since it frees memory: a full Redis would refuse other first writes.
call('ZREM', KEYS[1], member)
local pushed = redis.pcall('LPUSH', KEYS[3], struct.pack('<HH', tries, #id) .. id)
if type(pushed) == 'table' then
  call('ZADD', KEYS[1], found, member)
  return {now, 'type'}
end
return {now, 'ready'}
