-- Reads a range of the buckets, by earliest due time, and returns the buckets of one queue, or all.
-- KEYS    sorted set of buckets
-- ARGV    prefix of the queue's buckets ('' = all), where to begin: a score ('' = the first), how many buckets with it
--         and later to skip; how many to read
-- returns {where to continue: a score ('' = finished), how many to skip; {per bucket found: its name, its score}}
-- bound   500 buckets (the caller's)
local prefix, ours = ARGV[1], {}
local found, next_score, skip = read_buckets(KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4]))
for i = 1, #found, 2 do
  if string.sub(found[i], 1, #prefix) == prefix then
    ours[#ours + 1], ours[#ours + 2] = found[i], found[i + 1]
  end
end
return {next_score, skip, ours}
