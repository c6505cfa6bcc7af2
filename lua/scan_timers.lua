-- Reads a piece of the timer set, in the order in which jobs are due, and answers what is of one queue.
-- KEYS    timer_set
-- ARGV    prefix of the queue's timer members, how many members to read, where to go on: a score ('' = at the
--         beginning), and among the members of that score 'b' = where those of the queue begin, 'm' = behind the
--         queue's member that ends so, 'a' = behind all; the end of that member
-- returns {members read, where to go on: score ('' = at the end), 'b', 'm' or 'a', end of the member; {per job of the
--         queue: how many members were read with it, score, end of its member}}
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
local found, jobs = call('ZRANGE', t, rank, rank + most - 1, 'WITHSCORES'), {}
local read = #found / 2
for i = 1, read do
  local member = found[2 * i - 1]
  if string.sub(member, 1, #prefix) == prefix then
    local n = #jobs
    jobs[n + 1], jobs[n + 2], jobs[n + 3] = i, found[2 * i], string.sub(member, #prefix + 1)
  end
end
if read < most then return {read, '', '', '', jobs} end
local last = found[2 * read - 1]
if string.sub(last, 1, #prefix) == prefix then
  return {read, found[2 * read], 'm', string.sub(last, #prefix + 1), jobs}
end
return {read, found[2 * read], less(last, prefix) and 'b' or 'a', '', jobs}
