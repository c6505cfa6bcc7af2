-- Those of a piece of all timers that are of one queue and kind, behind a place among them.
-- KEYS    the partition's guard
-- ARGV    name of the queue, 1 = running ones, score and member of the place ('' = from the first), how many to look at
-- returns {horizon in ms, score and member where the next piece goes on ('' = it was the last), per timer: due time in us,
--         place, member}
-- bound   500 timers (the caller's), and a search by halves
local q, running, score, member, most = queue_of(ARGV[1]), ARGV[2] == '1', ARGV[3], ARGV[4], tonumber(ARGV[5])
local from = score == '' and 0 or rank_behind(timers, score, member)
local all = call('ZRANGE', timers, from, from + most - 1, 'WITHSCORES')
local out = {tonumber(call('HGET', base .. 'm', 'h') or 0), '', ''}
if #all == 2 * most then out[2], out[3] = all[#all], all[#all - 1] end
for i = 1, #all, 2 do
  local kind = sub(all[i], 1, 1)
  if (kind == 'r') == running and q.number then
    local place, number = split(all[i], kind == 's' and 6 or 2)
    if number == q.number then
      local k = #out
      out[k + 1], out[k + 2], out[k + 3] = tonumber(all[i + 1]), place, all[i]
    end
  end
end
return out
