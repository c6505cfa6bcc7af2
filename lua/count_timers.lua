-- Counts the delayed jobs in a range of the timer set, by due time.
-- KEYS    timer_set
-- ARGV    prefix of the members to count ('' = all), length of an interval in ms, where to continue: a score ('' = at
--         the start) and how many members with that score were read; how many members to read
-- returns {now, where to continue: score ('' = finished), members read with that score; {per interval with jobs: its
--         start in ms (-1 = already due), jobs}, {per member whose score is in whole seconds: score, tries and id}}
-- bound   1000 members (the caller's)
local t, prefix, step = KEYS[1], ARGV[1], tonumber(ARGV[2])
local from, skip, most = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local rank = from == '' and 0 or call('ZCOUNT', t, '-inf', '(' .. from) + skip
local found, counts, whole, floor = call('ZRANGE', t, rank, rank + most - 1, 'WITHSCORES'), {}, {}, math.floor
for i = 1, #found, 2 do
  if prefix == '' or string.sub(found[i], 1, #prefix) == prefix then
    if tonumber(found[i + 1]) % 1 == 0 then
      -- Probably lmstfy's: the caller tells a delayed job from a running one by the id.
      local m, at = found[i], 1
      for _ = 1, 2 do
        local lo, hi = string.byte(m, at, at + 1)
        at = at + 2 + (lo or 0) + 256 * (hi or 0)
      end
      whole[#whole + 1], whole[#whole + 2] = found[i + 1], string.sub(m, at)
    else
      local due, runs = read_score(found[i + 1])
      local begins = due <= now and -1 or floor(due / 1000 / step) * step
      if not runs then counts[begins] = (counts[begins] or 0) + 1 end
    end
  end
end
local told = {}
for begins, jobs in pairs(counts) do
  told[#told + 1], told[#told + 2] = begins, jobs
end
if #found < 2 * most then return {now, '', 0, told, whole} end
local last, read = found[#found], 0
for i = #found, 2, -2 do
  if found[i] ~= last then break end
  read = read + 1
end
if last == from then read = read + skip end
return {now, last, read, told, whole}
