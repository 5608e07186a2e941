"""Canonical JSON. Readers check each field when they take it out.

Equal values are equal bytes: keys are sorted, and white space, NaN and lone surrogates are left out.
Each object names its format and its version, and readers ignore fields that they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nbcache.core.errors import CorruptEntry, FormatError, UnsupportedVersion
from nbcache.core.key import is_sha256

VERSION = 1

_MOST_QUOTED = 100


def to_json(name: str, fields: Mapping[str, Any]) -> bytes:
    """Return these fields as JSON of the format `name`; FormatError for a lone surrogate."""
    value = {"format": name, "version": VERSION, **fields}
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise FormatError("a name holds a lone surrogate, which UTF-8 cannot hold") from error


def from_json(content: bytes, name: str) -> Fields:
    """Return the fields of JSON of the format `name`; raises CorruptEntry or UnsupportedVersion."""
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise corrupt(f"a {name} is not JSON") from error
    fields = Fields(value, name)
    if fields.text("format") != name:
        raise corrupt(f"a {name} is expected, and something else is there")
    version = fields.integer("version")
    if version > VERSION:
        raise newer_version(name, version)
    if version < 1:
        raise corrupt(f"a {name} has version {version}, which never was")
    return fields


def hex64(value: object) -> str:
    if not isinstance(value, str) or not is_sha256(value):
        raise corrupt("a digest is not 64 hexadecimal digits")
    return value


class Fields:
    def __init__(self, value: object, name: str):
        if not isinstance(value, Mapping):
            raise corrupt(f"a {name} is not a JSON object")
        self._value: Mapping[str, object] = value
        self._name = name

    def has(self, field: str) -> bool:
        return field in self._value

    def text(self, field: str, *, optional: bool = False) -> str:
        value = self._value.get(field, "" if optional else None)
        return str(self._check(field, value, "text", isinstance(value, str) and is_text(value)))

    def integer(self, field: str, *, optional: bool = False) -> int:
        value = self._value.get(field, 0 if optional else None)
        is_valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
        return int(self._check(field, value, "an integer from 0 to 2^63 - 1", is_valid))

    def seconds(self, field: str, *, optional: bool = False) -> float:
        value = self._value.get(field, 0.0 if optional else None)
        is_valid = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 63
        return float(self._check(field, value, "seconds, 0 or more", is_valid))

    def array(self, field: str, *, optional: bool = False) -> list[Any]:
        value = self._value.get(field, [] if optional else None)
        return list(self._check(field, value, "a list", isinstance(value, list)))

    def object(self, field: str) -> Mapping[str, Any]:
        value = self._value.get(field)
        return dict(self._check(field, value, "an object", isinstance(value, Mapping)))

    def _check(self, field: str, value: Any, expected: str, is_valid: bool) -> Any:
        if not is_valid:
            raise corrupt(f"the field {field!r} of a {self._name} is not {expected}")
        return value


def is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def corrupt(problem: str) -> CorruptEntry:
    """Return the error that says what is wrong with stored bytes."""
    return CorruptEntry(
        problem,
        next_step="nothing: it is compiled again; if it recurs, check the disk and run %nbcache clear --all",
    )


def newer_version(name: str, version: int) -> UnsupportedVersion:
    """Return the error for a later version than is known, which is quoted only up to a bound."""
    quoted = str(version) if version < _MOST_QUOTED else f"{_MOST_QUOTED} or later"
    return UnsupportedVersion(
        f"this {name} has version {quoted}; this nbcache reads version 1",
        next_step="upgrade nbcache here: pip install --upgrade nbcache",
    )
