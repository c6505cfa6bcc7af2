-- Precedes each script of settings. KEYS[1] is the hash of records: "version ends value" by key, ends in ms by Redis's
-- clock (0 = never), and in the field without a name the version of the last change.
local call, time = redis.call, redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Returns the version and the value of a record; nothing if it does not exist or has expired.
local function read(key)
  local row = call('HGET', KEYS[1], key)
  if not row then return end
  local version, ends, at = string.match(row, '^(%d+) (%d+) ()')
  if tonumber(ends) > 0 and tonumber(ends) <= now then return end
  return version, string.sub(row, at)
end

-- Returns a version above all earlier ones, including those lost by a failover.
local function new_version()
  local before = tonumber(call('HGET', KEYS[1], '') or 0)
  return string.format('%.0f', math.max(before + 1, time[1] * 1000000 + time[2]))
end
