-- Writes down what a server says of itself, and forgets what is too old.
-- KEYS    servers
-- ARGV    the server's id (no spaces), its line, ms after which the line is gone
-- returns the lines of all servers that are there
-- bound   a field for each server that was there within that time
local call, time = redis.call, redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- First, since a full Redis refuses other first writes.
call('HDEL', KEYS[1], ARGV[1])
call('HSET', KEYS[1], ARGV[1], (now + ARGV[3]) .. ' ' .. ARGV[1] .. ' ' .. ARGV[2])
call('PEXPIRE', KEYS[1], ARGV[3])
local lines = {}
for _, value in ipairs(call('HVALS', KEYS[1])) do
  local ends, id, line = string.match(value, '^(%d+) (%S+) (.*)$')
  if ends and tonumber(ends) > now then
    lines[#lines + 1] = line
  elseif ends then
    call('HDEL', KEYS[1], id)
  end
end
return lines
