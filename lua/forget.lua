-- Precedes each script that deletes jobs. A timer member contains its job's tries. This server knows them for jobs that
-- it delivered last; any other timer is searched for by its possible names, up to 255 tries. A timer that is not found
-- stays until it is due.
--
-- Deletes the timers of jobs that existed, given the jobs' keys: first the names with few tries, for all jobs. It tries
-- 1,024 names. Appends to `gone` the key of each job whose timer it deleted, and the timer's score; '' unless `exact`,
-- since reading the score costs a quarter of an ack.
local function forget_timers(timer_set, keys, gone, exact)
  if #keys == 0 then return end
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
      local scores, before = exact and call('ZMSCORE', timer_set, unpack(names)), #gone
      for i = 1, scores and #names or 0 do
        if scores[i] then
          call('ZREM', timer_set, names[i])
          gone[#gone + 1], gone[#gone + 2] = key, scores[i]
        end
      end
      if not exact and call('ZREM', timer_set, unpack(names)) > 0 then
        gone[#gone + 1], gone[#gone + 2] = key, ''
      end
      if #gone == before then rest[#rest + 1] = key end
    end
    keys, from = rest, to + 1
  end
end
