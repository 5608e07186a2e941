"""Code that Dynamo generates, and the globals that it sets for that code.

Generated code refers to code that is nested in the traced function's, which a trace does not hold.
"""

from __future__ import annotations

import inspect
import json
import sys
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from types import CodeType, ModuleType
from typing import Any

from nbcache.artifacts.traces import REST, code_to
from nbcache.core.canonical_json import corrupt
from nbcache.torch_bridge.traces.facts import builtins_of, place_of
from nbcache.torch_bridge.traces.object_digests import Frame, Own, Untold, constant_to
from nbcache.torch_bridge.traces.trace_rows import Sources

__all__ = ["code_row", "installed_by", "placed", "set_by_attempts", "within"]


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


def installed_by(graph: Any, graphs: Mapping[str, str], frame: Frame) -> Iterator[list[str]]:
    """Return the globals that Dynamo has set for its code: their names, and what they are.

    A function that goes on after a graph break is its code, as JSON.
    """
    for cleanup in graph.cleanups:
        name, value = cleanup.name, cleanup.scope[cleanup.name]
        if name in graphs:
            yield [name, "graph", ""]
        elif name == graph.name_of_builtins_dict_key_in_fglobals:
            yield [name, "builtins", ""]
        elif (rest := _rest_of(value, frame)) is not None:
            yield [name, REST[bool(rest.co_freevars)], json.dumps(code_row(rest, frame.code))]
        elif isinstance(value, ModuleType) and sys.modules.get(value.__name__) is value:
            yield [name, "module", value.__name__]
        elif isinstance(value, (types.FunctionType, type)) and (place := place_of(value)) is not None:
            yield [name, "object", " ".join(place)]
        else:
            raise Untold(f"its code reads a {type(value).__qualname__} that Dynamo has set as a global")


def set_by_attempts(
    sources: Sources, values: Sequence[Any], frame: Frame, known: Set[str]
) -> Iterator[list[str]]:
    """Return the globals for built-in names that earlier attempts to trace had set, and sources name."""
    builtin = builtins_of(frame.scope)
    for (kind, _, fields), value in zip(sources.rows, values, strict=True):
        name = fields.get("global_name")
        if kind == "GlobalSource" and value is builtin and name not in known:
            yield [name, "builtins", ""]


def _rest_of(value: Any, frame: Frame) -> CodeType | None:
    """Return the code of a function that goes on after a graph break, or of what makes it with a closure."""
    if not isinstance(value, types.FunctionType):
        return None
    code, scope = value.__code__, value.__globals__
    if code.co_name == "_make_fn" and code.co_filename == _file_of_output_graph():
        held = inspect.getclosurevars(value).nonlocals
        code, scope = held["code"], held["f_globals"]
    if not code.co_name.startswith("torch_dynamo_resume_in_"):
        return None
    if scope is not frame.scope:
        raise Untold("it has a graph break in a function of another module")
    return code


def _file_of_output_graph() -> str:
    """Return the file of the module of torch's that sets these globals."""
    return str(sys.modules["torch._dynamo.output_graph"].__file__)
