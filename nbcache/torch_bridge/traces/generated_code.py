"""Code that Dynamo generates, and the globals that it sets for that code.

Generated code refers to code that is nested in the traced function's, which a trace does not contain.
"""

from __future__ import annotations

import inspect
import json
import sys
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from types import CodeType, ModuleType
from typing import Any

from nbcache.artifacts.traces import RESUME_KINDS, code_to
from nbcache.core.canonical_json import corrupt
from nbcache.torch_bridge.traces.facts import builtins_of, place_of
from nbcache.torch_bridge.traces.object_digests import Frame, NestedCode, NoTrace, constant_to
from nbcache.torch_bridge.traces.trace_rows import Sources

__all__ = ["code_row", "code_tree", "globals_of_attempts", "installed_globals", "restored_code"]


def code_row(code: CodeType, original: CodeType) -> dict[str, Any]:
    """Return generated code as JSON, with NestedCode in place of the original's nested code objects.

    Raise NoTrace if it has another nested code object, whose docstring and lines are not facts.
    """
    indices = {id(nested): index for index, nested in enumerate(_nested_code(original))}

    def placeholder(value: Any) -> Any:
        if not isinstance(value, CodeType):
            return value
        if id(value) not in indices:
            raise NoTrace(
                f"it creates {value.co_qualname}(), whose code is not part of the traced function's"
            )
        return NestedCode(indices[id(value)])

    return code_to(code.replace(co_consts=tuple(map(placeholder, code.co_consts))), constant_to)


def restored_code(code: CodeType, original: CodeType) -> CodeType:
    """Return stored code with the original's nested code, file and line.

    Raise CorruptEntry if it has any other nested code.
    """
    nested = _nested_code(original)

    def original_constant(value: Any) -> Any:
        if isinstance(value, CodeType) or (isinstance(value, NestedCode) and value.index >= len(nested)):
            raise corrupt("a trace creates a function whose code is not part of the traced one's")
        return nested[value.index] if isinstance(value, NestedCode) else value

    return code.replace(
        co_consts=tuple(map(original_constant, code.co_consts)),
        co_filename=original.co_filename,
        co_firstlineno=original.co_firstlineno,
    )


def code_tree(code: CodeType) -> Iterator[CodeType]:
    """Return a code object and all code objects that are nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_tree(constant)


def _nested_code(code: CodeType) -> Sequence[CodeType]:
    return [*code_tree(code)][1:]


def installed_globals(graph: Any, graphs: Mapping[str, str], frame: Frame) -> Iterator[list[str]]:
    """Return rows [name, kind, place] for the globals that Dynamo has set for its code.

    The place of a function that resumes after a graph break is its code, as JSON.
    """
    for cleanup in graph.cleanups:
        name, value = cleanup.name, cleanup.scope[cleanup.name]
        if name in graphs:
            yield [name, "graph", ""]
        elif name == graph.name_of_builtins_dict_key_in_fglobals:
            yield [name, "builtins", ""]
        elif (resume_code := _resume_code(value, frame)) is not None:
            yield [
                name,
                RESUME_KINDS[bool(resume_code.co_freevars)],
                json.dumps(code_row(resume_code, frame.code)),
            ]
        elif isinstance(value, ModuleType) and sys.modules.get(value.__name__) is value:
            yield [name, "module", value.__name__]
        elif isinstance(value, (types.FunctionType, type)) and (place := place_of(value)) is not None:
            yield [name, "object", " ".join(place)]
        else:
            raise NoTrace(
                f"its code reads a global of the type {type(value).__qualname__}, which Dynamo has set"
            )


def globals_of_attempts(
    sources: Sources, values: Sequence[Any], frame: Frame, installed: Set[str]
) -> Iterator[list[str]]:
    """Return rows for the globals that earlier attempts to trace set to the built-in names."""
    builtin_names = builtins_of(frame.scope)
    for (kind, _, fields), value in zip(sources.rows, values, strict=True):
        name = fields.get("global_name")
        if kind == "GlobalSource" and value is builtin_names and name not in installed:
            yield [name, "builtins", ""]


def _resume_code(value: Any, frame: Frame) -> CodeType | None:
    """Return the code with which a function, or its factory for a closure, resumes after a graph break."""
    if not isinstance(value, types.FunctionType):
        return None
    code, scope = value.__code__, value.__globals__
    if code.co_name == "_make_fn" and code.co_filename == _file_of_output_graph():
        variables = inspect.getclosurevars(value).nonlocals
        code, scope = variables["code"], variables["f_globals"]
    if not code.co_name.startswith("torch_dynamo_resume_in_"):
        return None
    if scope is not frame.scope:
        raise NoTrace("it has a graph break in a function of another module")
    return code


def _file_of_output_graph() -> str:
    """Return the file of the torch module that defines the factory of resuming functions."""
    return str(sys.modules["torch._dynamo.output_graph"].__file__)
