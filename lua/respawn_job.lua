-- Makes one dead job ready or delayed again. Its place in the dead letter comes from a look at it before; others may have
-- taken older jobs out since. A job that is far from both ends of a long dead letter leaves an element there that
-- names no job, for what is in the middle of a list can be replaced cheaply, and not removed.
-- KEYS    dead letter | ready list | timer_set | job key | details
-- ARGV    id, how many elements older than it there were (-1 = it is not there), tries, delay in us, new ttl in ms (0 =
--         forever), prefix of the queue's timer members
-- returns {now, 'done', due time in us, 1 = ready}, {now, 'alive'}, {now, 'gone'}, {now, 'moved'}: look again, or
--         {now, 'type'}: a key is not of the type that it must be. Nothing has changed but for 'done'.
-- bound   one job, 2,000 elements around it, 1,000 to either end
local id, older, tries, delay = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local ttl = call('PTTL', KEYS[4])
if ttl == -2 then return {now, 'gone'} end
if ttl ~= -1 or older < 0 then return {now, 'alive'} end
local ready, timer_set = call('TYPE', KEYS[2]).ok, call('TYPE', KEYS[3]).ok
if ready ~= 'none' and ready ~= 'list' or timer_set ~= 'none' and timer_set ~= 'zset' then return {now, 'type'} end
local element = struct.pack('<HH', 1, #id) .. id
if call('LINDEX', KEYS[1], -older - 1) ~= element then
  local at
  local near = call('LRANGE', KEYS[1], -older - 1, -math.max(older - 1000, 0) - 1)
  for i = 1, #near do
    if near[i] == element then at = older + 1 - i end
  end
  if not at then return {now, 'moved'} end
  older = at
end
local due = now
if delay > 0 then
  due = now + delay
  due = due + due % 2
  call('ZADD', KEYS[3], score(due), ARGV[6] .. struct.pack('<HH', tries, #id) .. id)
else
  call('LPUSH', KEYS[2], struct.pack('<HH', tries, #id) .. id)
end
local newer = call('LLEN', KEYS[1]) - older - 1
if older < 1000 then call('LREM', KEYS[1], -1, element)
elseif newer < 1000 then call('LREM', KEYS[1], 1, element)
else call('LSET', KEYS[1], -older - 1, struct.pack('<HH', 1, #id) .. '~' .. string.sub(id, 2)) end
if ARGV[5] == '0' then call('PERSIST', KEYS[4]) else call('PEXPIRE', KEYS[4], ARGV[5]) end
call('HDEL', KEYS[5], 'key', 'tries')
return {now, 'done', due, delay > 0 and 0 or 1}
