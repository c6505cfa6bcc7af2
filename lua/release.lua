-- Ends the current delivery: the job becomes ready at the head of its queue, delayed, or dead.
-- KEYS    timer_set | job key | ready list | dead letter | list of jobs with details
-- ARGV    exact timer member, its due time in us, prefix of the queue's timer members, ns/queue, id, the job's new
--         number of tries (0 = it dies), delay in us, reason ('' = none), ms that a dead job lives (0 = forever)
-- returns {now, due time in us, 1 = it is dead}; instead of the time 0: the delivery has ended, -1: no such job, -2:
--         the list has another type. Then nothing has changed.
-- A job whose ttl would end before the delay dies, too.
-- bound   one job
local left = call('PTTL', KEYS[2])
if left == -2 then return {now, -1, 0} end
local due, armed = tonumber(ARGV[2]), call('ZSCORE', KEYS[1], ARGV[1])
if due <= now or not armed or tonumber(armed) ~= tonumber(score(due)) then return {now, 0, 0} end
local id, tries, delay, back = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), now
local dies = tries == 0 or left >= 0 and delay >= left * 1000 and delay > 0
-- First, since it frees memory: a full Redis would refuse other first writes.
call('ZREM', KEYS[1], ARGV[1])
local pushed
if dies then
  pushed = redis.pcall('LPUSH', KEYS[4], struct.pack('<HH', 1, #id) .. id)
  if type(pushed) == 'number' then end_life(KEYS[2], tonumber(ARGV[9])) end
elseif delay > 0 then
  back = now + delay
  back = back + back % 2
  call('ZADD', KEYS[1], score(back), ARGV[3] .. struct.pack('<HH', tries, #id) .. id)
else
  pushed = redis.pcall('RPUSH', KEYS[3], struct.pack('<HH', tries, #id) .. id)
end
if type(pushed) == 'table' then
  call('ZADD', KEYS[1], armed, ARGV[1])
  return {now, -2, 0}
end
if ARGV[8] ~= '' then
  add_details(KEYS[5], ARGV[4] .. '/' .. id, 'reason', ARGV[8])
end
return {now, back, dies and 1 or 0}
