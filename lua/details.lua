-- Inserted after lua/clock.lua into each script that uses a job's details: a hash beside lmstfy's keys with `key`,
-- `tries` and `until` (for a job published with a key) and `reason`. `tries` is the job's maximum; with more than 1,024
-- tries, the number left at its last delivery. `until` is the millisecond when its ttl ends. A list names every job
-- with details as ns/queue/id. Acks, expiry and lmstfy's servers leave details behind, so every addition to the list
-- examines its two oldest entries and deletes the details of jobs that no longer exist.
--
-- Delayed jobs are due at even microseconds and running ones at odd ones, which distinguishes them in timer_set. A
-- score of whole seconds is lmstfy's.

-- Returns the due time of a score in us, and whether it is a running job's.
local function read_score(text)
  local at = tonumber(text)
  local second = math.floor(at)
  local part = (at - second) * 1000000
  if part == 0 then return second * 1000000, true end
  -- Whole seconds of delayed jobs are written half a microsecond later.
  if part < 0.75 then return second * 1000000, false end
  part = math.floor(part + 0.5)
  return second * 1000000 + part, part % 2 == 1
end

-- Compares bytes, as Redis does. Lua's own comparison depends on the locale.
local function less(a, b)
  local from = 1
  while from < #a and string.sub(a, from, from + 7) == string.sub(b, from, from + 7) do from = from + 8 end
  for i = from, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- Finds a job's timer among the member names possible with `most` tries: 1,281 at most. For a job with more than 1,023
-- tries, it misses a timer that lmstfy's servers have set 255 times since our last delivery. Returns the score, the
-- tries and the member, or nothing.
local function find_timer(timer_set, prefix, id, most)
  local tail, many = struct.pack('<H', #id) .. id, math.max(1024, most - 255)
  -- Undoing a delivery restores one try.
  for _, range in ipairs({{0, math.min(31, most)}, {32, math.min(1023, most)}, {many, math.min(most + 1, 65535)}}) do
    local members = {}
    for tries = range[1], range[2] do
      members[#members + 1] = prefix .. struct.pack('<H', tries) .. tail
    end
    if #members > 0 then
      local scores = call('ZMSCORE', timer_set, unpack(members))
      for i = 1, #members do
        if scores[i] then return scores[i], range[1] + i - 1, members[i] end
      end
    end
  end
end

-- Returns the key that a job holds, or false. A dead job holds none: death removes or changes its expiry, and so does a
-- respawn, even by lmstfy's servers.
local function key_of(job, details)
  local known = call('HMGET', details, 'key', 'until')
  if not known[1] then return false end
  local ends, at = redis.pcall('PEXPIRETIME', job), tonumber(known[2])
  if type(ends) == 'number' then return ends == at and known[1] end
  -- Redis 6.2 reports only the remaining time, measured between `now` and `time`.
  local left, time = call('PTTL', job), call('TIME')
  local first, last = math.floor(now / 1000) + left, time[1] * 1000 + math.floor(time[2] / 1000) + left
  return left >= 0 and at ~= nil and first <= at and at <= last and known[1]
end

-- Whether a destroy has set jobs of a queue aside. A job without a timer may be among them, and then holds no key.
local function has_set_aside(group) return call('EXISTS', base .. 'dormouse/dropped/' .. group) == 1 end

-- Prefixes of the keys of details and of job keys, like `job_base`; ns/queue/.. follows.
local details_base, key_base = base .. 'dormouse/details/', base .. 'dormouse/key/'

-- Releases the key of a job, given its ns/queue and id.
local function drop_key(group, id)
  local details = details_base .. group .. '/' .. id
  local key = call('HGET', details, 'key')
  if not key then return end
  local record = key_base .. group .. '/' .. key
  if call('GET', record) == id then call('DEL', record) end
  call('HDEL', details, 'key', 'tries', 'until')
end

-- Writes details of the job `name`, ns/queue/id, and cleans up two older ones.
local function add_details(list, name, ...)
  local details = details_base .. name
  local known = call('EXISTS', details) == 1
  call('HSET', details, ...)
  if known then return end
  call('LPUSH', list, name)
  for _ = 1, 2 do
    local old = call('RPOP', list)
    if not old then break end
    if call('EXISTS', job_base .. old) == 1 then
      call('LPUSH', list, old)
    else
      drop_key(string.match(old, '^(.*)/(.*)$'))
      call('UNLINK', details_base .. old)
    end
  end
end
