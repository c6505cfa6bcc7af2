-- Stands before scripts that set or remove timers off the hot path, or that a server cannot count itself: they count the
-- delayed and running jobs of queues in one hash. (What a server sees in replies it counts itself, and adds with
-- lua/add_timer_counts.lua.)

-- The kind of a timer by its score: 'd' for a delayed job and 'r' for a running one (see details.lua); nothing for whole
-- seconds, which are lmstfy's. lmstfy's servers do not count, so only the recount counts theirs.
local function kind_of(score)
  local part = (score % 1) * 1000000
  if part == 0 then return end
  return part >= 0.75 and math.floor(part + 0.5) % 2 == 1 and 'r' or 'd'
end

-- `by` more timers of a kind for the queue ns/queue.
local function count_timers(kind, group, by)
  if kind and by ~= 0 then call('HINCRBY', 'dormouse/timers', kind .. '/' .. group, by) end
end

-- The same for {ns/queue, delayed, running, ...}, which are gone.
local function count_gone(counts)
  for i = 1, #counts, 3 do
    count_timers('d', counts[i], -counts[i + 1])
    count_timers('r', counts[i], -counts[i + 2])
  end
end
