-- Deletes the job that holds a key, in any state.
-- KEYS    timer_set | the key's record
-- ARGV    ns/queue, prefix of its timer members
-- returns 1: deleted, 2: with the timer of a delayed job, 3: of a running one; 0: no job holds the key; -1: jobs that a
--         destroy set aside must be deleted first, and nothing has changed
-- bound   one job
local id = call('GET', KEYS[2])
if not id then return 0 end
local name = ARGV[1] .. '/' .. id
local there, done = key_of(job_base .. name, details_base .. name), 1
if there then
  local tries = tonumber(call('HGET', details_base .. name, 'tries') or 1023)
  local found, _, member = find_timer(KEYS[1], ARGV[2], id, tries)
  if not member and has_set_aside(ARGV[1]) then return -1 end
  call('DEL', job_base .. name)
  if member then
    call('ZREM', KEYS[1], member)
    local _, runs = read_score(found)
    done = runs and 3 or 2
  end
end
call('DEL', KEYS[2])
call('HDEL', details_base .. name, 'key', 'tries', 'until')
return there and done or 0
