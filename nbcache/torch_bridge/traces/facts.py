"""Facts of a trace: digests of values and of names, computed for a recording and again for each check."""

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
from nbcache.torch_bridge.traces.object_digests import NoTrace, module_by_name
from nbcache.torch_bridge.traces.state_reads import is_users_code

__all__ = [
    "ABSENT",
    "RUNS",
    "Expression",
    "SourceValues",
    "covers_value",
    "expression_of",
    "fact_of",
    "names_of",
    "object_at",
    "place_of",
    "present_names",
    "same_objects",
    "scope_of",
]

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()
"""Returned for a source whose value does not exist here."""
RUNS: Any = type("Runs", (), {"__repr__": lambda self: "a value that your code returns"})()
"""Returned for a source whose value only the user's code could return, such as a property's."""
_BUILT_IN = "built in"
_RUNS = "runs code"
_PRESENT = "held"
_CLASS_ONLY = "a "
_ATTRIBUTE = re.compile(r"(?:dict\()?\{0\}\.(\w+)")
_IMMUTABLES = (tuple, frozenset, range, slice)


class SourceValues:
    """Evaluates sources in this kernel: source → value."""

    def __init__(self, frame: Mapping[str, Any], scope: Mapping[str, Any], env: Any) -> None:
        """`frame` has the locals and `scope` the globals; `env` has the names that torch's guards use."""
        self._names = {**env, "L": frame, "G": scope}
        self._known: dict[Any, Any] = {}
        self._running = Running(is_users_code)

    def of(self, source: Any) -> Any:
        """Return the value of a source, or ABSENT or RUNS, as `read` does."""
        if source not in self._known:
            base = getattr(source, "base", None)
            self._known[source] = self.read(expression_of(source), None if base is None else self.of(base))
        return self._known[source]

    def read(self, expression: Expression | None, base: Any) -> Any:
        """Return the value of a source, given its expression and the value of its base source.

        Return ABSENT if there is no such value, and RUNS if the user's code would have to run.
        """
        if expression is None or base is ABSENT:
            return ABSENT
        if base is RUNS or self._runs(expression, base):
            return RUNS
        try:
            return eval(expression.code, self._names, {"_": base})
        except Exception:  # no code of the user has run, so the exception says that the value is missing
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
    """A source as a Python expression. It evaluates to what `Source.get_value` returns, but faster."""

    code: types.CodeType
    """The compiled expression, in which `_` is the value of the base source."""
    attribute: str = ""
    """Name of the attribute of `_` that the expression reads."""
    is_element: bool = False
    """The expression calls the `__getitem__` of the type of `_`."""
    has_key: bool = False
    """The expression reads an element, and `_` may be a dictionary."""
    key: Any = None
    """Key of that element; None if `index` is set."""
    index: Any = None
    """Source of that element's key; None if the key is a constant."""


def expression_of(source: Any) -> Expression | None:
    """Return the expression of a source; None if it has no value, such as torch's global state."""
    try:
        template = source._name_template
        if not hasattr(source, "base"):
            return Expression(_compile_expression(template))
        index = getattr(source, "index", None)
        is_source = hasattr(index, "get_value")
        return Expression(
            _compile_expression(template.format("_")),
            attribute=_attribute_of(template, source),
            is_element=template.startswith("{0}["),
            has_key=template.startswith(("{0}[", "dict.__getitem__({0}")),
            key=None if is_source else index,
            index=index if is_source else None,
        )
    except Exception:
        return None


def _attribute_of(template: str, source: Any) -> str:
    """Return the name of the attribute that an expression reads from `_`; empty if it reads no attribute."""
    match = _ATTRIBUTE.match(template)
    if match is not None:
        return match[1]
    return str(source.member) if template.startswith(("getattr({0}", "object.__getattribute__({0}")) else ""


@functools.lru_cache(maxsize=4096)
def _compile_expression(expression: str) -> types.CodeType:
    """Compile an expression once, since many layers of a model share it."""
    return compile(expression, "<source>", "eval")


def fact_of(objects: Objects, value: Any, scope: Mapping[str, Any], *, complete: bool = True) -> str:
    """Return the digest of a value; the digest of its class alone unless `complete`.

    The dictionary of built-in names has a constant digest: each of the names is a fact.
    """
    if value is ABSENT:
        return "absent"
    if value is RUNS:
        return _RUNS
    if value is builtins_of(scope):
        return _BUILT_IN
    return objects.digest(value) if complete else f"{_CLASS_ONLY}{objects.digest(type(value))}"


def covers_value(fact: str) -> bool:
    """Return whether a fact digests the value, and not only its class."""
    return not fact.startswith(_CLASS_ONLY)


def same_objects(values: Sequence[Any]) -> list[int]:
    """Return for each value the index of the first value that is the same object.

    Constants, whose identity is irrelevant, get their own index.
    """
    first: dict[int, int] = {}
    return [
        index
        if is_plain(value) or value is ABSENT or value is RUNS or type(value) in _IMMUTABLES
        else first.setdefault(id(value), index)
        for index, value in enumerate(values)
    ]


def scope_of(module: str, scope: dict[str, Any]) -> dict[str, Any] | None:
    """Return the globals of a module; those of the traced function for an empty name."""
    return scope if not module else getattr(module_by_name(module), "__dict__", None)


def builtins_of(scope: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the built-in names of code with these globals."""
    builtin_names: Any = scope["__builtins__"]
    return builtin_names if isinstance(builtin_names, dict) else builtin_names.__dict__


def names_of(objects: Objects, scope: Mapping[str, Any], names: Iterable[str]) -> list[list[str]]:
    """Return rows [name, digest] for what each name means in these globals; only constants are digested."""
    builtin = builtins_of(scope)
    rows = []
    for name in names:
        if name in scope:
            value = scope[name]
            rows.append([name, objects.digest(value) if is_plain(value) else _PRESENT])
        else:
            value = builtin.get(name, ABSENT)
            digest = objects.digest(value) if is_plain(value) else _BUILT_IN
            rows.append([name, "absent" if value is ABSENT else digest])
    return rows


def present_names(scope: Mapping[str, Any], names: Set[str]) -> set[str]:
    """Return those of the names that a module has, and which of them it sets to None.

    A class doesn't implement a protocol if it sets the protocol's method to None.
    """
    present = names & scope.keys()
    return present | {f"{name} is None" for name in present if scope[name] is None}


def place_of(value: Any) -> tuple[str, str] | None:
    """Return the module and qualified name of a function or class; None if they lead to another object."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str):
        try:
            return (module, name) if object_at(module, name) is value else None
        except NoTrace:
            pass
    return None


def object_at(module: str, name: str) -> Any:
    """Return the object with this qualified name in an imported module; raise NoTrace if there is no such."""
    value: Any = module_by_name(module)
    for part in name.split("."):
        if isinstance(value, types.ModuleType):
            value = value.__dict__.get(part, ABSENT)
        elif isinstance(value, type):
            value = inspect.getattr_static(value, part, ABSENT)
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            elif isinstance(value, property):
                value = value.fget
        else:
            value = ABSENT
    if value is ABSENT:
        raise NoTrace(f"{name} is not in {module}")
    return value
