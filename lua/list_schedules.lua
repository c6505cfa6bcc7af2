-- Reads a page of a namespace's schedules, by name, or one schedule.
-- KEYS    sorted set of the names in the namespace
-- ARGV    prefix of the keys of their hashes, first and last name (as for ZRANGEBYLEX), maximum number, 1 = with
--         bodies, bytes of bodies after which the page ends
-- returns {now, 1 if there are more, per schedule its row: name, revision, step, state, next, queue, text, progress,
--         landed, body}
-- bound   100 schedules, and the requested bytes plus one body (the caller's)
local most, bytes, bodies = tonumber(ARGV[4]), 0, ARGV[5] == '1'
local names = call('ZRANGEBYLEX', KEYS[1], ARGV[2], ARGV[3], 'LIMIT', 0, most + 1)
local answer = {now, #names > most and 1 or 0}
for i = 1, math.min(#names, most) do
  if bytes > tonumber(ARGV[6]) then
    answer[2] = 1
    break
  end
  local row = row_of(ARGV[1] .. names[i], names[i], bodies)
  if row then
    bytes = bytes + #(row[10] or '')
    answer[#answer + 1] = row
  end
end
return answer
