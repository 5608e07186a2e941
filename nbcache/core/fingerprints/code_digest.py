"""Digests of code objects and of texts."""

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
