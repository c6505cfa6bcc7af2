-- The delayed jobs of a queue in a group of far buckets that begin to be near at the same time.
-- KEYS    the partition's guard
-- ARGV    name of the queue, from when on in ms the group is near, its first bucket is behind this one ('' = from the
--         first), its last bucket ('' = to be found, and later groups may be looked for), how many buckets at most
-- returns {horizon in ms, ms, last bucket of the group ('' = there is none), {per job: due time in us, sequence number,
--         place}}
-- bound   four times 16 buckets of 128 jobs (the caller's), and a search by halves
local q, from, behind, last, most = queue_of(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5])
local group, at = {}, from
local rank = rank_behind(far, ARGV[2], behind)
local all = call('ZRANGE', far, rank, rank + 4 * most - 1, 'WITHSCORES')
for i = 1, #all, 2 do
  local score = tonumber(all[i + 1])
  if last ~= '' then
    if score ~= from or less(last, all[i]) then break end
  else
    if #group == 0 then at = score end
    if score ~= at or #group == most then break end
  end
  group[#group + 1] = all[i]
end
local jobs = {}
for _, bucket in ipairs(q.number and group or {}) do
  local of = call('HGETALL', base .. 'b' .. bucket)
  for i = 1, #of, 2 do
    local place, number = split(bucket .. of[i], 1)
    if number == q.number then
      local job = read(of[i + 1])
      -- One that was released may have a timer, although its bucket is far for another one.
      local member = (job.seq and 's' .. pack('>I4', job.seq) or 'd') .. bucket .. of[i]
      if job.state == WAITING and job.due >= at * 1000 and not call('ZSCORE', timers, member) then
        local k = #jobs
        jobs[k + 1], jobs[k + 2], jobs[k + 3] = job.due, job.seq or -1, place
      end
    end
  end
end
return {tonumber(call('HGET', base .. 'm', 'h') or 0), at, last ~= '' and last or group[#group] or '', jobs}
