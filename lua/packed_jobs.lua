-- Follows lua/packed.lua in scripts that read or unpack packed jobs.

-- Returns the tries of a packed job, its due time in us, and the end of its ttl in ms (nil = never). Nothing if it is
-- not a packed job.
local function read_packed(field, value)
  if #field ~= 13 or #value < 12 then return end
  local tries, later, rest = struct.unpack(PACKED_HEAD, value)
  local high, low = struct.unpack('>I2I4', field)
  local delay = struct.unpack('<I4', field, 10)
  local due = ((high % 32768 * 4294967296 + low) + delay * 1000) * 1000 + later
  return tries, due, rest > 0 and math.floor(due / 1000) + rest or nil
end

-- Reads `most` buckets in order of score: from the score `from` ('' = the first) on, except for the first `skip` of them.
-- Returns names and scores, where to continue ('' = there are no more), and how many to skip there.
local function read_buckets(buckets, from, skip, most)
  local lowest = from == '' and '-inf' or from
  local found = call('ZRANGEBYSCORE', buckets, lowest, '+inf', 'WITHSCORES', 'LIMIT', skip, most)
  if #found < 2 * most then return found, '', 0 end
  local last, same = found[#found], 0
  for i = #found, 2, -2 do
    if found[i] ~= last then break end
    same = same + 1
  end
  return found, last, last == from and same + skip or same
end

-- Stores jobs that were taken out of a bucket as strings and timers. `jobs` are pairs of a field and a value. A job
-- whose ttl has ended is dropped. Most of the time goes into the 26 digits of an id, so they have no loop and no table.
local function unpack_jobs(timer_set, bucket, jobs)
  local namespace, queue, three = string.match(bucket, '^([^/]*)/([^/]*)/%x+%-(%x+)$')
  if not namespace then return end
  local D, timers, size = {}, {}, 0
  for i = 0, 31 do D[i] = string.sub('0123456789ABCDEFGHJKMNPQRSTVWXYZ', i + 1, i + 1) end
  local function eight_digits(n)
    local h = n % 32; n = (n - h) / 32
    local g = n % 32; n = (n - g) / 32
    local f = n % 32; n = (n - f) / 32
    local e = n % 32; n = (n - e) / 32
    local d = n % 32; n = (n - d) / 32
    local c = n % 32; n = (n - c) / 32
    local b = n % 32
    return D[(n - b) / 32] .. D[b] .. D[c] .. D[d] .. D[e] .. D[f] .. D[g] .. D[h]
  end
  local names = struct.pack('<H', #namespace) .. namespace .. struct.pack('<H', #queue) .. queue
  local keys, moment = job_base .. namespace .. '/' .. queue .. '/', math.floor(now / 1000)
  three = tonumber(three, 16) * 65536
  for i = 1, #jobs, 2 do
    local field, value = jobs[i], jobs[i + 1]
    local tries, due, ends = read_packed(field, value)
    if tries and (not ends or ends > moment) then
      local high, low, named, first, rest = struct.unpack('>I2I4I2BI4', field)
      local ms = high % 32768 * 4294967296 + low
      local id = (high >= 32768 and '1' or '') .. eight_digits(math.floor(ms / 1024)) .. D[math.floor(ms / 32) % 32]
        .. D[ms % 32] .. eight_digits(three + named) .. eight_digits(first * 4294967296 + rest)
      value = string.sub(value, 13)
      if ends then call('SET', keys .. id, value, 'PX', string.format('%.0f', ends - moment))
      else call('SET', keys .. id, value) end
      timers[size + 1] = score(due)
      timers[size + 2] = names .. struct.pack('<HH', tries, #id) .. id
      size = size + 2
    end
  end
  if size > 0 then call('ZADD', timer_set, unpack(timers)) end
end
