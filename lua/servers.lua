-- Writes down what a server says of itself, and forgets what is too old.
-- KEYS    servers
-- ARGV    the server's id, its line, ms after which the line is gone
-- returns the lines of all servers that are there
-- bound   a field for each server that was there within that time
local call, time = redis.call, redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
call('HSET', KEYS[1], ARGV[1], (now + ARGV[3]) .. ' ' .. ARGV[2])
call('PEXPIRE', KEYS[1], ARGV[3])
local found, lines = call('HGETALL', KEYS[1]), {}
for i = 1, #found, 2 do
  local ends, line = string.match(found[i + 1], '^(%d+) (.*)$')
  if ends and tonumber(ends) > now then
    lines[#lines + 1] = line
  else
    call('HDEL', KEYS[1], found[i])
  end
end
return lines
