-- Counts packed jobs, by due time.
-- KEYS    sorted set of buckets
-- ARGV    prefix of the buckets to count ('' = all), length of an interval in ms, where to begin: a score ('' = the
--         first), how many buckets with it and later to skip; how many to read
-- returns {now, where to continue: a score ('' = finished), how many to skip; {per interval with jobs: its start in ms
--         (-1 = already due), jobs}}
-- bound   16 buckets (the caller's)
local prefix, step, counts, told = ARGV[1], tonumber(ARGV[2]), {}, {}
local found, next_score, skip = read_buckets(KEYS[1], ARGV[3], ARGV[4], tonumber(ARGV[5]))
for i = 1, #found, 2 do
  local is_counted = string.sub(found[i], 1, #prefix) == prefix
  local jobs = is_counted and call('HGETALL', packed_base .. found[i]) or {}
  for at = 1, #jobs, 2 do
    local tries, due = read_packed(jobs[at], jobs[at + 1])
    if tries then
      local begins = due <= now and -1 or math.floor(due / 1000 / step) * step
      counts[begins] = (counts[begins] or 0) + 1
    end
  end
end
for begins, jobs in pairs(counts) do told[#told + 1], told[#told + 2] = begins, jobs end
return {now, next_score, skip, told}
