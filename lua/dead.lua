-- Inserted after lua/clock.lua into each script that lets jobs die.
--
-- Ends a dying job's ttl: from now on it lives forever, or for `dead_ttl` ms if that is not 0. The new expiry must
-- differ from the one at publish, or the job would appear to hold its key still (details.lua).
local function end_life(key, dead_ttl)
  if dead_ttl == 0 then return call('PERSIST', key) end
  if math.abs(call('PTTL', key) - dead_ttl) < 100 then dead_ttl = dead_ttl + 200 end
  call('PEXPIRE', key, string.format('%.0f', dead_ttl))
end
