-- Precedes scripts that handle packed jobs: delayed jobs of one queue that are due at about the same time, as fields of
-- one hash, a bucket. A bucket's name is ns/queue/window-three: `three` are bytes 7 to 9 of its jobs' ids in hex. A field
-- is the other 13 bytes of an id, the first bit of which says whether the id is versioned. A value begins with the
-- tries, the us from the end of the delay in the id to the due time, and the ms from there to the end of the ttl (0 =
-- forever); the value of the job's string follows. A sorted set names all buckets, by the earliest due time of each.
local packed_base, PACKED_HEAD = base .. 'dormouse/packed/', '<Hi4I6'
