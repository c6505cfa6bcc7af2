-- Counts packed jobs, by due time.
-- KEYS    sorted set of buckets
-- ARGV    prefix of the buckets to count ('' = all), length of an interval in ms (0 = all jobs in one), where to begin: a
--         score ('' = the first), how many buckets with it and later to skip; how many to read
-- returns {now, where to continue: a score ('' = finished), how many to skip; {per interval with jobs: its start in ms
--         (-1 = already due), jobs}}
-- bound   16 buckets (the caller's), or 500 whose jobs are not read
local prefix, step, counts, told = ARGV[1], tonumber(ARGV[2]), {}, {}
local found, next_score, skip = read_buckets(KEYS[1], ARGV[3], ARGV[4], tonumber(ARGV[5]))
local function add(begins, jobs) counts[begins] = (counts[begins] or 0) + jobs end
for i = 1, #found, 2 do
  local key = packed_base .. found[i]
  if string.sub(found[i], 1, #prefix) ~= prefix then
    -- Another queue's.
  elseif step == 0 then
    add(0, call('HLEN', key))
  else
    local jobs = call('HGETALL', key)
    for at = 1, #jobs, 2 do
      local tries, due = read_packed(jobs[at], jobs[at + 1])
      if tries then add(due <= now and -1 or math.floor(due / 1000 / step) * step, 1) end
    end
  end
end
for begins, jobs in pairs(counts) do told[#told + 1], told[#told + 2] = begins, jobs end
return {now, next_score, skip, told}
