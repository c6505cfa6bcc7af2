-- Hands out ready jobs to several orders: pops, skips the dead ones, arms ttr, reads, all in one step.
-- KEYS    timer_set | ready lists | their dead letters
-- ARGV    #orders, #lists
--         per list: prefix of its job keys, prefix of its timer members
--         per order: #queues, the lists in order of priority, #wants, and per want: count, ttr in us
-- returns {now, elements that were garbage, {orders cut short by the bound}, {lists that are none: another
--         type}, {per job: order, want, list, id, tries left, due in us, ttl left in ms (-1 = forever), value}}
-- bound   1000 elements popped, about 8 MiB of values (32 values more at most), for all orders together
local STEP, MOST, BYTES = 32, 1000, 8388608
local orders, lists = tonumber(ARGV[1]), tonumber(ARGV[2])
local garbage, cut, out, timers, nt, no = 0, {}, {}, {}, 0, 0
local popped, bytes = 0, 0
-- What is popped and not armed is lost, so nothing may fail after the first pop. A timer set of another type
-- fails here, a list of another type is passed over, and so is one that was found empty.
call('ZCARD', KEYS[1])
local bad, over = {}, {}
local a = 3 + 2 * lists
for o = 1, orders do
  local nq = tonumber(ARGV[a])
  local qs, nw = a + 1, tonumber(ARGV[a + 1 + nq])
  local ws, need = a + 2 + nq, 0
  a = ws + 2 * nw
  for w = 0, nw - 1 do need = need + tonumber(ARGV[ws + 2 * w]) end
  local w, left, short = 0, tonumber(ARGV[ws]), false
  for i = qs, qs + nq - 1 do
    local l = tonumber(ARGV[i])
    local list, prefix, member = KEYS[1 + l], ARGV[1 + 2 * l], ARGV[2 + 2 * l]
    local step = need
    while need > 0 and not over[l] do
      if popped >= MOST or bytes >= BYTES then short = true; break end
      local n = step < STEP and step or STEP
      local els = redis.pcall('RPOP', list, n)
      if not els or els.err then
        over[l] = true
        if els then bad[#bad + 1] = l end
        break
      end
      popped = popped + #els
      local keys, ids, live = {}, {}, 0
      for j = 1, #els do
        local el = els[j]
        ids[j] = string.sub(el, 5)
        if #el < 5 or struct.unpack('<H', el, 3) ~= #el - 4 then ids[j] = false; garbage = garbage + 1 end
        keys[j] = prefix .. (ids[j] or '')
      end
      local values, back = call('MGET', unpack(keys)), {}
      for j = 1, #els do
        local id, value = ids[j], values[j]
        if id and value then
          live = live + 1
          local tries = struct.unpack('<H', els[j])
          if tries == 0 then
            -- Nobody may have it any more, and nobody has forgotten it: that is a dead job.
            call('PERSIST', keys[j])
            local pushed = redis.pcall('LPUSH', KEYS[1 + lists + l], struct.pack('<HH', 1, #id) .. id)
            if type(pushed) == 'table' then
              -- The dead letter is of another type: the pump tries again in a minute.
              timers[nt + 1] = score(now + 60000000)
              timers[nt + 2] = member .. struct.pack('<HH', 0, #id) .. id
              nt = nt + 2
            end
          elseif need == 0 then
            back[#back + 1] = els[j]
          else
            -- One microsecond apart, so that jobs that come back together keep their order.
            local due = now + tonumber(ARGV[ws + 2 * w + 1]) + nt / 2
            timers[nt + 1] = score(due)
            timers[nt + 2] = member .. struct.pack('<HH', tries - 1, #id) .. id
            nt = nt + 2
            out[no + 1] = o; out[no + 2] = w + 1; out[no + 3] = l; out[no + 4] = id
            out[no + 5] = tries - 1; out[no + 6] = due; out[no + 7] = call('PTTL', keys[j]); out[no + 8] = value
            no = no + 8
            bytes = bytes + #value
            need, left = need - 1, left - 1
            if left == 0 and need > 0 then w = w + 1; left = tonumber(ARGV[ws + 2 * w]) end
          end
        end
      end
      -- More were popped than wanted, while the dead were skipped: back to the head they go, as they stood.
      for j = #back, 1, -1 do call('RPUSH', list, back[j]) end
      if #els < n then break end
      -- Among dead ones look at more at a time.
      step = live == 0 and STEP or need
    end
    if need == 0 or short then break end
  end
  if short then cut[#cut + 1] = o end
end
if nt > 0 then call('ZADD', KEYS[1], unpack(timers)) end
return {now, garbage, cut, bad, out}
