-- Reads the schedules that are due, the earliest first. Forgets when those are due that are not there any more.
-- KEYS    sorted set of schedules by when they are due, hash of figures
-- ARGV    what the keys of their hashes begin with, how many at most, where a scan of all goes on ('' = only those that are due),
--         after how many bytes of bodies the answer ends, within how many ms they have become due ('' = since ever)
-- returns {now, when the next one is due in ms ('' = there is none), how many are in each of five states, name and count
--         of each kind of placer, where the scan goes on ('0' = it has ended, '' = there was none), per schedule its row as
--         lua/list_schedules.lua has it}
-- bound   256 schedules, or what a step of ZSCAN has, and the bytes that were asked for beyond which the next one goes (the caller's)
local due_key, figures, base_of, most, ever, most_bytes, within = KEYS[1], KEYS[2], unpack(ARGV)
local bytes, taken, time = 0, 0, math.floor(now / 1000)
local counts, by = {0, 0, 0, 0, 0}, {}
local all = call('EXISTS', figures) == 1 and call('HGETALL', figures) or {}
for i = 1, #all, 2 do
  local state, placer = tonumber(all[i]), string.match(all[i], '^by:(.+)$')
  if state then counts[state + 1] = tonumber(all[i + 1]) end
  if placer then by[#by + 1], by[#by + 2] = placer, all[i + 1] end
end
local answer, from, found = {now, '', counts, by, ''}, within == '' and '-inf' or text_of(time - within), {}
if ever == '' then
  found = call('ZRANGEBYSCORE', due_key, from, text_of(time), 'LIMIT', 0, most)
else
  local scan = call('ZSCAN', due_key, ever, 'COUNT', most)
  answer[5] = scan[1]
  for i = 1, #scan[2], 2 do found[#found + 1] = scan[2][i] end
end
for _, member in ipairs(found) do
  if bytes > tonumber(most_bytes) and ever == '' then break end
  local row = row_of(base_of .. member, member, ever == '')
  if row then
    bytes, taken = bytes + #(row[10] or ''), taken + 1
    answer[#answer + 1] = row
  else
    call('ZREM', due_key, member)
  end
end
local next = call('ZRANGEBYSCORE', due_key, from, '+inf', 'WITHSCORES', 'LIMIT', ever == '' and taken or 0, 1)
if next[2] and next[2] ~= 'inf' then answer[2] = next[2] end
return answer
