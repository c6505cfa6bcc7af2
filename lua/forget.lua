-- Stands before each script that forgets jobs. A timer has the tries of its job in its name. Of a job that this server has
-- handed out it knows them. The timer of another one, and of one that another server has handed out since, is looked for by
-- the names that it can have, with 255 tries at most.
-- A timer that is not found stays until it is due.
--
-- Forgets the timers of jobs that were there, by the jobs' keys: of all of them first those with few tries. It looks for
-- 1,024 names.
local function forget_timers(timer_set, keys)
  local names_left, from = 1024, 0
  for _, to in ipairs({1, 7, 63, 255}) do
    local rest = {}
    for _, key in ipairs(keys) do
      local namespace, queue, id = string.match(string.sub(key, #base + 1), '^j/([^/]*)/([^/]*)/(.*)$')
      local head = struct.pack('<H', #namespace) .. namespace .. struct.pack('<H', #queue) .. queue
      local tail, names = struct.pack('<H', #id) .. id, {}
      for tries = from, to do names[#names + 1] = head .. struct.pack('<H', tries) .. tail end
      names_left = names_left - #names
      if names_left < 0 then return end
      if call('ZREM', timer_set, unpack(names)) == 0 then rest[#rest + 1] = key end
    end
    keys, from = rest, to + 1
  end
end
