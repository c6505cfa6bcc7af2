-- Reads schedules of this partition.
-- KEYS    the partition's guard
-- ARGV    1 = with bodies, their names (ns/name)
-- returns {now, per schedule that is there its row as lua/list_schedules.lua has it}
-- bound   100 schedules (the caller's)
local answer = {now}
for i = 2, #ARGV do
  answer[#answer + 1] = row_of(base .. 's' .. ARGV[i], ARGV[i], ARGV[1] == '1')
end
return answer
