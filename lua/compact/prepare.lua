-- A part of a publish over several partitions: looks whether it can be done, and keeps it where nobody sees it. Nobody
-- else gets its keys meanwhile.
-- KEYS    the partition's guard
-- ARGV    the publish's id, the partition that decides, after how many ms others look what became of it, arguments of
--         compact/publish_with.lua
-- returns as compact/publish_with.lua: 'would' if it is kept
-- bound   64 jobs, and 1 MiB of values or one value (the caller's)
local id, args = ARGV[1], {}
for i = 4, #ARGV do args[i - 3] = ARGV[i] end
local answer = publish(args, true, id)
if answer[2] ~= 'would' then return answer end
local judged = table.remove(answer)
local stored = table.remove(answer)
local locks = table.remove(answer)
call('SET', base .. 'P' .. id, cmsgpack.pack({ARGV[2], string.format('%.0f', now), locks, args, stored, judged}))
call('ZADD', base .. 'W', now_ms + ARGV[3], id)
for _, lock in ipairs(locks) do call('SET', base .. 'L' .. lock, id) end
-- For as long as the part is kept.
for _, value in ipairs(stored) do call('PERSIST', value) end
return answer
