-- The names of a namespace's queues behind one of them, in their order.
-- KEYS    the partition's guard
-- ARGV    namespace, the name behind which to begin ('' = the first), how many
-- returns the names
-- bound   101 names (the caller's)
return names_behind(ARGV[1], ARGV[2], tonumber(ARGV[3]))
