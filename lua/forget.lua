-- Stands before each script that forgets jobs. A timer has the tries of its job in its name. Of a job that this server has
-- handed out it knows them; the timer of another one is looked for by the names that it can have, with 255 tries at most.
-- A timer that is not found stays until it is due.
--
-- Forgets the timer of a job that was there, by the job's key. All calls of one script together look for 1,024 names.
local names_left = 1024
local function forget_timer(timer_set, key)
  local namespace, queue, id = string.match(key, '^j/([^/]*)/([^/]*)/(.*)$')
  local head = struct.pack('<H', #namespace) .. namespace .. struct.pack('<H', #queue) .. queue
  local tail, from = struct.pack('<H', #id) .. id, 0
  for _, to in ipairs({1, 7, 63, 255}) do
    local names = {}
    for tries = from, to do names[#names + 1] = head .. struct.pack('<H', tries) .. tail end
    names_left, from = names_left - #names, to + 1
    if names_left < 0 or call('ZREM', timer_set, unpack(names)) > 0 then return end
  end
end
