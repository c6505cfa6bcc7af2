-- Reads a page of the settings, by key. Deletes expired records.
-- KEYS    records | sorted set of their keys
-- ARGV    first and last key (as for ZRANGEBYLEX), maximum number, bytes of values after which the page ends
-- returns {1 if there may be more, per record its key, version, value}
-- bound   500 records, and the requested bytes plus one value (the caller's)
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
-- A page of only expired records has no key to continue from: the caller asks for the same page again.
return answer
