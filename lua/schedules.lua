-- Stands behind lua/base.lua before each script of schedules. A schedule is a
-- hash: revision, step, state, next, queue, text, body, progress, landed. One that was deleted leaves its last revision there
-- for a day, as gone.
local ROW = {'revision', 'step', 'state', 'next', 'queue', 'text', 'progress', 'landed'}
local GONE = 86400000
local function text_of(number) return string.format('%.0f', number) end

-- What a store answers of a schedule, or nothing. The body comes last.
local function row_of(key, name, body)
  local row = call('HMGET', key, ROW[1], ROW[2], ROW[3], ROW[4], ROW[5], ROW[6], ROW[7], ROW[8], body and 'body' or '')
  if row[1] then return {name, unpack(row, 1, 9)} end
end

-- Bytes of a schedule's setting, as it is stored.
local function setting_bytes(key)
  local stored = call('HMGET', key, 'text', 'body')
  return #(stored[1] or '') + #(stored[2] or '')
end

-- Takes a step. `keys`: the keys of lua/step_schedule.lua: figures (statistics), due, bytes, schedule, names. `publish`
-- stores its job, if it has one.
local function take_step(step, keys, publish)
  local time = math.floor(now / 1000)
  local held = call('HMGET', keys.schedule, 'revision', 'step', 'state', 'gone')
  local revision, done = tonumber(held[1]), tonumber(held[2])
  if revision ~= step.revision or done ~= step.step then return {'stale'} end
  local function count(state, by)
    if state then call('HINCRBY', keys.figures, state, by) end
  end
  if step.delete then
    if not revision then return {'stale'} end
    call('HINCRBY', keys.bytes, string.match(step.member, '^[^/]*'), -setting_bytes(keys.schedule))
    call('DEL', keys.schedule)
    local gone = tonumber(call('HGET', keys.figures, 'gone')) or 0
    if revision > gone then call('HSET', keys.figures, 'gone', text_of(revision)) end
    call('HSET', keys.schedule, 'gone', text_of(revision))
    call('PEXPIRE', keys.schedule, GONE)
    call('ZREM', keys.names, step.name)
    call('ZREM', keys.due, step.member)
    count(held[3], -1)
    return {'done', text_of(revision), text_of(done), text_of(time), ''}
  end
  if time < step.not_before then return {'early'} end
  local gone = tonumber(held[4]) or 0
  if not revision then
    -- A schedule that was deleted while it moved between stores stays deleted.
    if not step.text or step.exact and step.exact <= gone then return {'stale'} end
    local all = 0
    for _, of in ipairs(call('HMGET', keys.figures, 0, 1, 2, 3, 4)) do all = all + (tonumber(of) or 0) end
    if all >= step.of_pool or call('ZCARD', keys.names) >= step.of_namespace then return {'many'} end
    gone = math.max(gone, tonumber(call('HGET', keys.figures, 'gone')) or 0)
  end
  local namespace, more = string.match(step.member, '^[^/]*'), 0
  if step.text then
    more = #step.text + #step.body - setting_bytes(keys.schedule)
    local used_up = quotas and quotas.admit_beside(namespace, more, not revision)
    if used_up then return {'quota', used_up} end
  end
  local new = step.exact or step.text and (revision or gone) + 1 or revision
  local next_step = new == revision and done + 1 or 0
  if step.dry then return {'done', text_of(new), text_of(next_step), text_of(time), ''} end
  local landed, added = step.landed or '', {}
  if step.args > 0 then
    local answer = publish()
    if answer[2] ~= 'done' then return {select(2, unpack(answer))} end
    landed, added = text_of(time) .. ' ' .. answer[3], {select(4, unpack(answer))}
  end
  call('HSET', keys.schedule, 'revision', text_of(new), 'step', text_of(next_step), 'state', step.state,
    'next', step.next and text_of(step.next) or '', 'progress', step.progress, 'landed', landed)
  if step.text then call('HSET', keys.schedule, 'queue', step.queue, 'text', step.text, 'body', step.body) end
  if more ~= 0 then call('HINCRBY', keys.bytes, namespace, more) end
  if not revision then
    if held[4] then
      call('PERSIST', keys.schedule)
      call('HDEL', keys.schedule, 'gone')
    end
    call('ZADD', keys.names, 0, step.name)
  end
  if step.moved then
    call('ZREM', keys.due, step.member)
  else
    call('ZADD', keys.due, step.next and text_of(step.next) or '+inf', step.member)
  end
  if step.by then call('HINCRBY', keys.figures, 'by:' .. step.by, 1) end
  if tonumber(held[3]) ~= step.state then
    count(held[3], -1)
    count(step.state, 1)
  end
  return {'done', text_of(new), text_of(next_step), text_of(time), landed, unpack(added)}
end
