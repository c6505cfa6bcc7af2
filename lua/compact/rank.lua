-- Searches sorted sets.
-- As Redis compares: bytes. Lua's own way depends on the language of the machine.
local function less(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- The rank in a sorted set of what stands behind this score and member, which need not be there.
local function rank_behind(key, score, member)
  local from = call('ZCOUNT', key, '-inf', '(' .. score)
  local to = from + call('ZCOUNT', key, score, score)
  while from < to do
    local middle = floor((from + to) / 2)
    if less(member, call('ZRANGE', key, middle, middle)[1]) then to = middle else from = middle + 1 end
  end
  return from
end
