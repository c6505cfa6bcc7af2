-- Takes steps of schedules, each by itself: compares the version, stores the job as lua/publish_with.lua does, which stands
-- before this one as `publish`, and replaces the record. So a job is there if and only if its schedule says so.
-- KEYS    hash of figures (how many schedules are in each state, and as gone the highest revision of a deleted one, and as by:<kind> how many steps a
--         kind of placer has taken), sorted set
--         of schedules by when they are due, hash of the bytes that the schedules of each namespace take | per step: hash of the schedule, sorted set of the names in its namespace, keys
--         of lua/publish_with.lua if it has a job
-- ARGV    per step: a table that cmsgpack packs (what is nil is not there), arguments of lua/publish_with.lua if it has a
--         job. The table: keys, args: how many of both the job has; name, member: of the schedule, in its namespace and
--         among all; revision, step: the version that is expected (nil = there is none); delete = 1: deletes it, and what
--         follows is not there; state; next: when it is due, in ms (nil = never); moved = 1: it never is; progress; queue,
--         text, body (nil = as they are); landed: what became of an earlier job; exact: its revision (nil = the next one); not_before: ms; of_namespace, of_pool: how
--         many schedules there may be; by: the kind of placer (nil = not counted); dry = 1: nothing is written
-- returns {now, per step {'done', revision, step, when in ms, what became of the job ('' = none)}, {'stale'}, {'early'},
--         {'many'}, {'quota', what is used up}, or what lua/publish_with.lua answers when it has stored nothing}
-- bound   64 steps, and 1 MiB of what they carry or one step (the caller's)
local at_key, at_arg, answers = 4, 1, {now}
while ARGV[at_arg] do
  local step, keys, args = cmsgpack.unpack(ARGV[at_arg]), {}, {}
  local of = {figures = KEYS[1], due = KEYS[2], bytes = KEYS[3], schedule = KEYS[at_key], names = KEYS[at_key + 1]}
  for i = 1, step.keys do keys[i] = KEYS[at_key + 1 + i] end
  for i = 1, step.args do args[i] = ARGV[at_arg + i] end
  at_key, at_arg = at_key + 2 + step.keys, at_arg + 1 + step.args
  answers[#answers + 1] = take_step(step, of, function() return publish(keys, args) end)
end
return answers
