"""How code counts: by its instructions, and what these read by globals, cells, modules and imports."""

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
from nbcache.core.fingerprints.known_code import Known
from nbcache.core.fingerprints.reads import Reads, Unknown

__all__ = ["add_code"]

_FLAGS = 0x02AC
"""Those of `co_flags` that say what a call does: `*args`, `**kwargs`, generators and coroutines."""
_ABSENT = object()


class State(Protocol):
    """The fingerprint that code is added to."""

    known: Known
    reads: Reads

    def note(self, *texts: object) -> None:
        """Add texts."""

    def add(self, value: Any, words: str = "") -> None:
        """Add a value, which `words` name."""

    def unknown(self, what: str) -> Unknown:
        """Return the error that names a value."""


def add_code(
    state: State,
    code: types.CodeType,
    scope: Mapping[str, Any],
    cells: Mapping[str, types.CellType],
    imported: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Add code; `imported` are the modules that the code around it has imported, by their names."""
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    state.note("code", code.co_flags & _FLAGS, code.co_argcount, code.co_posonlyargcount)
    state.note(len(arguments), *arguments, code.co_exceptiontable)
    steps = steps_of(code)
    generated = code.co_name == "__repr__" and code.co_filename == "<string>"  # a dataclass's
    modules = {name: list(values) for name, values in (imported or {}).items()}
    for index, step in enumerate(steps):
        if step.operation == "IMPORT_NAME":  # first, as functions within may read what comes later
            _import(state, steps, index, scope, modules)
    for index, (operation, number, value, opcode) in enumerate(steps):
        state.note(operation)
        state.reads.texts |= operation in FORMATS and not generated
        # From 3.13 on LOAD_FAST loads the cells that make a closure: what they hold is used further in.
        makes_closure = operation == "LOAD_FAST" and value in (*code.co_cellvars, *code.co_freevars)
        if operation in LOADS and value in modules and not makes_closure:
            for module in modules[value]:
                _chain(state, module, steps, index)
        state.reads.rebinds |= operation in REBINDS
        if operation in LOADS_GLOBAL:
            state.reads.globals.append(value)
            if value in scope:
                _chain(state, scope[value], steps, index)
            elif hasattr(builtins, value):
                found = getattr(builtins, value)
                if found in (getattr, hasattr) and _names_a_constant(steps, index):
                    state.note(value)  # the constant is noted as the name of an attribute
                else:
                    _chain(state, found, steps, index)
            elif value not in modules:
                state.note("absent", value)
        elif operation in LOADS_CELL and value in cells:
            try:
                content = cells[value].cell_contents
            except ValueError:
                state.note("empty")
            else:
                _chain(state, content, steps, index)
        elif opcode in dis.hasconst:
            if isinstance(value, types.CodeType):
                add_code(state, value, scope, cells, modules)
            else:
                state.add(value)
        elif opcode in dis.hasname:
            if operation != "IMPORT_NAME":
                state.reads.name(value, generated=generated)
                state.note(value)
        elif number is not None and value not in modules:
            state.note(number)


def _names_a_constant(steps: Sequence[Step], index: int) -> bool:
    """Tell whether what is loaded is called at once, with plain names but for a constant as the second."""
    arguments: list[Step] = []
    for step in steps[index + 1 :]:
        if step.operation == "CALL":
            second = [each.operation for each in arguments[1:2]]
            return len(arguments) == step.number and second == ["LOAD_CONST"]
        if step.operation.startswith("LOAD_") and step.operation not in LOADS_ATTRIBUTE:
            arguments.append(step)
        elif step.operation not in ("PRECALL", "PUSH_NULL", *LOADS_ATTRIBUTE):
            return False
    return False


def _chain(state: State, value: Any, steps: Sequence[Step], index: int) -> None:
    """Add what a name and the attributes that follow it lead to: through modules, and no further."""
    words = f"`{steps[index].value}`"
    for following in steps[index + 1 :]:
        if not issubclass(type(value), types.ModuleType) or following.operation not in LOADS_ATTRIBUTE:
            break
        state.reads.name(following.value)
        found = _attribute(state, value, following.value)
        if found is _ABSENT:
            state.note("absent", following.value)
            return
        value = found
        words = f"`{following.value}`"
    state.add(value, words)


def _attribute(state: State, module: types.ModuleType, name: str) -> Any:
    """Return an attribute of a module, or that it is absent; no code of others runs to find it."""
    held: dict[str, Any] = object.__getattribute__(module, "__dict__")
    if name in held:
        return held[name]
    kind = type(module)
    if state.known.has_module(module.__name__) or (kind is not types.ModuleType and state.known.has(kind)):
        return getattr(module, name, _ABSENT)
    if hasattr(types.ModuleType, name):
        return object.__getattribute__(module, name)
    if kind is types.ModuleType and "__getattr__" not in held:
        return _ABSENT
    raise state.unknown(f"`{name}` of `{module.__name__}`, which is loaded only when it is asked for")


def _import(
    state: State,
    steps: Sequence[Step],
    index: int,
    scope: Mapping[str, Any],
    imported: dict[str, list[Any]],
) -> None:
    """Follow an import within a function: a module that it binds is looked at where it is used."""
    level, names, name = (step.value for step in (*steps[index - 2 : index], steps[index]))
    if level:
        try:
            name = resolve_name("." * level + name, scope.get("__package__") or "")
        except ImportError as error:
            raise state.unknown(f"`{name}`, imported from a package that is not told") from error
    state.note(name)
    renamed = names is None and steps[index + 1].operation == "IMPORT_FROM"  # `import a.b as c`
    if names is None and not renamed:
        name = name.partition(".")[0]
    module = sys.modules.get(name)
    if module is None and not state.known.has_module(name):
        raise state.unknown(f"`{name}`, which it imports and nobody has yet")
    if module is None:
        state.reads.of_module(name, "")
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
        found = _ABSENT if module is None else _imported_from(state, module, name, attribute)
        if issubclass(type(found), types.ModuleType):
            imported.setdefault(steps[at + 1].value, []).append(found)
        elif found is not _ABSENT:
            state.add(found, f"`{attribute}`")


def _imported_from(state: State, module: types.ModuleType, name: str, attribute: str) -> Any:
    part = sys.modules.get(f"{name}.{attribute}")
    if part is not None and attribute not in object.__getattribute__(module, "__dict__"):
        return part
    return _attribute(state, module, attribute)
