-- Adds up what some queues of a namespace have.
-- KEYS    the partition's guard
-- ARGV    namespace, the name behind which to begin ('' = the first), how many queues
-- returns {the last name ('' = there are no more), jobs, bytes, queues}
-- bound   500 queues (the caller's)
local all = names_behind(ARGV[1], ARGV[2], tonumber(ARGV[3]))
local jobs, bytes, names = 0, 0, 0
for _, name in ipairs(all) do
  local q = queue_of(ARGV[1] .. '/' .. name)
  jobs, bytes = jobs + q.jobs, bytes + q.bytes
  -- A queue that is spread counts at home.
  if q.spread ~= PART then names = names + 1 end
end
return {#all < tonumber(ARGV[3]) and '' or all[#all], jobs, bytes, names}
