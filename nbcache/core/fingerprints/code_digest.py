"""Digests of code by what it does, and of texts."""

from __future__ import annotations

import dis
import hashlib
import types
from collections.abc import Iterable
from typing import Any

from nbcache.core.fingerprints.digests import exact

__all__ = ["code_digest", "hashed", "lines_digest", "value_digest"]

_WITH_CONSTANT = frozenset(dis.hasconst)
_MOST_CODES = 20_000
_codes: dict[int, tuple[types.CodeType, str]] = {}
"""Id of a code object → the object and its digest. Emptied where it grows too large."""


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
    if constants and isinstance(constants[0], str) and not _loads_first(code):
        constants = constants[1:]  # a docstring
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


def lines_digest(code: types.CodeType) -> str:
    """Return the digest of the lines that instructions stand in, counted from the first."""
    return hashed([code.co_linetable.hex()])


def value_digest(code: types.CodeType) -> str:
    """Return the digest of code that is a value: of two that do the same, lines tell which are equal."""
    return f"code {code_digest(code)} {code.co_firstlineno} {lines_digest(code)}"
