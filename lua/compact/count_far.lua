-- Counts the delayed jobs in some of the far buckets, by when they are due.
-- KEYS    the partition's guard
-- ARGV    whose jobs ('' = all, a namespace and '/', or a queue), length of a step in ms, where to go on: a score ('' = at
--         the beginning) and a bucket; how many buckets to read
-- returns {now, where to go on: score ('' = at the end) and bucket; {per step with some: its beginning in ms (-1 = due
--         already), jobs}}
-- bound   8 buckets of 128 jobs (the caller's), and a search by halves
local score, behind, most = ARGV[3], ARGV[4], tonumber(ARGV[5])
local rank = score == '' and 0 or rank_behind(far, score, behind)
local all = call('ZRANGE', far, rank, rank + most - 1, 'WITHSCORES')
for i = 1, #all, 2 do
  local bucket, from = all[i], all[i + 1] * 1000
  local of, members, dues = call('HGETALL', base .. 'b' .. bucket), {}, {}
  for j = 1, #of, 2 do
    local flags, due = unpack_of('>BI7', of[j + 1])
    if flags % 4 == WAITING and due >= from then
      local _, number = split(bucket .. of[j], 1)
      if is_counted(number) then
        local seq = flags % 16 >= 8 and read(of[j + 1]).seq
        members[#members + 1] = (seq and 's' .. pack('>I4', seq) or 'd') .. bucket .. of[j]
        dues[#members] = due
      end
    end
  end
  -- One that was released may have a timer, although its bucket is far for another one.
  local timed = #members > 0 and call('ZMSCORE', timers, unpack(members)) or {}
  for j = 1, #members do
    if not timed[j] then count(dues[j]) end
  end
end
if #all < 2 * most then return {now, '', '', told()} end
return {now, all[#all], all[#all - 1], told()}
