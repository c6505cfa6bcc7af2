-- Makes the oldest dead jobs ready again, each with one try.
-- KEYS    dead letter | ready list
-- ARGV    ns/queue, maximum number of elements to examine, maximum number to respawn, new ttl in ms (0 = forever)
-- returns {elements examined, jobs that are ready again}
-- bound   250 elements (the caller's)
local group, look, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local dead = call('LRANGE', KEYS[1], -look, -1)
local keys, ready, ids, seen = {}, {}, {}, 0
for i = #dead, 1, -1 do
  if #ready == most then break end
  seen = seen + 1
  local id = string.sub(dead[i], 5)
  local key = job_base .. group .. '/' .. id
  if id ~= '' and call('EXISTS', key) == 1 then
    keys[#keys + 1] = key
    ids[#ids + 1] = id
    ready[#ready + 1] = struct.pack('<HH', 1, #id) .. id
  end
end
-- A ready list of another type fails here, before anything has changed. The pop comes first, since it frees memory: a
-- full Redis refuses a push as the first write.
call('LLEN', KEYS[2])
if seen > 0 then call('RPOP', KEYS[1], seen) end
if #ready > 0 then call('LPUSH', KEYS[2], unpack(ready)) end
for i = 1, #keys do
  if ARGV[4] == '0' then call('PERSIST', keys[i]) else call('PEXPIRE', keys[i], ARGV[4]) end
  -- The job lost its key when it died.
  drop_key(group, ids[i])
end
return {seen, #ready}
