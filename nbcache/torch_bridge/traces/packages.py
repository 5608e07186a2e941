"""What code of installed packages reads that Python runs while Dynamo traces: nothing of it has a guard."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Sequence
from itertools import pairwise
from logging import Logger
from types import CodeType, ModuleType
from typing import Any

from nbcache.core.fingerprints.instructions import LOADS_ATTRIBUTE, LOADS_GLOBAL, steps_of
from nbcache.core.fingerprints.known_code import DESCRIPTORS
from nbcache.torch_bridge.traces.facts import ABSENT, found_at
from nbcache.torch_bridge.traces.values import Untold
from nbcache.torch_bridge.traces.watch import Seen

__all__ = ["read_by_packages", "read_deeply", "within"]


def read_by_packages(seen: Seen, values: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Return where functions of installed packages are that Python has run, and globals that they read.

    Not those of classes of modules, where Dynamo has not met such a module among `values`: `inspect` asks all
    modules for their files.
    """
    found: dict[tuple[str, str], None] = {}
    kinds = {type(value) for value in values if isinstance(value, ModuleType)}
    finders = {type(finder) for finder in sys.meta_path}
    for code, module in seen.ran_of_packages.items():
        name = f"{code.co_qualname}() of {module}"
        if getattr(found_at(module, code.co_qualname), "__code__", None) is not code:
            raise Untold(f"Python runs {name}, which cannot be found again")
        owner = _owner(code, module)
        if owner in finders:  # of modules, which imports ask
            continue
        if owner is not None and issubclass(owner, ModuleType):
            if any(issubclass(kind, owner) for kind in kinds):
                raise Untold(f"it may call {name}, which is not traced")
            continue
        found[module, code.co_qualname] = None
        scope = vars(sys.modules[module])
        _refuse_reading(code, name)
        for each in within(code):
            found.update(dict.fromkeys(_read_by_package(each, scope, module, name)))
    yield from found


def read_deeply(
    seen: Seen,
    values: Sequence[Any],
    held: Sequence[tuple[Any, str]],
    places: Sequence[tuple[str, str]],
) -> Iterator[tuple[str, Any]]:
    """Return what code of packages that Python runs may read to any depth, each with its place.

    That is what its globals are, and the objects that its methods are called on.
    """
    for module, name in places:
        value = found_at(module, name)
        if not isinstance(value, (ModuleType, types.FunctionType, *DESCRIPTORS)):
            yield f"{module} {name}", value
    owners = {_owner(code, module) for code, module in seen.ran_of_packages.items()} - {None}
    met = {id(value) for value in values}
    for index, value in enumerate(values):
        if owners & {*type(value).__mro__}:
            yield str(index), value
    for value, _ in held:
        if id(value) not in met and owners & {*type(value).__mro__} and not isinstance(value, ModuleType):
            raise Untold(f"Python runs a method of a {type(value).__qualname__} that it comes to by no name")


def _owner(code: CodeType, module: str) -> type | None:
    """Return the class whose method this code is."""
    if "." not in code.co_qualname:
        return None
    found = found_at(module, code.co_qualname.rpartition(".")[0])
    return found if isinstance(found, type) else None


def _refuse_reading(code: CodeType, name: str) -> None:
    """Raise Untold of code that reads an attribute of any argument but the first: no fact tells of it."""
    others = {*code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]}
    for step, following in pairwise(steps_of(code)):
        of_argument = step.operation.startswith("LOAD_FAST") and step.value in others
        if of_argument and following.operation in (*LOADS_ATTRIBUTE, "STORE_FAST"):
            raise Untold(f"Python runs {name}, which reads {step.value}")


def _read_by_package(
    code: CodeType, scope: dict[str, Any], module: str, name: str
) -> Iterator[tuple[str, str]]:
    """Yield where the globals are that code of a package reads, and what it reads of modules among them."""
    steps = iter(steps_of(code))  # of which the last one returns
    for step in steps:
        if step.operation == "IMPORT_NAME":
            raise Untold(f"Python runs {name}, which imports a module")
        if step.operation not in LOADS_GLOBAL or step.value not in scope:
            continue
        place, value = (module, str(step.value)), scope[step.value]
        while isinstance(value, ModuleType):
            if type(value) is not ModuleType:
                raise Untold(f"Python runs {name}, which reads a {type(value).__qualname__}")
            following = next(steps)
            if following.operation not in LOADS_ATTRIBUTE:
                raise Untold(f"Python runs {name}, which hands the module {value.__name__} on")
            place = (value.__name__, str(following.value))
            value = value.__dict__.get(place[1], ABSENT)
        if not isinstance(value, Logger):  # a logger remembers what it is asked
            yield place


def within(code: CodeType) -> Iterator[CodeType]:
    """Return code, and what is in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from within(constant)
