-- Reads due schedules, earliest first, or a part of all schedules without their bodies. Removes due times of deleted
-- schedules.
-- KEYS    sorted set of schedules by due time, hash of statistics (lua/step_schedule.lua)
-- ARGV    prefix of the schedules' keys, maximum number of schedules, cursor of a scan of all schedules ('' = due ones),
--         bytes of bodies after which the reply ends, maximum ms since the due time ('' = any)
-- returns {now, due time of the next schedule in ms ('' = none), number of schedules in each of five states, name and
--         count of each kind of scheduler, next cursor ('0' = the end, '' = no scan), per schedule its row as in
--         lua/list_schedules.lua}
-- bound   256 schedules or one step of ZSCAN, and one body beyond the bytes (the caller's)
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
