-- Reads the schedules that are due, the earliest first. Forgets when those are due that are not there any more.
-- KEYS    sorted set of schedules by when they are due, hash of figures
-- ARGV    what the keys of their hashes begin with, how many at most, 1 = whenever they are due, after how many bytes of bodies
--         the answer ends, within how many ms they have become due ('' = since ever)
-- returns {now, when the next one is due in ms ('' = there is none), how many are in each of five states, per schedule its
--         row as lua/list_schedules.lua has it}
-- bound   256 schedules, and the bytes that were asked for beyond which the next one goes (the caller's)
local most, bytes, till = tonumber(ARGV[2]), 0, ARGV[3] == '1' and '+inf' or string.format('%.0f', math.floor(now / 1000))
local counts = call('HMGET', KEYS[2], 0, 1, 2, 3, 4)
for i = 1, 5 do counts[i] = tonumber(counts[i]) or 0 end
local answer, taken = {now, '', counts}, 0
local from = ARGV[5] == '' and '-inf' or string.format('%.0f', math.floor(now / 1000) - ARGV[5])
local due = call('ZRANGEBYSCORE', KEYS[1], from, till, 'LIMIT', 0, most)
for _, member in ipairs(due) do
  if bytes > tonumber(ARGV[4]) then break end
  local row = call('HMGET', ARGV[1] .. member, 'revision', 'step', 'state', 'next', 'queue', 'text', 'progress', 'landed', 'body')
  if row[1] then
    bytes, taken = bytes + #(row[9] or ''), taken + 1
    answer[#answer + 1] = {member, unpack(row, 1, 9)}
  else
    call('ZREM', KEYS[1], member)
  end
end
local next = call('ZRANGEBYSCORE', KEYS[1], from, '+inf', 'WITHSCORES', 'LIMIT', taken, 1)
if next[2] and next[2] ~= 'inf' then answer[2] = next[2] end
return answer
