-- Follows lua/base.lua and wraps a script that stores or deletes jobs, while a namespace of the pool has a quota. Every
-- SET, DEL and UNLINK of a job's key, and HSET of a packed job, through `call` updates its namespace's usage in one
-- hash. Per namespace with a quota it has: name -> maximum jobs, bytes and queues (0 = unlimited), name/jobs and
-- name/bytes -> usage; in a cluster also name/elsewhere -> jobs and bytes in the other partitions, by the last sample. A
-- script that publishes calls `quotas.admit` before its first write, once it knows all its writes.
local used_key, plain, known = base .. 'dormouse/used', call, {}
-- Keys of deleted jobs whose usage is already credited to new ones.
local credited = {}

-- Returns the namespace of this name, if it has a quota.
local function namespace_called(name)
  if known[name] == nil then
    local row = plain('HMGET', used_key, name, name .. '/jobs', name .. '/bytes', name .. '/elsewhere')
    local jobs, bytes, queues = string.match(row[1] or '', '^(%d+) (%d+) (%d+)$')
    known[name] = jobs and {
      most = {tonumber(jobs), tonumber(bytes), tonumber(queues)}, names = base .. 'm/ns/' .. name,
      new = {}, new_queues = 0,
      has = {tonumber(row[2]) or 0, math.max(tonumber(row[3]) or 0, 0)}, changes = {0, 0},
    } or false
    if jobs then
      local has, more_jobs, more_bytes = known[name].has, string.match(row[4] or '', '^(%d+) (%d+)$')
      has[1], has[2] = has[1] + (tonumber(more_jobs) or 0), has[2] + (tonumber(more_bytes) or 0)
    end
  end
  return known[name] or nil
end

-- Returns the namespace of a job's key, if it has a quota, and the queue.
local function namespace_of(key)
  local name, queue = string.match(string.sub(key, #base + 1), '^j/([^/]*)/([^/]*)/')
  if not name then return end
  return namespace_called(name), queue
end

-- Returns the size of a stored value; nothing if it does not exist.
local function size_of(key)
  local size = redis.pcall('STRLEN', key)
  if type(size) == 'number' and (size > 0 or plain('EXISTS', key) == 1) then return size end
end

local function change(namespace, jobs, bytes)
  for i, by in ipairs({jobs, bytes}) do
    namespace.has[i], namespace.changes[i] = namespace.has[i] + by, namespace.changes[i] + by
  end
end

call = function(command, ...)
  if command == 'SET' then
    local key, value = ...
    local namespace = namespace_of(key)
    if namespace then change(namespace, 1, #value) end
  elseif command == 'HSET' then
    -- A packed job, unless the key is another hash's. Its value has a head of 12 bytes.
    local key, _, value = ...
    local name = string.match(string.sub(key, #base + 1), '^dormouse/packed/([^/]*)/')
    local namespace = name and namespace_called(name)
    if namespace then change(namespace, 1, #value - 12) end
  elseif command == 'DEL' or command == 'UNLINK' then
    local seen = {}
    for _, key in ipairs({...}) do
      local namespace = not seen[key] and namespace_of(key)
      local size = namespace and size_of(key)
      if size then change(namespace, -1, -size) end
      seen[key] = true
    end
  end
  return plain(command, ...)
end

quotas = {}

-- Reserves quota for jobs with these keys and sizes, whose step also deletes the jobs `gone`. `staged` jobs are stored
-- and counted already; their sizes are not known yet. If a quota is exceeded, reserves nothing and returns it: 1 jobs,
-- 2 bytes, 3 queues.
function quotas.admit(keys, sizes, gone, staged)
  local needs = {}
  for i, key in ipairs(keys) do
    local namespace, queue = namespace_of(key)
    if namespace then
      local need = needs[namespace] or {0, 0, 0, new = {}}
      needs[namespace] = need
      need[1], need[2] = need[1] + 1, need[2] + (sizes[i] or size_of(key) or 0)
      if namespace.new[queue] == nil and need.new[queue] == nil then
        need.new[queue] = plain('HEXISTS', namespace.names, queue) == 0
        if need.new[queue] and namespace.most[3] > 0 then need[3] = need[3] + 1 end
      end
    end
  end
  local goes = {}
  for _, key in ipairs(gone) do
    local need = not credited[key] and not goes[key] and needs[namespace_of(key) or 0]
    local size = need and size_of(key)
    if size then need[1], need[2], goes[key] = need[1] - 1, need[2] - size, true end
  end
  for namespace, need in pairs(needs) do
    local has = {namespace.has[1], namespace.has[2], 0}
    for _, key in ipairs(staged) do
      if namespace_of(key) == namespace then has[1], has[2] = has[1] - 1, has[2] - (size_of(key) or 0) end
    end
    if need[3] > 0 then has[3] = plain('HLEN', namespace.names) + namespace.new_queues end
    for i = 1, 3 do
      if namespace.most[i] > 0 and need[i] > 0 and math.max(has[i], 0) + need[i] > namespace.most[i] then return i end
    end
  end
  for namespace, need in pairs(needs) do
    -- A staged job's reservation is not added to `has`: storing it counts it, and `has` is not read after that.
    if #staged == 0 then namespace.has = {namespace.has[1] + need[1], namespace.has[2] + need[2]} end
    for queue, new in pairs(need.new) do namespace.new[queue] = new end
    namespace.new_queues = namespace.new_queues + need[3]
  end
  for key in pairs(goes) do credited[key] = true end
end

-- Like `admit`, for the record of a publish that stores no job: there is no quota for it once the jobs or the bytes are
-- used up.
function quotas.admit_record(name)
  local namespace = namespace_called(name)
  if not namespace then return end
  local most, has = namespace.most, namespace.has
  if most[1] > 0 and has[1] >= most[1] then return 1 end
  if most[2] > 0 and has[2] >= most[2] then return 2 end
end

-- Whether a queue's name may be added to this hash: false if its first publish was refused.
function quotas.may_name(names, queue)
  local name = string.match(string.sub(names, #base + 1), '^m/ns/(.*)$')
  local namespace = name and known[name]
  return not namespace or namespace.new[queue] or plain('HEXISTS', namespace.names, queue) == 1
end

-- Writes the changes of usage.
local function settle()
  for name, namespace in pairs(known) do
    for i, field in ipairs({'/jobs', '/bytes'}) do
      if namespace and namespace.changes[i] ~= 0 then
        plain('HINCRBY', used_key, name .. field, string.format('%.0f', namespace.changes[i]))
      end
    end
  end
end
