-- Takes steps of schedules, each atomically: compares the version, stores the job by lua/publish_with.lua, which
-- precedes this script as the function `publish`, and replaces the record. So the job exists if and only if the
-- schedule's record says so.
-- KEYS    hash of statistics (number of schedules in each state; gone: the highest revision of a deleted one;
--         by:<kind>: steps taken by a kind of scheduler), sorted set of schedules by due time, hash of the bytes used by
--         each namespace's schedules | per step: hash of the schedule, sorted set of the names in its namespace, keys
--         of lua/publish_with.lua if it has a job
-- ARGV    per step: a table packed by cmsgpack (nil fields are absent), arguments of lua/publish_with.lua if it has a
--         job. The table: keys, args: the job's number of each; name, member: of the schedule, in its namespace and
--         among all; revision, step: the expected version (nil = no schedule); delete = 1: deletes it, and the other
--         fields are absent; state; next: due time in ms (nil = never); progress; queue, text, body (nil = unchanged);
--         landed: outcome of an earlier job; not_before: ms; exact: the revision to store (nil = the next one); moved = 1:
--         the schedule is in another store and is never due; of_namespace, of_pool: maximum number of schedules; by: the
--         kind of scheduler (nil = not counted); dry = 1: writes nothing
-- returns {now, per step {'done', revision, step, time in ms, outcome of the job ('' = none)}, {'stale'}, {'early'},
--         {'many'}, {'quota', the exceeded quota}, or the reply of lua/publish_with.lua if it stored nothing}
-- bound   64 steps, and 1 MiB of their contents or one step (the caller's)
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
