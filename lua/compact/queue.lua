-- `queue_of` reads the record of a queue once; who changes it sets `changed`, and `save` writes it at the end of the
-- script. A record is its number; jobs in all states, delayed, running and dead ones; bytes of bodies; until when it is
-- paused (0 = it is not, 1 = until it is resumed); since when the pump has seen it empty (0 = it was not). Behind that some
-- have: since when in ms it is spread (0 = it is not, 1 = from its first job on, PART = this is not its home); from
-- which second on its home has taken how many jobs, in ten seconds.
local RECORD, TAIL, PART, queues = '>I4I4I4I4I4I6I6I6', '>I6I4I4', 281474976710655, {}

-- A number in as few bytes as it needs.
local function bytes_of(n)
  if n < 256 then return char(n) end
  return pack(n < 65536 and '>H' or n < 16777216 and '>I3' or '>I4', n)
end

local function queue_of(name)
  local q = queues[name]
  if not q then
    local key = base .. 'q' .. name
    local of = call('GET', key)
    if of then
      local n, jobs, delayed, running, dead, bytes, pause, empty = unpack_of(RECORD, of)
      q = {name = name, key = key, n = n, jobs = jobs, delayed = delayed, running = running, dead = dead, bytes = bytes,
        pause = pause, empty = empty}
      if n > 0 then q.number = bytes_of(n) end
      if #of > 38 then
        q.spread, q.window, q.taken = unpack_of(TAIL, of, 39)
        if q.spread == 0 then q.spread = nil end
      end
    else
      q = {name = name, key = key, n = 0, jobs = 0, delayed = 0, running = 0, dead = 0, bytes = 0, pause = 0, empty = 0}
    end
    queues[name] = q
  end
  return q
end

local function save()
  for _, q in pairs(queues) do
    if q.changed then
      local of = pack(RECORD, q.n, q.jobs, q.delayed, q.running, q.dead, q.bytes, q.pause, q.empty)
      if q.spread or q.window then of = of .. pack(TAIL, q.spread or 0, q.window or 0, q.taken or 0) end
      call('SET', q.key, of)
    end
  end
end
