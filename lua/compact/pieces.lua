-- The names of a namespace's queues stand in pieces of up to 120, each under the name that it begins at; where there are
-- several, those names stand in a directory. A Redis keeps such a piece in a tenth of the memory of a large sorted set.
local function piece_of(namespace, name)
  local from = call('ZREVRANGEBYLEX', base .. 'i' .. namespace, '[' .. name, '-', 'LIMIT', 0, 1)[1] or ''
  return base .. 'j' .. namespace .. '/' .. from, from
end

local function add_name(of)
  local namespace, name = string.match(of, '^(.-)/(.*)$')
  local piece = piece_of(namespace, name)
  call('ZADD', piece, 0, name)
  if call('ZCARD', piece) > 120 then
    local upper = call('ZRANGE', piece, 60, -1)
    local other, with_scores = base .. 'j' .. namespace .. '/' .. upper[1], {}
    for i, moved in ipairs(upper) do with_scores[2 * i - 1], with_scores[2 * i] = 0, moved end
    call('ZADD', other, unpack(with_scores))
    call('ZREMRANGEBYRANK', piece, 60, -1)
    call('ZADD', base .. 'i' .. namespace, 0, upper[1])
  end
end

local function remove_name(of)
  local namespace, name = string.match(of, '^(.-)/(.*)$')
  local piece, from = piece_of(namespace, name)
  call('ZREM', piece, name)
  if from ~= '' and call('EXISTS', piece) == 0 then call('ZREM', base .. 'i' .. namespace, from) end
end

-- Up to so many names behind this one ('' = the first).
local function names_behind(namespace, after, most)
  local piece, from = piece_of(namespace, after)
  local found = {}
  while true do
    local some = call('ZRANGEBYLEX', piece, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, most - #found)
    for _, name in ipairs(some) do found[#found + 1] = name end
    from = #found < most and call('ZRANGEBYLEX', base .. 'i' .. namespace, '(' .. from, '+', 'LIMIT', 0, 1)[1]
    if not from then return found end
    piece = base .. 'j' .. namespace .. '/' .. from
  end
end
