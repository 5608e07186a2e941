"""Traces: the generated code, guards and facts of a function that Dynamo traced, in bytes without pickles.

    trace   = canonical JSON of the format "trace"; its sources, facts and guards are tables
    table   = {"common": [second parts, each once], "rows": [[first part, index of the second part], …]}
    value   = null | true | false | integer | text
            | ["float", hexadecimal text] | ["complex", hexadecimal text, hexadecimal text]
            | ["bytes", base64] | ["tuple", value…] | ["list", value…] | ["frozenset", value…]
            | ["slice", value, value, value] | ["ellipsis"] | ["code", code]
            | [name, …] for a value of the compiler, which the compiler's module reads
    code    = an object: the fields of a code object, by name

`from_bytes` checks each field, and runs no stored code.
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

RESUME_KINDS = ("rest", "rest in closure")
"""Kinds of globals: the function that resumes after a graph break, and its factory if it has a closure."""
_FORMAT = "trace"
_OPTIONAL = frozenset({"break_line", "break_reason", "seconds"})
"""Fields that are omitted if they are empty."""
_DIGITS = 16
_CODE: Mapping[str, type] = {
    **dict.fromkeys(("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals"), int),
    **dict.fromkeys(("co_stacksize", "co_flags"), int),
    "co_code": bytes,
    **dict.fromkeys(("co_consts", "co_names", "co_varnames"), tuple),
    **dict.fromkeys(("co_filename", "co_name", "co_qualname"), str),
    "co_firstlineno": int,
    **dict.fromkeys(("co_linetable", "co_exceptiontable"), bytes),
    **dict.fromkeys(("co_freevars", "co_cellvars"), tuple),
}
"""The arguments of `types.CodeType`, in order, with their types."""

_COLLECTIONS: Mapping[str, Any] = {
    "frozenset": frozenset,
    "list": list,
    "tuple": tuple,
}
Converter = Callable[[Any], Any]
"""Writes or reads a value that is not a plain Python value; raises FormatError."""


def _refuse(value: Any) -> Any:
    raise FormatError(f"a trace cannot contain a {type(value).__qualname__}")


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace. Its tables are rows of JSON, in which a number is the index of a source."""

    key: str
    """Key under which the trace is stored; it is invalid under any other key."""
    function: str
    code: Mapping[str, Any]
    """The generated code that runs in the function's place, as `code_to` writes it."""
    sources: list[list[Any]]
    """Rows [class, index of the base source or null, other fields]."""
    same: list[int]
    """By source: index of the first source with the same object; for a constant, its own index."""
    facts: list[list[Any]]
    """Rows [index of a source, or module and name; digest]."""
    names: list[list[str]]
    """Rows [module (empty: the function's own), name, digest] for names that code reads."""
    asked: str
    """Names that code may have read from modules as attributes, as `names_to` writes them."""
    attributes: list[list[str]]
    """Rows [module, names]: those of these attributes that the module has."""
    guards: list[list[Any]]
    """torch's guards: rows [index of a source, kind, arguments]."""
    key_order: list[int]
    """Sources of dictionaries with guards on the order of their keys."""
    shapes: list[list[Any]]
    """Rows [index of a source, size, stride] for the tensors with guards."""
    inputs: list[int]
    installed: list[list[str]]
    """Rows [name, kind, place] for globals that the code reads; for `RESUME_KINDS`, it is code, as JSON."""
    imports: Mapping[str, str]
    """Global name → module for modules that the code reads."""
    autograd_key: str
    state: str
    replayed: list[str]
    operators: int
    has_outputs: int
    seconds: float = 0.0
    """Duration of the tracing; 0 if unknown."""
    break_reason: str = ""
    """Reason of the graph break at the function's end, without a position; empty without a graph break."""
    break_line: int = 0
    """Line of the graph break within the function, from 1; 0 if it is in another function."""

    @property
    def all_facts(self) -> tuple[Any, ...]:
        """Everything that a kernel compares before it adopts the trace."""
        return self.facts, self.names, self.asked, self.attributes


def to_bytes(trace: Trace) -> bytes:
    try:
        parts = {field.name: getattr(trace, field.name) for field in fields(trace)}
        parts["sources"] = _table([base, [kind, arguments]] for kind, base, arguments in trace.sources)
        parts["facts"] = _table(trace.facts)
        parts["guards"] = _table([index, arguments] for index, *arguments in trace.guards)
        stored = {name: value for name, value in parts.items() if name not in _OPTIONAL or value}
        return to_json(_FORMAT, stored)
    except (TypeError, ValueError) as error:
        raise FormatError(f"a trace cannot be written: {error}") from error


def from_bytes(content: bytes) -> Trace:
    """Return the trace that these bytes hold; raises CorruptEntry or UnsupportedVersion."""
    read = from_json(content, _FORMAT)
    imports = read.object("imports")
    if not all(isinstance(name, str) for name in imports.values()):
        raise corrupt("the imports of a trace are not names")
    sources = [[kind, base, arguments] for base, (kind, arguments) in _rows(read, "sources", 2)]
    for number, (name, base, _) in enumerate(sources):
        if not isinstance(name, str) or not (base is None or _is_index(base, number)):
            raise corrupt("the base of a source of a trace comes after it")
    parts: dict[str, Any] = {
        **{name: read.text(name) for name in ("asked", "autograd_key", "function", "key", "state")},
        **{name: read.integer(name) for name in ("has_outputs", "operators")},
        **{name: _indices(read, name, len(sources)) for name in ("inputs", "key_order", "same")},
    }
    trace = Trace(
        **parts,
        code=read.object("code"),
        sources=sources,
        facts=[*_rows(read, "facts")],
        names=[_check_texts(row, 3) for row in read.array("names")],
        attributes=[_check_texts(row, 2) for row in read.array("attributes")],
        guards=[[index, *arguments] for index, arguments in _rows(read, "guards", 3)],
        shapes=[_check_row(row, 3) for row in read.array("shapes")],
        installed=[_check_texts(row, 3) for row in read.array("installed")],
        imports={name: str(module) for name, module in imports.items()},
        replayed=_check_texts(read.array("replayed")),
        seconds=read.seconds("seconds", optional=True),
        break_reason=read.text("break_reason", optional=True),
        break_line=read.integer("break_line", optional=True),
    )
    if len(trace.same) != len(sources):
        raise corrupt("a trace does not say for each source whether its object has another source")
    for index, *_ in (*trace.guards, *trace.shapes):
        if not _is_index(index, len(sources)):
            raise corrupt("a guard of a trace has no source")
    for place, digest in trace.facts:
        if not (_is_index(place, len(sources)) or isinstance(place, str)) or not isinstance(digest, str):
            raise corrupt("a fact of a trace has an invalid key or digest")
    return trace


def _table(rows: Iterable[list[Any]]) -> dict[str, Any]:
    """Return pairs as JSON that contains each second part once, since most of them repeat."""
    indices: dict[str, int] = {}
    common: list[Any] = []
    indexed = []
    for first, second in rows:
        text = json.dumps(second, sort_keys=True)
        if text not in indices:
            indices[text] = len(common)
            common.append(second)
        indexed.append([first, indices[text]])
    return {"common": common, "rows": indexed}


def _rows(read: Fields, field: str, length: int | None = None) -> Iterator[list[Any]]:
    """Return the pairs that `_table` wrote; second parts are lists of this `length`, if any."""
    table = Fields(read.object(field), field)
    common = table.array("common")
    for row in table.array("rows"):
        first, number = _check_row(row, 2)
        if not _is_index(number, len(common)):
            raise corrupt(f"a row of the {field} of a trace has no second part")
        yield [first, common[number] if length is None else _check_row(common[number], length)]


def _is_index(value: object, below: int) -> bool:
    return type(value) is int and 0 <= value < below


def _indices(read: Fields, field: str, below: int) -> list[int]:
    indices = read.array(field)
    if not all(_is_index(index, below) for index in indices):
        raise corrupt(f"the field {field!r} of a trace has an invalid source index")
    return [int(str(index)) for index in indices]


def _check_row(row: object, length: int | None) -> list[Any]:
    if not isinstance(row, list) or length not in (None, len(row)):
        raise corrupt("a row of a trace has an invalid length")
    return row


def _check_texts(row: object, length: int | None = None) -> list[str]:
    texts = _check_row(row, length)
    if not all(isinstance(text, str) for text in texts):
        raise corrupt("a row of a trace contains a value that is not a text")
    return texts


def names_to(names: Iterable[str]) -> str:
    """Return texts as one text: sorted, percent-encoded and joined with spaces."""
    return " ".join(quote(name, errors="surrogatepass") or "%" for name in sorted(names))


def names_from(text: str) -> set[str]:
    return {"" if name == "%" else unquote(name, errors="surrogatepass") for name in text.split()}


# --- values and code -----------------------------------------------------------------------------------


def value_to(value: Any, convert: Converter = _refuse) -> Any:
    """Return a value as JSON; `convert` writes values of the compiler, or raises FormatError."""
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
        return [kind.__name__, *(value_to(item, convert) for item in value)]
    if kind is frozenset:
        return ["frozenset", *sorted((value_to(item, convert) for item in value), key=repr)]
    if kind is slice:
        return ["slice", *(value_to(item, convert) for item in (value.start, value.stop, value.step))]
    if value is Ellipsis:
        return ["ellipsis"]
    if kind is types.CodeType:
        return ["code", code_to(value, convert)]
    return convert(value)


def value_from(row: Any, convert: Converter = _refuse) -> Any:
    """Return the value that `value_to` wrote; raise CorruptEntry for any other JSON."""
    if row is None or type(row) in (bool, int, str):
        return row
    if not isinstance(row, list) or not row or not isinstance(row[0], str):
        raise corrupt("a value of a trace is invalid")
    name, *arguments = row
    try:
        match name, arguments:
            case "float", [text]:
                return _from_hex(text)
            case "complex", [real, imaginary]:
                return complex(_from_hex(real), _from_hex(imaginary))
            case "bytes", [text]:
                return base64.b64decode(text, validate=True)
            case "code", [code]:
                return code_from(code, convert)
            case "ellipsis", _:
                return Ellipsis
            case "tuple" | "list" | "frozenset" | "slice", _:
                values = [value_from(item, convert) for item in arguments]
                return slice(*values) if name == "slice" else _COLLECTIONS[name](values)
        return convert(row)
    except CorruptEntry:
        raise
    except (TypeError, ValueError, OverflowError, binascii.Error, FormatError) as error:
        raise corrupt(f"a {name} of a trace is invalid") from error


def _hex(value: float) -> str:
    """Return a number in hexadecimal notation; a NaN as the 16 digits of its bits."""
    return value.hex() if value == value else struct.pack(">d", value).hex()


def _from_hex(text: Any) -> float:
    """Decode a number of `_hex`, in hexadecimal notation or as bits; ValueError or TypeError for others."""
    if isinstance(text, str) and len(text) == _DIGITS and "x" not in text:
        (value,) = struct.unpack(">d", bytes.fromhex(text))
        return float(value)
    return float.fromhex(text)


def code_to(code: types.CodeType, convert: Converter = _refuse) -> dict[str, Any]:
    return {name: value_to(getattr(code, name), convert) for name in _CODE}


def code_from(row: object, convert: Converter = _refuse) -> types.CodeType:
    """Return the code object that `code_to` wrote; raise CorruptEntry for any other JSON."""
    if not isinstance(row, Mapping):
        raise corrupt("code of a trace is not a JSON object")
    arguments: list[Any] = []
    for name, kind in _CODE.items():
        value = value_from(row.get(name), convert)
        if type(value) is not kind:
            raise corrupt(f"{name} of a code object of a trace is not of the type {kind.__name__}")
        arguments.append(value)
    try:
        return types.CodeType(*arguments)
    except (TypeError, ValueError, OverflowError) as error:
        raise corrupt("a code object of a trace is invalid") from error
