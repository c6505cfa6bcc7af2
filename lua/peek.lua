-- Returns the job that the next consume would deliver. Removes entries at the head whose jobs no longer exist, as a
-- consume would; changes nothing else.
-- KEYS    ready list
-- ARGV    prefix of its job keys, elements at the head to skip: undeliverable ones that stay
-- returns {now, -1, id, tries, ttl left in ms (-1 = forever), value}; {now, -1}: no job; {now, n}: the first n cannot
--         be delivered, and there may be more
-- bound   three reads of the list, 961 elements
local skip = tonumber(ARGV[2])
for _, step in ipairs({1, 32, 928}) do
  local els = call('LRANGE', KEYS[1], -skip - step, -skip - 1)
  if #els == 0 then return {now, -1} end
  local keys = {}
  for i = 1, #els do keys[i] = ARGV[1] .. string.sub(els[i], 5) end
  -- One EXISTS detects a whole run of deleted jobs.
  local live = call('EXISTS', unpack(keys)) > 0
  for i = live and #els or 0, 1, -1 do
    local el, id = els[i], string.sub(els[i], 5)
    if #el > 4 and struct.unpack('<H', el, 3) == #id and struct.unpack('<H', el) > 0 then
      local value = redis.pcall('GET', keys[i])
      if type(value) == 'string' then
        return {now, -1, id, struct.unpack('<H', el), call('PTTL', keys[i]), value}
      end
    end
  end
  -- Peek also works on a server that accepts no writes.
  if live or skip > 0 or not redis.pcall('LTRIM', KEYS[1], 0, -#els - 1).ok then skip = skip + #els end
end
return {now, skip}
