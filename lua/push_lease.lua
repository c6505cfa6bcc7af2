-- Divides the slots and the rate of a pushed queue evenly among the servers that ask. A server's slots are reassigned
-- only after it reports holding fewer, so together they never exceed the total. Requests begun before a server's share
-- of the rate shrank, or before it died, count for one more `per`: its lent share.
-- KEYS    servers of the queue | its counts
-- ARGV    server, ms that the lease lasts (0 = the server leaves), total slots, slots wanted, slots held, rate (0 =
--         unlimited), per in ms, rate held, requests in flight, ms when its breaker opened (0 = closed)
-- returns {slots, rate, failed attempts so far, ms since the last success (-1 = never), 1 = no other server pushes the
--         queue}
-- bound   one entry per server that pushes the queue
local call, time = redis.call, redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local me, stands, slots, wants = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local holds, rate, per, rate_held = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
-- The first write takes no memory, since a full Redis refuses only the first write of a script, and pushes must
-- continue.
call('PEXPIRE', KEYS[1], stands + per + 60000)

-- Returns an even share of `total` for the server `me`, at most the number it wants. If there is less than one for
-- each, servers with an open breaker get none, since they could not use it.
local function part(total, all)
  table.sort(all, function(a, b)
    if a.wants ~= b.wants then return a.wants < b.wants end
    if a.open ~= b.open then return a.open end
    return a.name < b.name
  end)
  for i, one in ipairs(all) do
    local gets = math.min(one.wants, math.floor(total / (#all - i + 1)))
    if one.name == me then return gets end
    total = total - gets
  end
  return 0
end

local open = ARGV[10] ~= '0'
local want_slots = {{name = me, wants = wants, open = open}}
local want_rate = {{name = me, wants = math.min(rate, wants * rate), open = open}}
local other_slots, other_rate, mine = 0, 0, {lent = 0, lent_until = 0}
local entries = call('HGETALL', KEYS[1])
for i = 1, #entries, 2 do
  local name, read, s = entries[i], pcall(cjson.decode, entries[i + 1])
  if not read then
    call('HDEL', KEYS[1], name)
  elseif name == me then
    if s.lent_until > now then mine = s end
  else
    local lent = s.lent_until > now and s.lent or 0
    if s.expires > now then
      other_slots = other_slots + s.holds
      other_rate = other_rate + s.rate + lent
      want_slots[#want_slots + 1] = {name = name, wants = s.wants, open = s.open ~= 0}
      want_rate[#want_rate + 1] = {name = name, wants = math.min(rate, s.wants * rate), open = s.open ~= 0}
    elseif s.expires + per > now and s.rate > 0 then
      other_rate = other_rate + s.rate + lent
    elseif s.lent_until > now then
      other_rate = other_rate + lent
    else
      call('HDEL', KEYS[1], name)
    end
  end
end

local answer, lent, lent_until = {0, 0}, mine.lent_until > now and mine.lent or 0, mine.lent_until
if stands > 0 then
  local fair = part(slots, want_slots)
  answer[1] = fair <= holds and fair or math.min(fair, math.max(holds, slots - other_slots))
  if rate > 0 then
    -- A server that wants nothing keeps its share for requests already begun. If lent, that share would count in
    -- addition to the server's own when it wants slots again.
    fair = wants > 0 and part(rate, want_rate) or math.min(rate, rate_held)
    answer[2] = fair <= rate_held and fair or math.min(fair, math.max(rate_held, rate - other_rate - lent))
  end
end
if rate_held > answer[2] and rate > 0 then
  lent, lent_until = lent + rate_held - answer[2], now + per
end
call('HSET', KEYS[1], me, cjson.encode({
  expires = now + stands, wants = wants, holds = stands > 0 and math.max(holds, answer[1]) or 0, rate = answer[2],
  in_flight = tonumber(ARGV[9]), open = tonumber(ARGV[10]), lent = lent, lent_until = lent_until,
}))
if stands == 0 and lent_until <= now then call('HDEL', KEYS[1], me) end
call('PEXPIRE', KEYS[1], stands + per + 60000)
local counts = call('HMGET', KEYS[2], 'failed', 'delivered_at')
local ago = counts[2] and math.max(0, now - counts[2]) or -1
return {answer[1], answer[2], tonumber(counts[1] or 0), ago, #want_slots == 1 and 1 or 0}
