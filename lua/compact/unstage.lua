-- Deletes bodies that compact/stage.lua has stored, of a bulk that was refused.
-- KEYS    the partition's guard
-- ARGV    per job: name of its queue, place
-- returns how many there were
-- bound   64 bodies (the caller's)
local gone = 0
for i = 1, #ARGV, 2 do
  local key = base .. 'x' .. ARGV[i + 1] .. ARGV[i]
  -- One without an end belongs to a job.
  if call('PTTL', key) >= 0 then gone = gone + call('UNLINK', key) end
end
return gone
