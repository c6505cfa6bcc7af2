-- Spreads a queue over all partitions, from its home.
-- KEYS    the partition's guard
-- ARGV    name of the queue
-- returns {since when in ms it is spread (1 = from its first job on), 1 = nobody knew the queue before}
-- bound   one queue
local q, new = queue_of(ARGV[1]), 0
if q.spread then return {q.spread, 0} end
if not q.number then
  local n = call('HINCRBY', base .. 'm', 'q', 0)
  n = tonumber(call('LPOP', base .. 'u') or nil) or call('HINCRBY', base .. 'm', 'q', 1)
  q.n, q.number, new = n, bytes_of(n), 1
  call('HSET', base .. 'n' .. floor(n / 64), n % 64, q.name)
  add_name(q.name)
end
spread(q, new == 1 and 1 or now_ms)
save()
return {q.spread, new}
