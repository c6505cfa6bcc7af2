-- Forgets the job that has a key, in whatever state.
-- KEYS    timer_set | the key's record
-- ARGV    ns/queue, prefix of its timer members, what the keys of jobs and of details begin with
-- returns 1 when there was one; -1: what a destroy has set aside must be deleted first, and nothing has changed
-- bound   one job
local id = call('GET', KEYS[2])
if not id then return 0 end
local name = ARGV[1] .. '/' .. id
local there = key_of(ARGV[3] .. name, ARGV[4] .. name)
if there then
  local tries = tonumber(call('HGET', ARGV[4] .. name, 'tries') or 1023)
  local found, _, member = find_timer(KEYS[1], ARGV[2], id, tries)
  if not member and has_set_aside(ARGV[1]) then return -1 end
  call('DEL', ARGV[3] .. name)
  if member then
    call('ZREM', KEYS[1], member)
    count_timers(kind_of(found), ARGV[1], -1)
  end
end
call('DEL', KEYS[2])
call('HDEL', ARGV[4] .. name, 'key', 'tries', 'until')
return there and 1 or 0
