-- Returns a job by id, with its state. Its position in a list is searched for only near both ends.
-- KEYS    timer_set | job key | ready list | dead letter | details
-- ARGV    prefix of the queue's timer members, id, tries left if it is running (-1 = unknown)
-- returns {now}: no such job; {now, ttl left in ms (-1 = forever), value, key, reason, 'timer', tries, score}, or with
--         {.., 'ready', tries}, {.., 'dead'} or {.., 'unknown'} instead of 'timer' and its fields
-- bound   1,314 names of timers; 2,000 elements of the ready list are compared with four names, and 200 read; 20,000 of
--         the dead letter are compared
local id, value = ARGV[2], call('GET', KEYS[2])
if not value then return {now} end
local ttl, details = call('PTTL', KEYS[2]), call('HMGET', KEYS[5], 'reason', 'tries')
local job = {now, ttl, value, key_of(KEYS[2], KEYS[5]), details[1]}
local function answer(...)
  for i = 1, select('#', ...) do job[5 + i] = select(i, ...) end
  return job
end
local found, tries = nil, tonumber(ARGV[3])
if tries >= 0 then found = call('ZSCORE', KEYS[1], ARGV[1] .. struct.pack('<HH', tries, #id) .. id) end
-- Few tries first: the other names cost 0.3 ms.
if not found then found, tries = find_timer(KEYS[1], ARGV[1], id, 31) end
if found then return answer('timer', tries, found) end
local function is_dead()
  local element = struct.pack('<HH', 1, #id) .. id
  return call('LPOS', KEYS[4], element, 'RANK', -1, 'MAXLEN', 10000) or call('LPOS', KEYS[4], element, 'MAXLEN', 10000)
end
-- A dead job lives forever, where dead jobs have no age.
if ttl == -1 and is_dead() then return answer('dead') end
-- Comparing costs a tenth of reading. Few jobs have more than four tries left.
for n = 1, 4 do
  local element = struct.pack('<HH', n, #id) .. id
  if call('LPOS', KEYS[3], element, 'RANK', -1, 'MAXLEN', 1000) or call('LPOS', KEYS[3], element, 'MAXLEN', 1000) then
    return answer('ready', n)
  end
end
for _, range in ipairs({{-100, -1}, {0, 99}}) do
  for _, element in ipairs(call('LRANGE', KEYS[3], range[1], range[2])) do
    if string.sub(element, 5) == id then return answer('ready', (struct.unpack('<H', element))) end
  end
end
found, tries = find_timer(KEYS[1], ARGV[1], id, tonumber(details[2] or 1023))
if found then return answer('timer', tries, found) end
if ttl ~= -1 and is_dead() then return answer('dead') end
return answer('unknown')
