-- Gives a queue that nobody knew a number, and keeps its name. Refused by a full Redis, as the first write of a script must be.
local function give_number(q)
  local n = call('HINCRBY', base .. 'm', 'q', 0)
  n = tonumber(call('LPOP', base .. 'u') or nil) or call('HINCRBY', base .. 'm', 'q', 1)
  q.n, q.number = n, bytes_of(n)
  call('HSET', base .. 'n' .. floor(n / 64), n % 64, q.name)
  add_name(q.name)
end
