-- Takes steps of schedules, each by itself: compares the version, stores the job as lua/publish_with.lua does, which stands
-- before this one as `publish`, and replaces the record. So a job is there if and only if its schedule says so.
-- KEYS    hash of figures (how many schedules are in each state, and as gone the highest revision of a deleted one), sorted set
--         of schedules by when they are due | per step: hash of the schedule, sorted set of the names in its namespace, keys
--         of lua/publish_with.lua if it has a job
-- ARGV    per step: a table that cmsgpack packs (what is nil is not there), arguments of lua/publish_with.lua if it has a
--         job. The table: keys, args: how many of both the job has; name, member: of the schedule, in its namespace and
--         among all; revision, step: the version that is expected (nil = there is none); delete = 1: deletes it, and what
--         follows is not there; state; next: when it is due, in ms (nil = never); moved = 1: it never is; progress; queue,
--         text, body (nil = as they are); exact: its revision (nil = the next one); not_before: ms; of_namespace, of_pool: how
--         many schedules there may be
-- returns {now, per step {'done', revision, step, when in ms, what became of the job ('' = none)}, {'stale'}, {'early'},
--         {'many'}, or what lua/publish_with.lua answers when it has stored nothing}
-- bound   64 steps, and 1 MiB of what they carry or one step (the caller's)
local at_key, at_arg, answers, time = 3, 1, {now}, math.floor(now / 1000)
local function text(number) return string.format('%.0f', number) end

local function count(state, by)
  if state then call('HINCRBY', KEYS[1], state, by) end
end

local function take(step, schedule, names, job)
  local held = call('HMGET', schedule, 'revision', 'step', 'state')
  local revision, done = tonumber(held[1]), tonumber(held[2])
  if revision ~= step.revision or done ~= step.step then return {'stale'} end
  if step.delete then
    if not revision then return {'stale'} end
    local gone = tonumber(call('HGET', KEYS[1], 'gone')) or 0
    if revision > gone then call('HSET', KEYS[1], 'gone', text(revision)) end
    call('DEL', schedule)
    call('ZREM', names, step.name)
    call('ZREM', KEYS[2], step.member)
    count(held[3], -1)
    return {'done', text(revision), text(done), text(time), ''}
  end
  if time < step.not_before then return {'early'} end
  if not revision then
    if not step.text then return {'stale'} end
    local all = 0
    for _, of in ipairs(call('HMGET', KEYS[1], 0, 1, 2, 3, 4)) do all = all + (tonumber(of) or 0) end
    if all >= step.of_pool or call('ZCARD', names) >= step.of_namespace then return {'many'} end
  end
  local landed = ''
  if step.keys > 0 then
    local answer = publish(job.keys, job.args)
    if answer[2] ~= 'done' then return {select(2, unpack(answer))} end
    landed = text(time) .. ' ' .. answer[3]
  end
  local new = step.exact or step.text and (revision or tonumber(call('HGET', KEYS[1], 'gone')) or 0) + 1 or revision
  local next_step = new == revision and done + 1 or 0
  call('HSET', schedule, 'revision', text(new), 'step', text(next_step), 'state', step.state,
    'next', step.next and text(step.next) or '', 'progress', step.progress, 'landed', landed)
  if step.text then call('HSET', schedule, 'queue', step.queue, 'text', step.text, 'body', step.body) end
  if not revision then call('ZADD', names, 0, step.name) end
  if step.moved then call('ZREM', KEYS[2], step.member)
  else call('ZADD', KEYS[2], step.next and text(step.next) or '+inf', step.member) end
  if tonumber(held[3]) ~= step.state then
    count(held[3], -1)
    count(step.state, 1)
  end
  return {'done', text(new), text(next_step), text(time), landed}
end

while ARGV[at_arg] do
  local step, job = cmsgpack.unpack(ARGV[at_arg]), {keys = {}, args = {}}
  local schedule, names = KEYS[at_key], KEYS[at_key + 1]
  for i = 1, step.keys do job.keys[i] = KEYS[at_key + 1 + i] end
  for i = 1, step.args do job.args[i] = ARGV[at_arg + i] end
  at_key, at_arg = at_key + 2 + step.keys, at_arg + 1 + step.args
  answers[#answers + 1] = take(step, schedule, names, job)
end
return answers
