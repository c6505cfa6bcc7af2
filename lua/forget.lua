-- Stands before each script that forgets jobs. A timer has the tries of its job in its name. Of a job that this server has
-- handed out it knows them. The timer of another one, and of one that another server has handed out since, is looked for by
-- the names that it can have, with 255 tries at most.
-- A timer that is not found stays until it is due.
--
-- Forgets the timers of jobs that were there, by the jobs' keys: of all of them first those with few tries. It looks for
-- 1,024 names. Returns how many are gone: {ns/queue, delayed, running, ...}, and how many of all these are running.
local function forget_timers(timer_set, keys)
  local gone, index, all_running, names_left, rest = {}, {}, 0, 1024, {}
  local function count(group, kind)
    local at = index[group]
    if not at then
      at = #gone + 1
      index[group] = at
      gone[at], gone[at + 1], gone[at + 2] = group, 0, 0
    end
    if kind == 'r' then
      all_running, at = all_running + 1, at + 2
    elseif kind == 'd' then
      at = at + 1
    else
      return
    end
    gone[at] = gone[at] + 1
  end
  -- Only a running job may have no tries left.
  for i, key in ipairs(keys) do
    names_left = names_left - 1
    if names_left < 0 then return gone, all_running end
    local namespace, queue, id = string.match(key, '^j/([^/]*)/([^/]*)/(.*)$')
    local head = struct.pack('<H', #namespace) .. namespace .. struct.pack('<H', #queue) .. queue
    local tail, group = struct.pack('<H', #id) .. id, namespace .. '/' .. queue
    if call('ZREM', timer_set, head .. '\0\0' .. tail) == 1 then count(group, 'r') else rest[#rest + 1] = {head, tail, group} end
  end
  local from = 1
  for _, to in ipairs({7, 63, 255}) do
    local left = {}
    for _, job in ipairs(rest) do
      local names, found = {}, {}
      names_left = names_left - (to - from + 1)
      if names_left < 0 then return gone, all_running end
      for tries = from, to do names[#names + 1] = job[1] .. struct.pack('<H', tries) .. job[2] end
      local scores = call('ZMSCORE', timer_set, unpack(names))
      for n, name in ipairs(names) do
        if scores[n] then
          found[#found + 1] = name
          count(job[3], kind_of(scores[n]))
        end
      end
      if #found > 0 then call('ZREM', timer_set, unpack(found)) else left[#left + 1] = job end
    end
    rest, from = left, to + 1
  end
  return gone, all_running
end
