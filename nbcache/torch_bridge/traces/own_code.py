"""The code of a trace. It refers to nested code of the traced function, which stands where it does now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

from nbcache.artifacts.traces import code_to
from nbcache.core.canonical_json import corrupt
from nbcache.torch_bridge.traces.values import Own, Untold, constant_to

__all__ = ["code_row", "placed", "within"]


def code_row(code: CodeType, original: CodeType) -> dict[str, Any]:
    """Return code that Dynamo has made of the original, as JSON with `Own` in place of nested code.

    Untold where it makes a function whose code is another's: that one's docstring and lines are no facts.
    """
    indices = {id(each): index for index, each in enumerate(_nested(original))}

    def stored(value: Any) -> Any:
        if not isinstance(value, CodeType):
            return value
        if id(value) not in indices:
            raise Untold(f"it makes {value.co_qualname}(), whose code is not its own")
        return Own(indices[id(value)])

    return code_to(code.replace(co_consts=tuple(map(stored, code.co_consts))), constant_to)


def placed(code: CodeType, original: CodeType) -> CodeType:
    """Return stored code with the original's nested code, in the file and at the line of the original.

    CorruptEntry where it has other code.
    """
    own = _nested(original)

    def found(value: Any) -> Any:
        if isinstance(value, CodeType) or (isinstance(value, Own) and value.index >= len(own)):
            raise corrupt("a trace makes a function whose code is not the traced one's own")
        return own[value.index] if isinstance(value, Own) else value

    return code.replace(
        co_consts=tuple(map(found, code.co_consts)),
        co_filename=original.co_filename,
        co_firstlineno=original.co_firstlineno,
    )


def within(code: CodeType) -> Iterator[CodeType]:
    """Return code, and all that is nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from within(constant)


def _nested(code: CodeType) -> Sequence[CodeType]:
    return [*within(code)][1:]
