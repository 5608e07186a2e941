"""Traces: what Dynamo made of a function once, and on which facts, as bytes that hold no pickle.

    trace   = canonical JSON of the format "trace"; its sources, facts and guards are tables
    table   = {"common": [second parts, each once], "rows": [[first part, index of the second], …]}
    value   = null | true | false | integer | text
            | ["float", hexadecimal text] | ["complex", hexadecimal text, hexadecimal text]
            | ["bytes", base64] | ["tuple", value…] | ["list", value…] | ["frozenset", value…]
            | ["slice", value, value, value] | ["ellipsis"] | ["code", code]
            | [name, …] of a compiler's own value, which the compiler's module reads
    code    = an object: the fields of a code object, by name

What is read is checked field by field, and nothing of it is run here.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import quote, unquote

from nbcache.core.canonical_json import Fields, corrupt, from_json, to_json
from nbcache.core.errors import CorruptEntry, FormatError

REST = ("rest", "rest in closure")
"""Kinds of globals: the function that goes on after a graph break, and what makes one with its closure."""
_FORMAT = "trace"
_OPTIONAL = frozenset({"break_line", "break_reason", "seconds"})
"""Fields that are left out where they are empty."""
_DIGITS = 16
"""Hexadecimal digits of the bits of a number."""
_CODE = {
    "co_argcount": int,
    "co_posonlyargcount": int,
    "co_kwonlyargcount": int,
    "co_nlocals": int,
    "co_stacksize": int,
    "co_flags": int,
    "co_code": bytes,
    "co_consts": tuple,
    "co_names": tuple,
    "co_varnames": tuple,
    "co_filename": str,
    "co_name": str,
    "co_qualname": str,
    "co_firstlineno": int,
    "co_linetable": bytes,
    "co_exceptiontable": bytes,
    "co_freevars": tuple,
    "co_cellvars": tuple,
}
"""The arguments of `types.CodeType`, in its order, with their types."""

Other = Callable[[Any], Any]
"""Writes or reads what is not Python's own; raises FormatError."""


def _refuse(value: Any) -> Any:
    raise FormatError(f"a trace cannot hold a {type(value).__qualname__}")


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace. Tables hold rows of JSON; a number in a row is the index of a source."""

    key: str
    """The key that it is stored under: under another one it is none."""
    function: str
    """Name of the function."""
    code: Mapping[str, Any]
    """The code that runs in its place, as `code_to` writes it."""
    sources: list[list[Any]]
    """The way to each value: a name, the index of the source that it was read from, and further fields."""
    same: list[int]
    """By source: the index of the first source with the very same object; its own, for a value."""
    facts: list[list[Any]]
    """The values that were read: an index, or a name in a module; and a digest."""
    names: list[list[str]]
    """Names that code reads: [module (empty: the function's own), name, what it means there]."""
    asked: str
    """Names that code may have asked modules for, as `names_to` writes them."""
    attributes: list[list[str]]
    """The names that each module has: [module, names]; it lacks the others."""
    guards: list[list[Any]]
    """torch's guards: the index of a source, the kind, and arguments."""
    key_order: list[int]
    """Sources whose keys are guarded in order."""
    shapes: list[list[Any]]
    """Sizes and strides of the tensors that are guarded, by source."""
    inputs: list[int]
    """Sources of the graph's inputs, in order."""
    installed: list[list[str]]
    """Globals that the code reads: [name, kind, what it is]; of the kinds `REST`, code as JSON."""
    imports: Mapping[str, str]
    """Modules that the code reads as globals, by those names."""
    autograd_key: str
    """AOTAutograd's key for the graph; empty where there is no graph."""
    state: str
    """torch's global state, as torch writes it."""
    replayed: list[str]
    """The side effects of the code, in torch's words."""
    operators: int
    has_outputs: int
    """1 where the graph has any, else 0."""
    seconds: float = 0.0
    """Seconds of tracing; 0 where they are unknown."""
    break_reason: str = ""
    """Why it ends in a graph break, in words without a place; empty where it ends in none."""
    break_line: int = 0
    """In which of the function's lines, from 1; 0 where that is in another function."""


def to_bytes(trace: Trace) -> bytes:
    """Return a trace as bytes; FormatError where it holds what these cannot hold."""
    try:
        told = {each.name: getattr(trace, each.name) for each in fields(trace)}
        told["sources"] = _table([base, [kind, given]] for kind, base, given in trace.sources)
        told["facts"] = _table(trace.facts)
        told["guards"] = _table([index, rest] for index, *rest in trace.guards)
        return to_json(_FORMAT, {name: each for name, each in told.items() if name not in _OPTIONAL or each})
    except (TypeError, ValueError) as error:
        raise FormatError(f"a trace cannot be written: {error}") from error


def from_bytes(content: bytes) -> Trace:
    """Return the trace that these bytes hold; raises CorruptEntry or UnsupportedVersion."""
    read = from_json(content, _FORMAT)
    imports = read.object("imports")
    if not all(isinstance(name, str) for name in imports.values()):
        raise corrupt("the imports of a trace are not names")
    sources = [[kind, base, given] for base, (kind, given) in _rows(read, "sources", 2)]
    for number, (name, base, _) in enumerate(sources):
        if not isinstance(name, str) or not (base is None or _is_index(base, number)):
            raise corrupt("a source of a trace is read from a later one")
    trace = Trace(
        key=read.text("key"),
        function=read.text("function"),
        code=read.object("code"),
        sources=sources,
        same=_indices(read, "same", len(sources)),
        facts=[*_rows(read, "facts")],
        names=[_texts(row, 3) for row in read.array("names")],
        asked=read.text("asked"),
        attributes=[_texts(row, 2) for row in read.array("attributes")],
        guards=[[index, *rest] for index, rest in _rows(read, "guards", 3)],
        key_order=_indices(read, "key_order", len(sources)),
        shapes=[_row(row, 3) for row in read.array("shapes")],
        inputs=_indices(read, "inputs", len(sources)),
        installed=[_texts(row, 3) for row in read.array("installed")],
        imports={name: str(module) for name, module in imports.items()},
        autograd_key=read.text("autograd_key"),
        state=read.text("state"),
        replayed=_texts(read.array("replayed")),
        operators=read.integer("operators"),
        has_outputs=read.integer("has_outputs"),
        seconds=read.seconds("seconds", optional=True),
        break_reason=read.text("break_reason", optional=True),
        break_line=read.integer("break_line", optional=True),
    )
    if len(trace.same) != len(sources):
        raise corrupt("a trace does not tell of each source whether it is another one")
    for index, *_ in (*trace.guards, *trace.shapes):
        if not _is_index(index, len(sources)):
            raise corrupt("a guard of a trace has no source")
    for place, digest in trace.facts:
        if not (_is_index(place, len(sources)) or isinstance(place, str)) or not isinstance(digest, str):
            raise corrupt("a fact of a trace is of nothing")
    return trace


def _table(rows: Iterable[list[Any]]) -> dict[str, Any]:
    """Return rows of two as JSON: most of the second parts stand in many of them, and are written once."""
    numbers: dict[str, int] = {}
    common: list[Any] = []
    found = []
    for first, second in rows:
        text = json.dumps(second, sort_keys=True)
        if text not in numbers:
            numbers[text] = len(common)
            common.append(second)
        found.append([first, numbers[text]])
    return {"common": common, "rows": found}


def _rows(read: Fields, field: str, length: int | None = None) -> Iterator[list[Any]]:
    """Return the rows that `_table` has written; second parts are lists of a `length`, if it is given."""
    table = Fields(read.object(field), field)
    common = table.array("common")
    for row in table.array("rows"):
        first, number = _row(row, 2)
        if not _is_index(number, len(common)):
            raise corrupt(f"a row of the {field} of a trace has no second part")
        yield [first, common[number] if length is None else _row(common[number], length)]


def _is_index(value: object, below: int) -> bool:
    return type(value) is int and 0 <= value < below


def _indices(read: Fields, field: str, below: int) -> list[int]:
    indices = read.array(field)
    if not all(_is_index(index, below) for index in indices):
        raise corrupt(f"the field {field!r} of a trace names a source that is not there")
    return indices


def _row(row: object, length: int) -> list[Any]:
    if not isinstance(row, list) or len(row) != length:
        raise corrupt("a row of a trace is of another length")
    return row


def _texts(row: object, length: int | None = None) -> list[str]:
    found = _row(row, len(row) if length is None and isinstance(row, list) else length or 0)
    if not all(isinstance(each, str) for each in found):
        raise corrupt("a row of a trace holds something else than texts")
    return found


def names_to(names: Iterable[str]) -> str:
    """Return any texts as one, sorted: with spaces between them, and with what is in them percent-encoded."""
    return " ".join(quote(name, errors="surrogatepass") or "%" for name in sorted(names))


def names_from(text: str) -> set[str]:
    """Return the texts that `names_to` was given."""
    return {"" if name == "%" else unquote(name, errors="surrogatepass") for name in text.split()}


# --- values and code -----------------------------------------------------------------------------------


def value_to(value: Any, other: Other = _refuse) -> Any:
    """Return a value as JSON; what is not Python's own goes to `other`. FormatError where that refuses."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return ["float", _hex(value)]
    if kind is complex:
        return ["complex", _hex(value.real), _hex(value.imag)]
    if kind is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    if kind in (tuple, list):
        return [kind.__name__, *(value_to(each, other) for each in value)]
    if kind is frozenset:
        return ["frozenset", *sorted((value_to(each, other) for each in value), key=repr)]
    if kind is slice:
        return ["slice", *(value_to(each, other) for each in (value.start, value.stop, value.step))]
    if value is Ellipsis:
        return ["ellipsis"]
    if kind is types.CodeType:
        return ["code", code_to(value, other)]
    return other(value)


def value_from(row: Any, other: Other = _refuse) -> Any:
    """Return the value of JSON; CorruptEntry for other JSON."""
    if row is None or type(row) in (bool, int, str):
        return row
    if not isinstance(row, list) or not row or not isinstance(row[0], str):
        raise corrupt("a value of a trace is none")
    name, *rest = row
    try:
        if name == "float":
            (text,) = rest
            return _from_hex(text)
        if name == "complex":
            real, imaginary = map(_from_hex, rest)
            return complex(real, imaginary)
        if name == "bytes":
            (text,) = rest
            return base64.b64decode(text, validate=True)
        if name == "code":
            (code,) = rest
            return code_from(code, other)
        if name == "ellipsis":
            return Ellipsis
        if name in ("tuple", "list", "frozenset", "slice"):
            values = [value_from(each, other) for each in rest]
            makes: Mapping[str, Callable[..., Any]] = {"tuple": tuple, "list": list, "frozenset": frozenset}
            return slice(*values) if name == "slice" else makes[name](values)
        return other(row)
    except (TypeError, ValueError, OverflowError, binascii.Error, FormatError) as error:
        raise error if isinstance(error, CorruptEntry) else corrupt(f"a {name} of a trace is none") from error


def _hex(value: float) -> str:
    """Return a number in hexadecimal digits; of a NaN, the 16 of its bits."""
    return value.hex() if value == value else struct.pack(">d", value).hex()


def _from_hex(text: Any) -> float:
    """Return the number that `_hex` was given; ValueError or TypeError for anything else."""
    if isinstance(text, str) and len(text) == _DIGITS and "x" not in text:
        (value,) = struct.unpack(">d", bytes.fromhex(text))
        return float(value)
    return float.fromhex(text)


def code_to(code: types.CodeType, other: Other = _refuse) -> dict[str, Any]:
    """Return a code object as JSON; constants that are not Python's own go to `other`."""
    return {name: value_to(getattr(code, name), other) for name in _CODE}


def code_from(row: object, other: Other = _refuse) -> types.CodeType:
    """Return the code object of JSON; CorruptEntry for other JSON."""
    if not isinstance(row, Mapping):
        raise corrupt("code of a trace is not a JSON object")
    arguments: list[Any] = []
    for name, kind in _CODE.items():
        value = value_from(row.get(name), other)
        if type(value) is not kind:
            raise corrupt(f"{name} of a code object of a trace is not of the type {kind.__name__}")
        arguments.append(value)
    try:
        return types.CodeType(*arguments)
    except (TypeError, ValueError, OverflowError) as error:
        raise corrupt("a code object of a trace is none") from error
