"""Digests of code by its instructions, and the instructions that load names."""

from __future__ import annotations

import dis
import functools
import hashlib
import re
import struct
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

__all__ = [
    "FORMATS",
    "LOADS",
    "LOADS_ATTRIBUTE",
    "LOADS_CELL",
    "LOADS_GLOBAL",
    "STORES",
    "Step",
    "code_digest",
    "exact",
    "exact_int",
    "hashed",
    "lines_digest",
    "steps_of",
    "value_digest",
    "within",
]

_MOST_BITS = 2_000
"""Of numbers that are told in decimal: `sys.set_int_max_str_digits` allows 640 digits at least."""
_WITH_CONSTANT = frozenset(dis.hasconst)
_MOST_CODES = 20_000
_codes: dict[int, tuple[types.CodeType, str]] = {}
"""Id of a code object → the object and its digest. Emptied where it grows too large."""
FORMATS = frozenset({"CONVERT_VALUE", "FORMAT_SIMPLE", "FORMAT_VALUE", "FORMAT_WITH_SPEC"})
"""What makes a text of a value, in a text."""
LOADS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
LOADS_CELL = frozenset({"LOAD_CLASSDEREF", "LOAD_DEREF", "LOAD_FROM_DICT_OR_DEREF"})
LOADS = LOADS_GLOBAL | LOADS_CELL | {"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"}
LOADS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_PAIR = re.compile(r"(?:LOAD|STORE)_FAST(?:_BORROW)?")
_NEITHER = -1
"""In place of an opcode, of a step that names no constant and no attribute."""
STORES = frozenset({"STORE_DEREF", "STORE_FAST", "STORE_GLOBAL", "STORE_NAME"})


class Step(NamedTuple):
    """One instruction; `value` is what its number stands for."""

    operation: str
    number: int | None
    value: Any
    opcode: int


@functools.lru_cache(maxsize=2048)
def steps_of(code: types.CodeType) -> tuple[Step, ...]:
    """Return the instructions of `code`; one of 3.13's that stands for two is two."""
    steps = []
    for each in dis.get_instructions(code):
        if each.opname == "EXTENDED_ARG":
            continue
        value = each.argval
        if each.opcode in dis.hasconst and each.arg is not None:
            value = code.co_consts[each.arg]  # which 3.11 does not tell of the names of keywords
        parts = _PAIR.findall(each.opname) if isinstance(each.argval, tuple) else []
        if len(parts) == 2 and isinstance(each.arg, int):
            numbers = (each.arg >> 4, each.arg & 15)
            steps += [Step(*step, _NEITHER) for step in zip(parts, numbers, each.argval, strict=True)]
        else:
            steps.append(Step(each.opname, each.arg, value, each.opcode))
    return tuple(steps)


def hashed(parts: Iterable[str]) -> str:
    """Return the hash of texts in their order: that of others only where they are the same."""
    told = "".join([f"{len(part)}:{part}" for part in parts]).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(told, digest_size=16).hexdigest()


def code_digest(code: types.CodeType) -> str:
    """Return the digest of instructions with their constants and names; lines and docstrings don't count."""
    known = _codes.get(id(code))
    if known is not None and known[0] is code:
        return known[1]
    constants = code.co_consts
    if constants and isinstance(constants[0], (str, type(None))) and not _loads_first(code):
        constants = constants[1:]  # a docstring, or its place
    found = hashed(
        (
            repr((code.co_qualname, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)),
            repr((code.co_flags, code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)),
            repr((code.co_code, code.co_exceptiontable)),
            _constant(constants),
        )
    )
    if len(_codes) >= _MOST_CODES:
        _codes.clear()
    _codes[id(code)] = (code, found)
    return found


def _loads_first(code: types.CodeType) -> bool:
    """Tell whether any instruction loads the first constant, which else is a docstring."""
    before = -1
    for operation, number in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        if number == 0 and operation in _WITH_CONSTANT and before != dis.EXTENDED_ARG:
            return True
        before = operation
    return False


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return f"code {code_digest(value)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    return f"{type(value).__name__} {exact(value)}"


def within(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code, and all that is nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from within(constant)


def lines_digest(code: types.CodeType) -> str:
    """Return the digest of the lines that instructions stand in, counted from the first."""
    return hashed([code.co_linetable.hex()])


def value_digest(code: types.CodeType) -> str:
    """Return the digest of code that is a value: of two that do the same, lines tell which are equal."""
    return f"code {code_digest(code)} {code.co_firstlineno} {lines_digest(code)}"


def exact(value: Any) -> str:
    """Return a plain value as text, such that no two that differ have the same; of a NaN, its bits."""
    if isinstance(value, float) and value != value:
        return f"nan {struct.pack('>d', value).hex()}"
    if isinstance(value, complex) and value != value:
        return f"{exact(value.real)} {exact(value.imag)}"
    return repr(value) if type(value) is not int else exact_int(value)


def exact_int(value: int) -> str:
    """Return a number as text, also where Python's `repr` refuses to, as it has too many digits."""
    return int.__repr__(value) if int.bit_length(value) <= _MOST_BITS else f"0x{int.__format__(value, 'x')}"
