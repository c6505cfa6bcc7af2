-- Reads the numbers of queues, and members of the timers.
-- The name of a queue by its number's bytes.
local names = {}
local function name_of(number)
  local name = names[number]
  if name == nil then
    local n = unpack_of('>I' .. #number, number)
    name = call('HGET', base .. 'n' .. floor(n / 64), n % 64)
    names[number] = name
  end
  return name
end

-- The place in a member, or in what a bucket has behind its three bytes, from `at` on; and the queue's number behind it.
local function split(text, at)
  local length = floor(byte(text, at + 10) % 16 / 2)
  -- 5 says that six bytes follow: an id that names another partition.
  local to = at + 10 + (length == 5 and 6 or length)
  return sub(text, at, to), sub(text, to + 1)
end
