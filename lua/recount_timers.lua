-- Counts the delayed and running jobs in a range of the timer set by queue, for one server at a time.
-- KEYS    timer_set | the server that counts
-- ARGV    the server, ms for its turn, 1 = begins a count: takes the turn, if it is free; 1 = from the last due time
--         down; where to continue: a score ('' = at the start) and how many members with that score were read; how many
--         members to read
-- returns {now, {}}: another server's turn; or {now, {where to continue: score ('' = finished), members read with that
--         score; {per queue: both names as in its members, delayed jobs, running jobs}, {per member whose score is in
--         whole seconds: the member, its score}}}
-- bound   1000 members (the caller's)
local turn = call('GET', KEYS[2])
if turn ~= ARGV[1] and (turn or ARGV[3] ~= '1') then return {now, {}} end
-- A full Redis refuses SET as the first write.
call('DEL', KEYS[2])
call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
local t, from, most, byte = KEYS[1], ARGV[5], tonumber(ARGV[7]), string.byte
local first, last = '-inf', '(' .. from
if ARGV[4] == '1' then first, last = last, '+inf' end
local rank = from == '' and 0 or call('ZCOUNT', t, first, last) + ARGV[6]
local found = call(ARGV[4] == '1' and 'ZREVRANGE' or 'ZRANGE', t, rank, rank + most - 1, 'WITHSCORES')
local counts, whole = {}, {}
for i = 1, #found, 2 do
  local m = found[i]
  local part = (found[i + 1] % 1) * 1000000
  if part == 0 then
    whole[#whole + 1], whole[#whole + 2] = m, found[i + 1]
  else
    local at = 1
    for _ = 1, 2 do
      local lo, hi = byte(m, at, at + 1)
      at = at + 2 + (lo or 0) + 256 * (hi or 0)
    end
    local names = string.sub(m, 1, at - 1)
    local of = counts[names] or {0, 0}
    counts[names] = of
    -- See details.lua.
    local kind = part >= 0.75 and math.floor(part + 0.5) % 2 == 1 and 2 or 1
    of[kind] = of[kind] + 1
  end
end
local told = {}
for names, of in pairs(counts) do
  local k = #told
  told[k + 1], told[k + 2], told[k + 3] = names, of[1], of[2]
end
if #found < 2 * most then return {now, {'', 0, told, whole}} end
local score, read = found[#found], 0
for i = #found, 2, -2 do
  if found[i] ~= score then break end
  read = read + 1
end
if score == from then read = read + ARGV[6] end
return {now, {score, read, told, whole}}
