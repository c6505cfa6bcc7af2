-- Takes steps of schedules of this partition, each by itself, as lua/step_schedule.lua does. lua/compact/publish_with.lua stands
-- before it as `publish`.
-- KEYS    the partition's guard
-- ARGV    per step: the table of lua/step_schedule.lua without keys, arguments of lua/compact/publish_with.lua if it has a job. In
--         the table also: to: the partition that it moves to; moves_on = 1: it does, or has; floor: no revision of the name
--         was above it; not_after: ms
-- returns as lua/step_schedule.lua; also {'moving'}: it moves to another partition; and behind what became of the job how
--         many jobs, bytes and queues it has added
-- bound   64 steps, and 1 MiB of what they carry or one step (the caller's)
local at, answers = 1, {now}
while ARGV[at] do
  local step, args = cmsgpack.unpack(ARGV[at]), {}
  for i = 1, step.args do args[i] = ARGV[at + i] end
  at = at + 1 + step.args
  local of = {figures = base .. 'v', due = base .. 'w', schedule = base .. 's' .. step.member}
  answers[#answers + 1] = take_step(step, of, function() return publish(args) end)
end
return answers
