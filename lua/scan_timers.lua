-- Reads a piece of the timer set, in the order in which jobs are due, and answers what is of one queue.
-- KEYS    timer_set
-- ARGV    prefix of the queue's timer members, how many members to read, where to go on: a score ('' = at the
--         beginning), and among the members of that score 'b' = where those of the queue begin, 'm' = behind the
--         queue's member that ends so, 'a' = behind all; the end of that member
-- returns {where to go on: score ('' = at the end), 'b', 'm' or 'a', end of the member; {per job of the queue: score, end
--         of its member}}
-- bound   500 members (the caller's)
local t, prefix, most, from = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local rank = 0
if from ~= '' then
  rank = call('ZCOUNT', t, '-inf', from)
  if ARGV[4] ~= 'a' then
    -- The member may be gone: look for the place where it was.
    local low, high, target = call('ZCOUNT', t, '-inf', '(' .. from), rank, prefix .. ARGV[5]
    while low < high do
      local middle = math.floor((low + high) / 2)
      local member = call('ZRANGE', t, middle, middle)[1]
      if less(member, target) or ARGV[4] == 'm' and member == target then low = middle + 1 else high = middle end
    end
    rank = low
  end
end
-- Scores cost three times as much as members: only those of the queue's are asked for.
local found, ours, jobs = call('ZRANGE', t, rank, rank + most - 1), {}, {}
for i = 1, #found do
  if string.sub(found[i], 1, #prefix) == prefix then ours[#ours + 1] = found[i] end
end
local scores = #ours > 0 and call('ZMSCORE', t, unpack(ours))
for i = 1, #ours do
  jobs[2 * i - 1], jobs[2 * i] = scores[i], string.sub(ours[i], #prefix + 1)
end
if #found < most then return {'', '', '', jobs} end
local last = found[#found]
local at = call('ZSCORE', t, last)
if last == ours[#ours] then return {at, 'm', jobs[#jobs], jobs} end
return {at, less(last, prefix) and 'b' or 'a', '', jobs}
