-- Searches sorted sets.
-- The rank in a sorted set of what stands behind this score and member, which need not be there.
local function rank_behind(key, score, member)
  local from = call('ZCOUNT', key, '-inf', '(' .. score)
  local to = from + call('ZCOUNT', key, score, score)
  while from < to do
    local middle = floor((from + to) / 2)
    if call('ZRANGE', key, middle, middle)[1] <= member then from = middle + 1 else to = middle end
  end
  return from
end
