"""Scripts that Redis runs for a store."""

from __future__ import annotations

from typing import Any

from nbcache.stores.base import MAX_VALUE_BYTES

__all__ = ["MOST_PARTS", "SWAP", "runs_scripts"]

MOST_PARTS = 1024
# Writes where a value is still the one that was read. Arguments: its length, or -1 where nothing was there
# that can be read, or 0 for what nbcache does not write; of how many bytes, its first ones, a digest is
# taken; the digest; for how many seconds it is written, 0 for good; the value, unless KEYS[2] has its parts.
# It needs no other commands than the rest. An error begins with its code, where Redis before 7 puts the
# place in the script.
SWAP = f"""
local value, length = redis.pcall('GET', KEYS[1]), -1
if type(value) == 'string' then
  length = #value
elseif type(value) == 'table' then
  local head = redis.pcall('HGET', KEYS[1], 'put')
  local put, count = string.match(type(head) == 'string' and head or '', '^(%w+):(%d+)$')
  length, value = 0, head and ''
  if put then value = redis.call('HGET', KEYS[1], put .. ':0') end
  for number = 0, math.min(tonumber(count) or 0, {MOST_PARTS}) - 1 do
    local part = redis.call('HSTRLEN', KEYS[1], put .. ':' .. number)
    if part == 0 then value = false end
    length = length + part
  end
  if not value or length > {MAX_VALUE_BYTES} then value, length = false, -1 end
end
local beginning = string.sub(value or '', 1, tonumber(ARGV[2]))
if length ~= tonumber(ARGV[1]) or redis.sha1hex(beginning) ~= ARGV[3] then return 0 end
local answer
if KEYS[2] then
  answer = redis.pcall('RENAME', KEYS[2], KEYS[1])
else
  answer = redis.pcall('SET', KEYS[1], ARGV[5])
end
if answer.err then return {{err = string.gsub(answer.err, '^@user_script: %d+: %-', '')}} end
if ARGV[4] == '0' then redis.call('PERSIST', KEYS[1]) else redis.call('EXPIRE', KEYS[1], ARGV[4]) end
return 1
"""


def runs_scripts(name: str, client: Any) -> bool:
    """Tell whether this user may run scripts, on the node that has `name`."""
    from redis.exceptions import ResponseError

    try:
        return bool(client.execute_command("EVAL", "return 1", 1, name) == 1)
    except ResponseError:  # no permission, or no such command
        return False
