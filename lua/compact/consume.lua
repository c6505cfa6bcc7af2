-- Hands out ready jobs from one list of queues: takes them, passes over those that are gone, sets the ttr timers, reads.
-- KEYS    the partition's guard
-- ARGV    #queues, their names, the first is served first; '', or of a queue that is spread until when in us jobs must have
--         become ready; per run of jobs with the same ttr: how many, ttr in us
-- returns {now, 1 = there may be more jobs, {per queue that is paused: its number, until when in ms (1 = until it is
--         resumed)}, {per job: queue, place, tries left, due in us, ttl left in ms (-1 = forever), value}, number of the
--         queue that is spread and was not said to be (0 = none): it and those behind were not asked; of one that is said
--         to be: since when in us the next entry is ready (0 = there is none)}
-- bound   1000 entries taken, 2 MiB of values and one value more, 128 jobs (the caller's)
local format = string.format
local MAX_TAKEN, MAX_BYTES, STEP, SKIP_STEP = 1000, 2097152, 32, 250
local count = tonumber(ARGV[1])
local limit, run = tonumber(ARGV[2 + count]), 3 + count
local left_in_run, ttr, wanted = tonumber(ARGV[run]), tonumber(ARGV[run + 1]), 0
for i = run, #ARGV, 2 do wanted = wanted + tonumber(ARGV[i]) end
local taken, bytes, more, handed_out, paused, jobs, cells, set, sets = 0, 0, 0, 0, {}, {}, 0, {}, {}
local spread_queue, head, beyond = 0, 0, false
for n = 1, count do
  local q = queue_of(ARGV[1 + n])
  local list, number, skipping = base .. 'r' .. q.name, q.number, false
  if q.spread and not limit then
    spread_queue = n
    break
  elseif q.pause == 1 or q.pause > now_ms then
    paused[#paused + 1] = n
    paused[#paused + 1] = q.pause
  elseif number then
    local before = handed_out
    while wanted > 0 and more == 0 do
      local step = skipping and SKIP_STEP or math.min(wanted, STEP)
      local entries = call('LPOP', list, step)
      if not entries then break end
      local got = #entries
      taken = taken + got
      local unused, live, from = {}, 0, 1
      while from <= got do
        -- One call for each bucket: neighbours were published together, mostly.
        local bucket, to, values = sub(entries[from], 8, 10), from, nil
        local fields = {sub(entries[from], 11) .. number}
        while to < got and sub(entries[to + 1], 8, 10) == bucket do
          to = to + 1
          fields[to - from + 1] = sub(entries[to], 11) .. number
        end
        if to == from then values = {call('HGET', base .. 'b' .. bucket, fields[1])}
        else values = call('HMGET', base .. 'b' .. bucket, unpack(fields)) end
        for i = from, to do
          local entry, value, field = entries[i], values[i - from + 1], fields[i - from + 1]
          local since = sub(entry, 1, 7)
          beyond = beyond or limit and unpack_of('>I7', entry) > limit
          -- An entry is of the job's last way here, or of none. What a value is made of stands in compact/value.lua; here
          -- it is read without a table, for this is done for every job.
          local flags = value and sub(value, 2, 8) == since and byte(value) or DEAD
          local state = flags % 4
          if state ~= DEAD then
            local kept, at, tries, ends_at, ends6 = flags % 64 - state, 9, 1, nil, ''
            if flags >= 128 then tries, at = unpack_of('>H', value, 9), 11
            elseif flags >= 64 then tries, at = byte(value, 9), 10 end
            if kept % 8 >= 4 then
              ends_at, ends6 = unpack_of('>I6', value, at), sub(value, at, at + 5)
              at = at + 6
            end
            if kept % 16 >= 8 then kept, at = kept - 8, at + 4 end
            if state == RUNNING then at = at + 7 end
            if ends_at and ends_at <= now_ms then
              -- It has ended.
            elseif beyond or wanted == 0 or bytes >= MAX_BYTES then
              live = live + 1
              unused[#unused + 1] = entry
            else
              -- A microsecond apart, so that jobs that come back together keep their order.
              local place, due, behind = sub(entry, 8), now + ttr + handed_out, sub(value, at)
              local body = kept % 32 < 16 and behind or call('GET', base .. 'x' .. place .. q.name) or ''
              live, tries, handed_out, kept = live + 1, tries - 1, handed_out + 1, kept + RUNNING
              if tries > 255 then kept, ends6 = kept + 128, pack('>H', tries) .. ends6
              elseif tries ~= 1 then kept, ends6 = kept + 64, char(tries) .. ends6 end
              local pairs_of = sets[bucket] or {}
              sets[bucket] = pairs_of
              local k = #pairs_of
              pairs_of[k + 1], pairs_of[k + 2] = field, char(kept) .. pack('>I7', due) .. ends6 .. since .. behind
              -- As text: Redis writes a number of Lua with %.17g, which takes four times as long.
              set[2 * handed_out - 1], set[2 * handed_out] = format('%d', due), 'r' .. bucket .. field
              jobs[cells + 1], jobs[cells + 2], jobs[cells + 3], jobs[cells + 4] = n, place, tries, due
              jobs[cells + 5], jobs[cells + 6] = ends_at and ends_at - now_ms or -1, body
              cells, bytes = cells + 6, bytes + #body
              wanted, left_in_run = wanted - 1, left_in_run - 1
              if left_in_run == 0 and wanted > 0 then
                run = run + 2
                left_in_run, ttr = tonumber(ARGV[run]), tonumber(ARGV[run + 1])
              end
            end
          end
        end
        from = to + 1
      end
      -- More were taken than are handed out: they go back to the head, as they stood.
      for i = #unused, 1, -1 do call('LPUSH', list, unused[i]) end
      if wanted > 0 and (taken >= MAX_TAKEN or bytes >= MAX_BYTES) then more = 1 end
      if beyond or got < step and more == 0 then break end
      skipping = live == 0
    end
    if handed_out > before then q.running, q.changed = q.running + handed_out - before, true end
  end
  if limit and number then
    local first = call('LINDEX', list, 0)
    head = first and unpack_of('>I7', first) or 0
  end
  if wanted == 0 or more == 1 then break end
end
for bucket, all in pairs(sets) do call('HSET', base .. 'b' .. bucket, unpack(all)) end
if handed_out > 0 then call('ZADD', timers, unpack(set)) end
save()
return {now, more, paused, jobs, spread_queue, head}
