"""Instructions of code objects, and the opcodes that load names."""

from __future__ import annotations

import dis
import functools
import re
import types
from typing import Any, NamedTuple

__all__ = [
    "FORMATS",
    "LOADS",
    "LOADS_ATTRIBUTE",
    "LOADS_CELL",
    "LOADS_GLOBAL",
    "REBINDS",
    "STORES",
    "Step",
    "steps_of",
]

FORMATS = frozenset({"CONVERT_VALUE", "FORMAT_SIMPLE", "FORMAT_VALUE", "FORMAT_WITH_SPEC"})
"""Instructions that format a value in an f-string."""
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
            value = code.co_consts[
                instruction.arg
            ]  # Python 3.11 leaves `argval` empty for the names of keywords
        parts = _PAIR.findall(instruction.opname) if isinstance(instruction.argval, tuple) else []
        if len(parts) == 2 and isinstance(instruction.arg, int):
            numbers = (instruction.arg >> 4, instruction.arg & 15)
            steps += [Step(*step, _NEITHER) for step in zip(parts, numbers, instruction.argval, strict=True)]
        else:
            steps.append(Step(instruction.opname, instruction.arg, value, instruction.opcode))
    return tuple(steps)
