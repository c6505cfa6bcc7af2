-- Follows lua/base.lua and precedes each script of schedules. A schedule is a hash: revision, step, state, next, queue,
-- text, body, progress, landed. A deleted schedule leaves its last revision in it for a day, as gone.
local ROW = {'revision', 'step', 'state', 'next', 'queue', 'text', 'progress', 'landed'}
local GONE = 86400000
local function text_of(number) return string.format('%.0f', number) end

-- Returns the row of a schedule, or nothing. The body is last.
local function row_of(key, name, body)
  local row = call('HMGET', key, ROW[1], ROW[2], ROW[3], ROW[4], ROW[5], ROW[6], ROW[7], ROW[8], body and 'body' or '')
  if row[1] then return {name, unpack(row, 1, 9)} end
end

-- Returns the stored size of a schedule's setting in bytes.
local function setting_bytes(key)
  local stored = call('HMGET', key, 'text', 'body')
  return #(stored[1] or '') + #(stored[2] or '')
end

-- Takes a step. `keys`: figures, due, schedule, and in lmstfy's layout names and bytes: a hash of the bytes used by
-- each namespace's schedules. `publish` stores the step's job, if it has one.
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
    if keys.bytes then
      call('HINCRBY', keys.bytes, string.match(step.member, '^[^/]*'), -setting_bytes(keys.schedule))
    end
    call('DEL', keys.schedule)
    local gone = tonumber(call('HGET', keys.figures, 'gone')) or 0
    if revision > gone then call('HSET', keys.figures, 'gone', text_of(revision)) end
    call('HSET', keys.schedule, 'gone', text_of(revision))
    call('PEXPIRE', keys.schedule, GONE)
    if keys.names then call('ZREM', keys.names, step.name) end
    call('ZREM', keys.due, step.member)
    count(held[3], -1)
    return {'done', text_of(revision), text_of(done), text_of(time), ''}
  end
  if time < step.not_before or step.not_after and time > step.not_after then return {'early'} end
  local gone = tonumber(held[4]) or 0
  if not revision then
    if not step.text then return {'stale'} end
    local all = 0
    for _, of in ipairs(call('HMGET', keys.figures, 0, 1, 2, 3, 4)) do all = all + (tonumber(of) or 0) end
    if all >= step.of_pool or keys.names and call('ZCARD', keys.names) >= step.of_namespace then return {'many'} end
    gone = math.max(gone, tonumber(call('HGET', keys.figures, 'gone')) or 0)
  end
  local namespace, more = string.match(step.member, '^[^/]*'), 0
  if step.text and keys.bytes then
    more = #step.text + #step.body - setting_bytes(keys.schedule)
    local used_up = quotas and quotas.admit_beside(namespace, more, not revision)
    if used_up then return {'quota', used_up} end
  end
  if step.dry then
    local new = step.text and (revision or gone) + 1 or revision
    return {'done', text_of(new), text_of(new == revision and done + 1 or 0), text_of(time), ''}
  end
  local landed, added = step.landed or '', {}
  if step.args > 0 then
    local answer = publish()
    if answer[2] ~= 'done' then return {select(2, unpack(answer))} end
    landed, added = text_of(time) .. ' ' .. answer[3], {select(4, unpack(answer))}
  end
  local new = step.text and (revision or gone) + 1 or revision
  local next_step = new == revision and done + 1 or 0
  call('HSET', keys.schedule, 'revision', text_of(new), 'step', text_of(next_step), 'state', step.state,
    'next', step.next and text_of(step.next) or '', 'progress', step.progress, 'landed', landed)
  if step.text then call('HSET', keys.schedule, 'queue', step.queue, 'text', step.text, 'body', step.body) end
  if more ~= 0 then call('HINCRBY', keys.bytes, namespace, more) end
  if not revision then
    if held[4] then
      call('PERSIST', keys.schedule)
      call('HDEL', keys.schedule, 'gone')
    end
    if keys.names then call('ZADD', keys.names, 0, step.name) end
  end
  call('ZADD', keys.due, step.next and text_of(step.next) or '+inf', step.member)
  if step.by then call('HINCRBY', keys.figures, 'by:' .. step.by, 1) end
  if tonumber(held[3]) ~= step.state then
    count(held[3], -1)
    count(step.state, 1)
  end
  return {'done', text_of(new), text_of(next_step), text_of(time), landed, unpack(added)}
end

-- Returns the due schedules, earliest first: {now, next due time in ms ('' = none), number of schedules in each of five
-- states, name and count of each kind of placer, '', per schedule its row}. Removes members whose schedule no longer
-- exists. `ever`, a cursor of ZSCAN: instead returns some of all schedules without bodies, and the next cursor in place
-- of the last ''.
local function due_of(due_key, figures, base_of, most, ever, most_bytes, within)
  local bytes, taken, time = 0, 0, math.floor(now / 1000)
  local counts, by = {0, 0, 0, 0, 0}, {}
  local all = call('EXISTS', figures) == 1 and call('HGETALL', figures) or {}
  for i = 1, #all, 2 do
    local state, placer = tonumber(all[i]), string.match(all[i], '^by:(.+)$')
    if state then counts[state + 1] = tonumber(all[i + 1]) end
    if placer then by[#by + 1], by[#by + 2] = placer, all[i + 1] end
  end
  local answer, from, found = {now, '', counts, by, ''}, within == '' and '-inf' or text_of(time - within), {}
  if ever == '' then
    found = call('ZRANGEBYSCORE', due_key, from, text_of(time), 'LIMIT', 0, most)
  else
    local scan = call('ZSCAN', due_key, ever, 'COUNT', most)
    answer[5] = scan[1]
    for i = 1, #scan[2], 2 do found[#found + 1] = scan[2][i] end
  end
  for _, member in ipairs(found) do
    if bytes > tonumber(most_bytes) and ever == '' then break end
    local row = row_of(base_of .. member, member, ever == '')
    if row then
      bytes, taken = bytes + #(row[10] or ''), taken + 1
      answer[#answer + 1] = row
    else
      call('ZREM', due_key, member)
    end
  end
  local next = call('ZRANGEBYSCORE', due_key, from, '+inf', 'WITHSCORES', 'LIMIT', ever == '' and taken or 0, 1)
  if next[2] and next[2] ~= 'inf' then answer[2] = next[2] end
  return answer
end
