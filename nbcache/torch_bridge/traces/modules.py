"""Finds modules again by name: those that are imported, and copies of Python's that Dynamo walks through."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__ = ["module_named", "name_of", "scope_name"]

_COPY = "torch._dynamo.polyfills.{0}.py_{0}"
"""Where Dynamo keeps the copy of a module of Python's that has no code in C, such as `operator`."""


def module_named(name: str) -> Any:
    """Return the module that `name_of` gives a name; None where there is none."""
    if (found := sys.modules.get(name)) is not None:
        return found
    holder, _, module = name.rpartition(".py_")
    if name != _COPY.format(module):
        return None
    return getattr(sys.modules.get(holder), "__dict__", {}).get(f"py_{module}")


def name_of(module: ModuleType) -> str:
    """Return the name by which a module is found again; empty where it is not."""
    name = scope_name(module.__dict__)
    return name if name and module_named(name) is module else ""


def scope_name(scope: dict[str, Any]) -> str:
    """Return the name by which the module with these very globals is found; empty where it is not."""
    name = scope.get("__name__")
    names = (name, _COPY.format(name)) if type(name) is str else ()
    return next((each for each in names if getattr(module_named(each), "__dict__", None) is scope), "")
