-- Shows a part of a publish that compact/prepare.lua has kept, or drops it.
-- KEYS    the partition's guard
-- ARGV    the publish's id; what is done: decide (show it: the others follow), show, drop, whose (which partition decides),
--         ask (what was decided here), forget (all parts are shown); of decide what became of all jobs of the publish
-- returns of decide and show as compact/publish_with.lua; {now, 'gone'}: it is not here; of drop {now, 'dropped'}; of whose {now,
--         'held', partition}; of ask {now, 'shown', 'held' or 'gone'}
-- bound   64 jobs, and 1 MiB of values or one value (the caller's)
local id, what = ARGV[1], ARGV[2]
local held, done = base .. 'P' .. id, base .. 'D' .. id
if what == 'forget' then
  call('DEL', done)
  return {now, 'gone'}
elseif what == 'ask' then
  return {now, call('EXISTS', done) == 1 and 'shown' or call('EXISTS', held) == 1 and 'held' or 'gone'}
end
local kept = call('GET', held)
if not kept then return {now, 'gone'} end
local first, from, locks, args, stored, judged = unpack(cmsgpack.unpack(kept))
if what == 'whose' then return {now, 'held', first} end
local answer = {now, 'dropped'}
if what ~= 'drop' then
  answer = publish(args, nil, id, ARGV[3], tonumber(from), judged)
  -- A week: so long a part may be away.
  if what == 'decide' and answer[2] == 'done' then call('SET', done, 1, 'PX', 604800000) end
end
-- Values that were stored for it before have no end since it is kept.
if answer[2] ~= 'done' then
  for _, value in ipairs(stored or {}) do call('UNLINK', value) end
end
call('DEL', held)
call('ZREM', base .. 'W', id)
for _, lock in ipairs(locks) do
  if call('GET', base .. 'L' .. lock) == id then call('DEL', base .. 'L' .. lock) end
end
return answer
