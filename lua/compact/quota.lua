-- What a namespace may have, and what it has, in the one partition that its name decides.
-- KEYS    the partition's guard
-- ARGV    namespace; what is done: set (most jobs, bytes, queues; 0 = no bound), remove, take (jobs, bytes, queues: they
--         may be below 0), read, or correct (jobs, bytes, queues that there are; those of the last read, which must hold
--         still)
-- returns 1 or 0: done or not; of take 0, or what would be too many: 1 jobs, 2 bytes, 3 queues; of read {jobs, bytes,
--         queues}, or {} without a quota; of set 1 if there was none before
-- bound   one namespace
local key, what, of = base .. 'l' .. ARGV[1], ARGV[2], {}
for i = 3, #ARGV do of[i - 2] = tonumber(ARGV[i]) end
if what == 'set' then
  local new = 1 - call('EXISTS', key)
  call('HSET', key, 'mj', of[1], 'mb', of[2], 'mq', of[3])
  call('SADD', base .. 'c', ARGV[1])
  return new
elseif what == 'remove' then
  call('SREM', base .. 'c', ARGV[1])
  return call('DEL', key)
end
local row = call('HMGET', key, 'mj', 'mb', 'mq', 'j', 'b', 'q')
if what == 'read' then
  if not row[1] then return {} end
  return {tonumber(row[4] or 0), tonumber(row[5] or 0), tonumber(row[6] or 0)}
elseif not row[1] then
  return 0
elseif what == 'take' then
  for n = 1, 3 do
    local most, has = tonumber(row[n]), tonumber(row[n + 3] or 0)
    if most > 0 and of[n] > 0 and math.max(has, 0) + of[n] > most then return n end
  end
  for n, name in ipairs({'j', 'b', 'q'}) do
    if of[n] ~= 0 then call('HINCRBY', key, name, of[n]) end
  end
  return 0
end
for n = 1, 3 do
  if tonumber(row[n + 3] or 0) ~= of[n + 3] then return 0 end
end
call('HSET', key, 'j', of[1], 'b', of[2], 'q', of[3])
return 1
