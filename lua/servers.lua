-- Writes down what a server says of itself, and forgets what is too old.
-- KEYS    servers
-- ARGV    the server's id, its line, ms after which the line is gone
-- returns the lines of all servers that are there
-- bound   a field for each server that was there within that time
local call, time = redis.call, redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
call('HSET', KEYS[1], ARGV[1], (now + ARGV[3]) .. ' ' .. ARGV[2])
call('PEXPIRE', KEYS[1], ARGV[3])
local ids, lines = call('HKEYS', KEYS[1]), {}
local found = call('HMGET', KEYS[1], unpack(ids))
for i = 1, #ids do
  local ends, line = string.match(found[i], '^(%d+) (.*)$')
  if ends and tonumber(ends) > now then
    lines[#lines + 1] = line
  else
    call('HDEL', KEYS[1], ids[i])
  end
end
return lines
