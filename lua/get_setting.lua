-- Reads a record of the settings.
-- KEYS    records
-- ARGV    key
-- returns {version ('' = no record), value}
-- bound   one record
local version, value = read(ARGV[1])
return {version or '', value or ''}
