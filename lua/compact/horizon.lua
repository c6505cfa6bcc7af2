-- Tells which jobs need no timer yet.
-- From when on the pump has set no timers yet, in ms: what is near later stays in its bucket until then.
local horizon
local function is_beyond(near)
  if not horizon then
    horizon = tonumber(call('HGET', base .. 'm', 'h') or nil)
    if not horizon then
      horizon = now_ms + 4000
      call('HSET', base .. 'm', 'h', horizon)
    end
  end
  return near >= horizon
end

