"""The facts of a trace: found where it is recorded, and asked for again where it may be adopted."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from nbcache.core.fingerprints.objects import Objects, is_plain
from nbcache.core.fingerprints.running import Running
from nbcache.torch_bridge.traces.object_digests import Untold, module_named
from nbcache.torch_bridge.traces.state_reads import is_users

__all__ = [
    "ABSENT",
    "RUNS",
    "Expression",
    "Values",
    "expression_of",
    "fact_of",
    "found_at",
    "is_whole",
    "names_held",
    "names_of",
    "place_of",
    "same_objects",
    "scope_of",
]

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()
"""In place of a value that is not there."""
RUNS: Any = type("Runs", (), {"__repr__": lambda self: "what your code returns"})()
"""In place of a value that cannot be had without running code of the user's, such as a property's."""
_BUILT_IN = "built in"
_RUNS = "runs code"
_HELD = "held"
_A = "a "
_ATTRIBUTE = re.compile(r"(?:dict\()?\{0\}\.(\w+)")
_SINGLES = (tuple, frozenset, range, slice)


class Values:
    """What sources stand for here."""

    def __init__(self, frame: Mapping[str, Any], scope: Mapping[str, Any], env: Any) -> None:
        """`frame` are the locals, `scope` the globals, `env` what torch's expressions may name besides."""
        self._names = {**env, "L": frame, "G": scope}
        self._known: dict[Any, Any] = {}
        self._running = Running(is_users)

    def of(self, source: Any) -> Any:
        """Return what a source stands for, as `read` does."""
        if source not in self._known:
            base = getattr(source, "base", None)
            self._known[source] = self.read(expression_of(source), None if base is None else self.of(base))
        return self._known[source]

    def read(self, expression: Expression | None, base: Any) -> Any:
        """Return what a source stands for, by its expression, and what it is read from, if from anything.

        ABSENT where nothing is found, RUNS where code of the user's would have to run.
        """
        if expression is None or base is ABSENT:
            return ABSENT
        if base is RUNS or self._runs(expression, base):
            return RUNS
        try:
            return eval(expression.code, self._names, {"_": base})
        except Exception:  # whatever is raised that is not the user's
            return ABSENT

    def _runs(self, expression: Expression, base: Any) -> bool:
        key = expression.key if expression.index is None else self.of(expression.index)
        if key is RUNS or (expression.attribute and self._running.attribute(base, expression.attribute)):
            return True
        if expression.is_element and self._running.element(base):
            return True
        return expression.has_key and self._running.missing(base, key)


@dataclass(frozen=True, slots=True)
class Expression:
    """torch's expression of a source. It gives what `Source.get_value` gives, but faster."""

    code: types.CodeType
    """In it, `_` is what the source is read from."""
    attribute: str = ""
    """The attribute of `_` that it asks for."""
    is_element: bool = False
    """Whether it asks for an element of `_`, by the method that `_` has for that."""
    has_key: bool = False
    """Whether it asks for an element of `_`, which may be a dictionary, by whatever method."""
    key: Any = None
    """The place of that element; None where `index` has it."""
    index: Any = None
    """The source of that element's place; None where the place is a constant."""


def expression_of(source: Any) -> Expression | None:
    """Return the expression of a source; None where it has none, such as one for torch's global state."""
    try:
        template = source._name_template
        if not hasattr(source, "base"):
            return Expression(_compiled(template))
        index = getattr(source, "index", None)
        is_source = hasattr(index, "get_value")
        return Expression(
            _compiled(template.format("_")),
            attribute=_attribute_in(template, source),
            is_element=template.startswith("{0}["),
            has_key=template.startswith(("{0}[", "dict.__getitem__({0}")),
            key=None if is_source else index,
            index=index if is_source else None,
        )
    except Exception:
        return None


def _attribute_in(template: str, source: Any) -> str:
    """Return the attribute that an expression asks what it begins with for; empty where it asks for none."""
    found = _ATTRIBUTE.match(template)
    if found is not None:
        return found[1]
    return str(source.member) if template.startswith(("getattr({0}", "object.__getattribute__({0}")) else ""


@functools.lru_cache(maxsize=4096)
def _compiled(expression: str) -> types.CodeType:
    """Return the code of an expression of torch's: many layers of a model have the same."""
    return compile(expression, "<source>", "eval")


def fact_of(objects: Objects, value: Any, scope: Mapping[str, Any], *, whole: bool = True) -> str:
    """Return what counts of a value, its class alone unless it counts as a `whole`.

    Of all built-in names together nothing does, as each counts alone.
    """
    if value is ABSENT:
        return "absent"
    if value is RUNS:
        return _RUNS
    if value is builtins_of(scope):
        return _BUILT_IN
    return objects.digest(value) if whole else f"{_A}{objects.digest(type(value))}"


def is_whole(fact: str) -> bool:
    """Tell whether a fact tells more of a value than its class."""
    return not fact.startswith(_A)


def same_objects(values: Sequence[Any]) -> list[int]:
    """Return for each value the index of the first that is the very same object; its own, of constants."""
    first: dict[int, int] = {}
    return [
        index
        if is_plain(value) or value is ABSENT or value is RUNS or type(value) in _SINGLES
        else first.setdefault(id(value), index)
        for index, value in enumerate(values)
    ]


def scope_of(module: str, scope: dict[str, Any]) -> dict[str, Any] | None:
    """Return the globals of a module; those of the function itself, where the name is empty."""
    return scope if not module else getattr(module_named(module), "__dict__", None)


def builtins_of(scope: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what names stand for that are no globals."""
    found: Any = scope["__builtins__"]
    return found if isinstance(found, dict) else found.__dict__


def names_of(objects: Objects, scope: Mapping[str, Any], names: Iterable[str]) -> list[list[str]]:
    """Return what each name means to code with these globals; of numbers and texts, which they are."""
    builtin = builtins_of(scope)
    rows = []
    for name in names:
        if name in scope:
            value = scope[name]
            rows.append([name, objects.digest(value) if is_plain(value) else _HELD])
        else:
            value = builtin.get(name, ABSENT)
            told = objects.digest(value) if is_plain(value) else _BUILT_IN
            rows.append([name, "absent" if value is ABSENT else told])
    return rows


def names_held(scope: Mapping[str, Any], asked: Set[str]) -> set[str]:
    """Return which of the names that are asked for a module has; of one that is None, that it is, too.

    A method of a protocol that is None there does not fit it.
    """
    held = asked & scope.keys()
    return held | {f"{name} is None" for name in held if scope[name] is None}


def place_of(value: Any) -> tuple[str, str] | None:
    """Return the module and the qualified name under which a function or class is found; None elsewhere."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str):
        try:
            return (module, name) if found_at(module, name) is value else None
        except Untold:
            pass
    return None


def found_at(module: str, name: str) -> Any:
    """Return what is found under a qualified name in a module that is imported; Untold where nothing is."""
    found: Any = module_named(module)
    for part in name.split("."):
        if isinstance(found, types.ModuleType):
            found = found.__dict__.get(part, ABSENT)
        elif isinstance(found, type):
            found = inspect.getattr_static(found, part, ABSENT)
            if isinstance(found, (staticmethod, classmethod)):
                found = found.__func__
            elif isinstance(found, property):
                found = found.fget
        else:
            found = ABSENT
    if found is ABSENT:
        raise Untold(f"{name} is not in {module}")
    return found
