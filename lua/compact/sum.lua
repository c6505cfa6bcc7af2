-- Adds up what some queues of a namespace have.
-- KEYS    the partition's guard
-- ARGV    namespace, the name behind which to begin ('' = the first), how many queues
-- returns {the last name ('' = there are no more), jobs, bytes, queues}
-- bound   500 queues (the caller's)
local all = names_behind(ARGV[1], ARGV[2], tonumber(ARGV[3]))
local jobs, bytes = 0, 0
for _, name in ipairs(all) do
  local of = call('HMGET', base .. 'q' .. ARGV[1] .. '/' .. name, 'j', 'b')
  jobs, bytes = jobs + tonumber(of[1] or 0), bytes + tonumber(of[2] or 0)
end
return {#all < tonumber(ARGV[3]) and '' or all[#all], jobs, bytes, #all}
