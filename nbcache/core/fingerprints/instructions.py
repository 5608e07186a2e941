"""The instructions of code, and which of them load names."""

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
"""What makes a text of a value, in a text."""
LOADS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
LOADS_CELL = frozenset({"LOAD_CLASSDEREF", "LOAD_DEREF", "LOAD_FROM_DICT_OR_DEREF"})
LOADS = LOADS_GLOBAL | LOADS_CELL | {"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"}
LOADS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
REBINDS = frozenset({"DELETE_GLOBAL", "STORE_GLOBAL"})
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
