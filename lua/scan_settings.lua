-- Reads a page of the settings, by key. Forgets records that have ended.
-- KEYS    records | sorted set of their keys
-- ARGV    where to begin and to end (as ZRANGEBYLEX takes them), how many at most, after how many bytes of values the
--         page ends
-- returns {1 if there may be more, per record its key, version, value}
-- bound   500 records, and the bytes that were asked for beyond which the next one goes (the caller's)
local most, bytes = tonumber(ARGV[3]), 0
local keys = call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, most + 1)
local answer = {#keys > most and 1 or 0}
for i = 1, math.min(#keys, most) do
  if bytes >= tonumber(ARGV[4]) then
    answer[1] = 1
    break
  end
  local version, value = read(keys[i])
  if version then
    bytes = bytes + #value
    answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = keys[i], version, value
  else
    call('HDEL', KEYS[1], keys[i])
    call('ZREM', KEYS[2], keys[i])
  end
end
-- A page of nothing but ended records says nothing of where to go on: it is asked for again.
return answer
