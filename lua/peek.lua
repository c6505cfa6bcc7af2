-- Finds the job that the next consume would hand out. Changes nothing.
-- KEYS    ready list
-- ARGV    prefix of its job keys, how many elements at the head are known to be dead
-- returns {now, -1, id, tries, ttl left in ms (-1 = forever), value}; {now, -1} when there is none;
--         {now, n} when the first n are dead and there may be more
-- bound   992 elements
local skip, step = tonumber(ARGV[2]), 1
for _ = 1, 32 do
  local els = call('LRANGE', KEYS[1], -skip - step, -skip - 1)
  if #els == 0 then return {now, -1} end
  for i = #els, 1, -1 do
    local el = els[i]
    local id = string.sub(el, 5)
    if #el > 4 and struct.unpack('<H', el, 3) == #id and struct.unpack('<H', el) > 0 then
      local key = ARGV[1] .. id
      local value = redis.pcall('GET', key)
      if type(value) == 'string' then
        return {now, -1, id, struct.unpack('<H', el), call('PTTL', key), value}
      end
    end
  end
  skip, step = skip + #els, 32
end
return {now, skip}
