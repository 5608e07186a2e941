"""Adds code objects to fingerprints: instructions and the globals, cells, modules and imports they read."""

from __future__ import annotations

import builtins
import dis
import sys
import types
from collections.abc import Mapping, Sequence
from importlib.util import resolve_name
from typing import Any, Protocol

from nbcache.core.fingerprints.instructions import (
    FORMATS,
    LOADS,
    LOADS_ATTRIBUTE,
    LOADS_CELL,
    LOADS_GLOBAL,
    REBINDS,
    STORES,
    Step,
    steps_of,
)
from nbcache.core.fingerprints.known_code import KnownPackages
from nbcache.core.fingerprints.reads import Reads, Unknown

__all__ = ["add_code"]

_FLAGS = 0x02AC
"""Bits of `co_flags` that affect a call: `*args`, `**kwargs`, generators and coroutines."""
_ABSENT = object()


class State(Protocol):
    """The fingerprint to which code is added."""

    known: KnownPackages
    reads: Reads

    def note(self, *texts: object) -> None:
        """Add texts."""

    def add(self, value: Any, words: str = "") -> None:
        """Add a value, which errors describe as `words`."""

    def unknown(self, reason: str) -> Unknown:
        """Return the error for a value."""


def add_code(
    state: State,
    code: types.CodeType,
    scope: Mapping[str, Any],
    cells: Mapping[str, types.CellType],
    imported: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Add a code object; `imported` are the modules that the enclosing code has imported, by name."""
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    state.note("code", code.co_flags & _FLAGS, code.co_argcount, code.co_posonlyargcount)
    state.note(len(arguments), *arguments, code.co_exceptiontable)
    steps = steps_of(code)
    generated = code.co_name == "__repr__" and code.co_filename == "<string>"  # by `dataclass`
    modules = {name: list(modules_) for name, modules_ in (imported or {}).items()}
    for index, step in enumerate(steps):
        if step.operation == "IMPORT_NAME":  # imports first: a nested function may use a later import
            _follow_import(state, steps, index, scope, modules)
    for index, (operation, number, value, opcode) in enumerate(steps):
        state.note(operation)
        state.reads.formats_values |= operation in FORMATS and not generated
        # From Python 3.13 on, LOAD_FAST also loads the cells for a nested function's closure.
        makes_closure = operation == "LOAD_FAST" and value in (*code.co_cellvars, *code.co_freevars)
        if operation in LOADS and value in modules and not makes_closure:
            for module in modules[value]:
                _add_attribute_chain(state, module, steps, index)
        state.reads.rebinds_globals |= operation in REBINDS
        if operation in LOADS_GLOBAL:
            state.reads.globals.append(value)
            if value in scope:
                _add_attribute_chain(state, scope[value], steps, index)
            elif hasattr(builtins, value):
                value_of_global = getattr(builtins, value)
                if value_of_global in (getattr, hasattr) and _names_a_constant(steps, index):
                    state.note(value)  # the constant is added as the name of an attribute
                else:
                    _add_attribute_chain(state, value_of_global, steps, index)
            elif value not in modules:
                state.note("absent", value)
        elif operation in LOADS_CELL and value in cells:
            try:
                content = cells[value].cell_contents
            except ValueError:
                state.note("empty")
            else:
                _add_attribute_chain(state, content, steps, index)
        elif opcode in dis.hasconst:
            if isinstance(value, types.CodeType):
                add_code(state, value, scope, cells, modules)
            else:
                state.add(value)
        elif opcode in dis.hasname:
            if operation != "IMPORT_NAME":
                state.reads.add_attribute(value, generated=generated)
                state.note(value)
        elif number is not None and value not in modules:
            state.note(number)


def _names_a_constant(steps: Sequence[Step], index: int) -> bool:
    """Return whether the loaded function is called at once with a constant as its second argument."""
    arguments: list[Step] = []
    for step in steps[index + 1 :]:
        if step.operation == "CALL":
            second = [argument.operation for argument in arguments[1:2]]
            return len(arguments) == step.number and second == ["LOAD_CONST"]
        if step.operation.startswith("LOAD_") and step.operation not in LOADS_ATTRIBUTE:
            arguments.append(step)
        elif step.operation not in ("PRECALL", "PUSH_NULL", *LOADS_ATTRIBUTE):
            return False
    return False


def _add_attribute_chain(state: State, value: Any, steps: Sequence[Step], index: int) -> None:
    """Add the value of a name, followed through attributes as long as the value is a module."""
    words = f"`{steps[index].value}`"
    for step in steps[index + 1 :]:
        if not issubclass(type(value), types.ModuleType) or step.operation not in LOADS_ATTRIBUTE:
            break
        state.reads.add_attribute(step.value)
        attribute = _attribute(state, value, step.value)
        if attribute is _ABSENT:
            state.note("absent", step.value)
            return
        value = attribute
        words = f"`{step.value}`"
    state.add(value, words)


def _attribute(state: State, module: types.ModuleType, name: str) -> Any:
    """Return an attribute of a module, or `_ABSENT`, without running user code."""
    attributes: dict[str, Any] = object.__getattribute__(module, "__dict__")
    if name in attributes:
        return attributes[name]
    kind = type(module)
    if state.known.has_module(module.__name__) or (
        kind is not types.ModuleType and state.known.defines(kind)
    ):
        return getattr(module, name, _ABSENT)
    if hasattr(types.ModuleType, name):
        return object.__getattribute__(module, name)
    if kind is types.ModuleType and "__getattr__" not in attributes:
        return _ABSENT
    raise state.unknown(f"`{name}` of `{module.__name__}`, which the module loads on first use")


def _follow_import(
    state: State,
    steps: Sequence[Step],
    index: int,
    scope: Mapping[str, Any],
    imported: dict[str, list[Any]],
) -> None:
    """Follow an import in a function; an imported module is added where the function uses it."""
    level, names, name = (step.value for step in (*steps[index - 2 : index], steps[index]))
    if level:
        try:
            name = resolve_name("." * level + name, scope.get("__package__") or "")
        except ImportError as error:
            raise state.unknown(f"`{name}`, imported relative to an unknown package") from error
    state.note(name)
    renamed = names is None and steps[index + 1].operation == "IMPORT_FROM"  # `import a.b as c`
    if names is None and not renamed:
        name = name.partition(".")[0]
    module = sys.modules.get(name)
    if module is None and not state.known.has_module(name):
        raise state.unknown(f"`{name}`, a module that is not imported yet")
    if module is None:
        state.reads.add_library_value(name, "")
    if names is None:
        bound = next((step.value for step in steps[index + 1 :] if step.operation in STORES), "")
        imported.setdefault(bound, []).append(module)
        return
    for at in range(index + 1, len(steps) - 1):
        if steps[at].operation in STORES:
            continue
        if steps[at].operation != "IMPORT_FROM":
            break
        attribute = steps[at].value
        member = _ABSENT if module is None else _import_member(state, module, name, attribute)
        if issubclass(type(member), types.ModuleType):
            imported.setdefault(steps[at + 1].value, []).append(member)
        elif member is not _ABSENT:
            state.add(member, f"`{attribute}`")


def _import_member(state: State, module: types.ModuleType, name: str, attribute: str) -> Any:
    part = sys.modules.get(f"{name}.{attribute}")
    if part is not None and attribute not in object.__getattribute__(module, "__dict__"):
        return part
    return _attribute(state, module, attribute)
