-- Stores large bodies of a bulk that is published by a later call. Nobody knows their places yet.
-- KEYS    the partition's guard
-- ARGV    ms that they stay without that call; per job: name of its queue, place, body
-- returns how many were stored
-- bound   1 MiB of bodies or one body (the caller's)
for i = 2, #ARGV, 3 do
  call('SET', base .. 'x' .. ARGV[i + 1] .. ARGV[i], ARGV[i + 2], 'PX', ARGV[1])
end
return (#ARGV - 1) / 3
