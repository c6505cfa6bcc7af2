-- Deletes the name of a queue that has no ready and no dead jobs.
-- KEYS    hash of the queues of its namespace | their index | hash of namespaces | ready list | dead letter
-- ARGV    name of the queue, name of the namespace
-- returns 1; 0: it has such jobs, and nothing has changed
-- bound   one queue
if call('EXISTS', KEYS[4], KEYS[5]) > 0 then return 0 end
call('HDEL', KEYS[1], ARGV[1])
call('ZREM', KEYS[2], ARGV[1])
if call('EXISTS', KEYS[1]) == 0 then call('HDEL', KEYS[3], ARGV[2]) end
return 1
