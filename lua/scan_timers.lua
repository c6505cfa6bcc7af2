-- Reads a range of the timer set, in order of due time, and returns the members of one queue.
-- KEYS    timer_set
-- ARGV    prefix of the queue's timer members, how many members to read, where to continue: a score ('' = at the
--         start), and among the members of that score 'b' = before the queue's members, 'm' = after the queue's member
--         with this ending, 'a' = after all; the ending of that member
-- returns {where to continue: score ('' = finished), 'b', 'm' or 'a', ending of the member; {per job of the queue:
--         score, ending of its member}}
-- bound   500 members (the caller's)
local t, prefix, most, from = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local rank = 0
if from ~= '' then
  rank = call('ZCOUNT', t, '-inf', from)
  if ARGV[4] ~= 'a' then
    -- The member may have been removed: search for its position.
    local low, high, target = call('ZCOUNT', t, '-inf', '(' .. from), rank, prefix .. ARGV[5]
    while low < high do
      local middle = math.floor((low + high) / 2)
      local member = call('ZRANGE', t, middle, middle)[1]
      if less(member, target) or ARGV[4] == 'm' and member == target then low = middle + 1 else high = middle end
    end
    rank = low
  end
end
-- Reading scores takes three times the time of reading members, so only this queue's scores are read.
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
