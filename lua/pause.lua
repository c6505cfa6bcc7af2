-- Pauses a queue.
-- KEYS    hash of paused queues
-- ARGV    ns/queue, for how long in us ('' = until it is resumed)
-- returns {now, until when, in ms (0 = until it is resumed)}
-- bound   two fields
local ends = ARGV[2] == '' and 0 or math.ceil((now + ARGV[2]) / 1000)
-- The field without a name tells that something has changed.
call('HSET', KEYS[1], ARGV[1], string.format('%.0f', ends), '', string.format('%.0f', now))
return {now, ends}
