-- Counts jobs by when they are due.
-- Whether a queue's jobs count, by its number: all ('' in ARGV[1]), those of a namespace (its name and '/'), or of a queue.
local counts, filter, step = {}, ARGV[1], tonumber(ARGV[2])
local known = {}
local function is_counted(number)
  if filter == '' then return true end
  local is = known[number]
  if is == nil then
    local name = name_of(number) or ''
    is = name == filter or sub(filter, -1) == '/' and sub(name, 1, #filter) == filter
    known[number] = is
  end
  return is
end

local function count(due)
  local begins = due <= now and -1 or floor(due / 1000 / step) * step
  counts[begins] = (counts[begins] or 0) + 1
end

-- Per step with some: its beginning in ms (-1 = due already), and how many.
local function told()
  local all = {}
  for begins, jobs in pairs(counts) do
    all[#all + 1], all[#all + 2] = begins, jobs
  end
  return all
end
