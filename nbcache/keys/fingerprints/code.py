"""Instructions of code objects, opcodes that load names, and digests of code objects and texts."""

from __future__ import annotations

import dis
import functools
import hashlib
import re
import struct
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


def words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


FORMATS = frozenset({"CONVERT_VALUE", "FORMAT_SIMPLE", "FORMAT_VALUE", "FORMAT_WITH_SPEC"})
LOADS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
LOADS_CELL = frozenset({"LOAD_CLASSDEREF", "LOAD_DEREF", "LOAD_FROM_DICT_OR_DEREF"})
LOADS = LOADS_GLOBAL | LOADS_CELL | {"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"}
LOADS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
REBINDS = frozenset({"DELETE_GLOBAL", "STORE_GLOBAL"})
_PAIR = re.compile(r"(?:LOAD|STORE)_FAST(?:_BORROW)?")
_NEITHER = -1
"""Opcode of a step that refers to no constant and no attribute."""
STORES = frozenset({"STORE_DEREF", "STORE_FAST", "STORE_GLOBAL", "STORE_NAME"})


class Step(NamedTuple):
    """One instruction; `value` is its resolved argument."""

    operation: str
    number: int | None
    value: Any
    opcode: int


@functools.lru_cache(maxsize=2048)
def steps_of(code: types.CodeType) -> tuple[Step, ...]:
    """Return the instructions of `code`; a fused instruction of Python 3.13 is returned as its two parts."""
    steps = []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "EXTENDED_ARG":
            continue
        value = instruction.argval
        if instruction.opcode in dis.hasconst and instruction.arg is not None:
            value = code.co_consts[instruction.arg]  # in Python 3.11, `argval` lacks the names of keywords
        parts = _PAIR.findall(instruction.opname) if isinstance(instruction.argval, tuple) else []
        if len(parts) == 2 and isinstance(instruction.arg, int):
            numbers = (instruction.arg >> 4, instruction.arg & 15)
            steps += [Step(*step, _NEITHER) for step in zip(parts, numbers, instruction.argval, strict=True)]
        else:
            steps.append(Step(instruction.opname, instruction.arg, value, instruction.opcode))
    return tuple(steps)


def code_tree(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_tree(constant)


_MOST_BITS = 2_000
"""Larger numbers are not written in decimal: `sys.set_int_max_str_digits` allows at least 640 digits."""
_WITH_CONSTANT = frozenset(dis.hasconst)
_MOST_CODES = 20_000
_codes: dict[int, tuple[types.CodeType, str]] = {}
"""Id of a code object → the object and its digest. It is emptied at `_MOST_CODES` entries."""


def hashed(parts: Iterable[str]) -> str:
    """Return the hash of a sequence of texts, each preceded by its length."""
    data = "".join([f"{len(part)}:{part}" for part in parts]).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def code_digest(code: types.CodeType) -> str:
    """Return the digest of instructions, constants and names, without line numbers and docstrings."""
    entry = _codes.get(id(code))
    if entry is not None and entry[0] is code:
        return entry[1]
    constants = code.co_consts
    if constants and isinstance(constants[0], str) and not _loads_first(code):
        constants = constants[1:]  # a docstring
    digest = hashed(
        (
            repr((code.co_qualname, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)),
            repr((code.co_flags, code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)),
            repr((code.co_code, code.co_exceptiontable)),
            _constant(constants),
        )
    )
    if len(_codes) >= _MOST_CODES:
        _codes.clear()
    _codes[id(code)] = (code, digest)
    return digest


def _loads_first(code: types.CodeType) -> bool:
    """Return whether an instruction loads the first constant; otherwise it is a docstring."""
    previous = -1
    for operation, number in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        if number == 0 and operation in _WITH_CONSTANT and previous != dis.EXTENDED_ARG:
            return True
        previous = operation
    return False


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return f"code {code_digest(value)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    return f"{type(value).__name__} {exact(value)}"


def lines_digest(code: types.CodeType) -> str:
    """Return the digest of the instructions' line numbers, relative to the first line."""
    return hashed([code.co_linetable.hex()])


def value_digest(code: types.CodeType) -> str:
    """Return the digest of a code object as a value: Python compares line numbers, too."""
    return f"code {code_digest(code)} {code.co_firstlineno} {lines_digest(code)}"


def exact(value: Any) -> str:
    """Return a plain value as a text that is unique among values of its type; a NaN as its bits."""
    if isinstance(value, float) and value != value:
        return f"nan {struct.pack('>d', value).hex()}"
    if isinstance(value, complex) and value != value:
        return f"{exact(value.real)} {exact(value.imag)}"
    return repr(value) if type(value) is not int else exact_int(value)


def exact_int(value: int) -> str:
    return int.__repr__(value) if int.bit_length(value) <= _MOST_BITS else f"0x{int.__format__(value, 'x')}"
