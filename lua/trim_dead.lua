-- Removes elements at the old end of dead letters whose jobs no longer exist.
-- KEYS    dead letters
-- ARGV    maximum number of elements to remove; per dead letter the prefix of its job keys
-- returns number of elements removed
-- bound   the caller's, and one element of each dead letter; 250 elements are read at once
local most, dropped = tonumber(ARGV[1]), 0
for list = 1, #KEYS do
  local prefix, step = ARGV[1 + list], 1
  while dropped < most do
    local found = redis.pcall('LRANGE', KEYS[list], -step, -1)
    -- A key of another type belongs to another program.
    if found.err or #found == 0 then break end
    local gone = 0
    while gone < #found and call('EXISTS', prefix .. string.sub(found[#found - gone], 5)) == 0 do gone = gone + 1 end
    if gone > 0 and not redis.pcall('LTRIM', KEYS[list], 0, -gone - 1).ok then return dropped end
    dropped = dropped + gone
    if gone < #found then break end
    step = math.min(250, most - dropped)
  end
end
return dropped
