"""The functions that a function makes: their code is that of the function itself, wherever it stands now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

from nbcache.core.canonical_json import corrupt
from nbcache.torch_bridge.traces.values import Own, Untold

__all__ = ["placed", "with_own"]


def with_own(code: CodeType, original: CodeType) -> CodeType:
    """Return code that Dynamo has made of the original, with `Own` in place of the original's constants.

    Untold where it makes a function whose code is another's: that one's docstring and lines are no facts.
    """
    indices = {id(each): index for index, each in enumerate(_within(original))}

    def stored(value: Any) -> Any:
        if not isinstance(value, CodeType):
            return value
        if id(value) not in indices:
            raise Untold(f"it makes {value.co_qualname}(), whose code is not its own")
        return Own(indices[id(value)])

    return code.replace(co_consts=tuple(map(stored, code.co_consts)))


def placed(code: CodeType, original: CodeType) -> CodeType:
    """Return stored code with the original's own constants, in the file and at the line of the original.

    CorruptEntry where it has others.
    """
    own: Sequence[CodeType] = [*_within(original)]

    def found(value: Any) -> Any:
        if isinstance(value, CodeType) or (isinstance(value, Own) and value.index >= len(own)):
            raise corrupt("a trace makes a function whose code is not the traced one's own")
        return own[value.index] if isinstance(value, Own) else value

    return code.replace(
        co_consts=tuple(map(found, code.co_consts)),
        co_filename=original.co_filename,
        co_firstlineno=original.co_firstlineno,
    )


def _within(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _within(constant)
