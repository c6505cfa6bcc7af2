-- Counts delayed and running jobs by queue in a piece of the timer set, for one server at a time.
-- KEYS    timer_set | hash of the numbers | who counts
-- ARGV    who calls, ms for which the turn is his, where to go on: a score ('' = at the beginning, which takes the turn if it
--         is nobody's) and how many members of that score were read; how many members to read
-- returns {}: it is somebody else's turn, or there is nothing to count; or {where to go on: score ('' = at the end), members of it that were read,
--         {per queue with some: ns/queue, delayed, running}, {per member whose score is of whole seconds: ns/queue, score,
--         tries and id}}
-- bound   1000 members (the caller's)
local t, from, skip, most = KEYS[1], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
if from == '' and call('EXISTS', t, KEYS[2]) == 0 then return {} end
local turn = call('GET', KEYS[3])
if turn ~= ARGV[1] and (turn or from ~= '') then return {} end
-- A full Redis refuses SET as the first write.
call('DEL', KEYS[3])
call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
local rank = from == '' and 0 or call('ZCOUNT', t, '-inf', '(' .. from) + skip
local found, counts, whole = call('ZRANGE', t, rank, rank + most - 1, 'WITHSCORES'), {}, {}
-- The names that the last member began with, and their group: the next begins with them too, mostly.
local names, group
local function read_names(m)
  if names and string.sub(m, 1, #names) == names then return true end
  local at, parts = 1, {}
  for i = 1, 2 do
    local lo, hi = string.byte(m, at, at + 1)
    if not hi then return end
    parts[i] = string.sub(m, at + 2, at + 1 + lo + 256 * hi)
    at = at + 2 + lo + 256 * hi
  end
  if at > #m then return end
  names, group = string.sub(m, 1, at - 1), parts[1] .. '/' .. parts[2]
  return true
end
for i = 1, #found, 2 do
  if read_names(found[i]) then
    local kind, n = kind_of(found[i + 1]), #whole
    if kind then
      local of = counts[group]
      if not of then of = {d = 0, r = 0}; counts[group] = of end
      of[kind] = of[kind] + 1
    else
      whole[n + 1], whole[n + 2], whole[n + 3] = group, found[i + 1], string.sub(found[i], #names + 1)
    end
  end
end
local told = {}
for name, of in pairs(counts) do
  local n = #told
  told[n + 1], told[n + 2], told[n + 3] = name, of.d, of.r
end
if #found < 2 * most then return {'', 0, told, whole} end
local last, read = found[#found], 0
for i = #found, 2, -2 do
  if found[i] ~= last then break end
  read = read + 1
end
if last == from then read = read + skip end
return {last, read, told, whole}
