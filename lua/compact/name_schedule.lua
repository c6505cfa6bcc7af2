-- The names of a namespace's schedules, in the partition that the namespace decides: in which partition each schedule is. A
-- name comes before its schedule and goes after it, so it may stand there alone for a while. Each claim has a mark of its own,
-- and a name goes only with the mark that was read before its schedule was seen to be gone. Behind a mark stands the revision
-- with which the schedule has moved last (of a new name the highest one that was deleted): a move that comes late changes nothing.
-- KEYS    the partition's guard
-- ARGV    namespace, what to do, and what that takes:
--         claim: name, partition, mark, how many names there may be: the name is there, and has this mark; and dry = 1 if
--         it would be
--         find: name
--         page: where to begin and to end (as ZRANGEBYLEX takes them), how many at most
--         move: name, partition from, partition to, the revision that moves
--         drop: name, mark, a revision that the name has had
-- returns {now, ..}: claim: the partition (-1 = there are too many), a revision below that of the new schedule, the mark;
--         find: its partition and mark ('' = there is none); page: name, partition, mark of each; move, drop: 1 if it was
--         done
-- bound   101 names (the caller's)
local marks, names = base .. 'y' .. ARGV[1], base .. 'z' .. ARGV[1]
local what, name = ARGV[2], ARGV[3]
local held = what ~= 'page' and call('HGET', marks, name)
local partition, mark = string.match(held or '', '^(%d+) (.*)$')
local stamp, last = string.match(mark or '', '^(%S+ %S+) ?(%d*)$')
last = tonumber(last) or 0
if what == 'claim' then
  if not held and call('ZCARD', names) >= tonumber(ARGV[6]) then return {now, -1, 0, ''} end
  local gone = tonumber(call('GET', base .. 'g') or 0)
  mark = string.format('%s %.0f', ARGV[5], held and last or gone)
  if ARGV[7] ~= '1' then
    call('HSET', marks, name, (partition or ARGV[4]) .. ' ' .. mark)
    call('ZADD', names, 0, name)
  end
  return {now, tonumber(partition or ARGV[4]), math.max(last, gone), mark}
elseif what == 'find' then
  return {now, partition or '', mark or ''}
elseif what == 'page' then
  local answer = {now}
  for _, one in ipairs(call('ZRANGEBYLEX', names, ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5])) do
    local partition, mark = string.match(call('HGET', marks, one) or '', '^(%d+) (.*)$')
    if partition then
      local n = #answer
      answer[n + 1], answer[n + 2], answer[n + 3] = one, partition, mark
    end
  end
  return answer
elseif what == 'move' then
  if partition ~= ARGV[4] or tonumber(ARGV[6]) <= last then return {now, 0} end
  call('HSET', marks, name, ARGV[5] .. ' ' .. (stamp or mark) .. ' ' .. ARGV[6])
  return {now, 1}
end
local gone = tonumber(ARGV[5])
if gone > tonumber(call('GET', base .. 'g') or 0) then call('SET', base .. 'g', string.format('%.0f', gone)) end
if mark ~= ARGV[4] then return {now, 0} end
call('HDEL', marks, name)
call('ZREM', names, name)
return {now, 1}
