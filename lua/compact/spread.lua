-- Spreads a queue over all partitions, from its home.
-- KEYS    the partition's guard
-- ARGV    name of the queue
-- returns {since when in ms it is spread (1 = from its first job on), 1 = nobody knew the queue before}
-- bound   one queue
local q, new = queue_of(ARGV[1]), 0
if q.spread then return {q.spread, 0} end
if not q.number then
  give_number(q)
  new = 1
end
spread(q, new == 1 and 1 or now_ms)
save()
return {q.spread, new}
