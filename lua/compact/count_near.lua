-- Counts the delayed jobs among a piece of all timers, by when they are due.
-- KEYS    the partition's guard
-- ARGV    whose jobs ('' = all, a namespace and '/', or a queue), length of a step in ms, where to go on: a score ('' = at
--         the beginning) and how many timers of that score were read; how many timers to read
-- returns {now, where to go on: score ('' = at the end), timers of it that were read; {per step with some: its beginning
--         in ms (-1 = due already), jobs}}
-- bound   1000 timers (the caller's)
local from, skip, most = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local rank = from == '' and 0 or call('ZCOUNT', timers, '-inf', '(' .. from) + skip
local all = call('ZRANGE', timers, rank, rank + most - 1, 'WITHSCORES')
for i = 1, #all, 2 do
  local kind = sub(all[i], 1, 1)
  if kind ~= 'r' then
    local _, number = split(all[i], kind == 's' and 6 or 2)
    if is_counted(number) then count(tonumber(all[i + 1])) end
  end
end
if #all < 2 * most then return {now, '', 0, told()} end
local last, read = all[#all], 0
for i = #all, 2, -2 do
  if all[i] ~= last then break end
  read = read + 1
end
if last == from then read = read + skip end
return {now, last, read, told()}
