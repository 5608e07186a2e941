"""Which functions Dynamo may have called while it traced, so that what they return is told by facts."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Set
from typing import Any

from nbcache.core.fingerprints.known_code import DESCRIPTORS
from nbcache.core.fingerprints.stdlib import TOGETHER, computes
from nbcache.torch_bridge.traces.values import Untold

__all__ = ["check"]

_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_CALLABLES = (*(each for each in DESCRIPTORS if each not in _SLOTS), types.FunctionType, types.MethodType)
_READ_MORE = frozenset(
    {
        *("__build_class__", "__import__", "breakpoint", "compile", "dir", "eval", "exec", "globals", "hash"),
        *("help", "id", "input", "locals", "open", "vars"),
    }
)
"""Of Python's own functions, those that read what no fact tells."""
_ASK_THE_PROCESS = frozenset(
    {
        *(
            "current_device",
            "device_count",
            "get_device_capability",
            "get_device_properties",
            "get_rng_state",
        ),
        *("initial_seed", "mem_get_info", "seed"),
    }
)
"""Functions of torch's that ask a device, or a generator, while they are traced."""


def check(value: Any, inlined: Set[int]) -> None:
    """Raise Untold of a function that may return another thing in another process.

    `inlined` are the ids of code that was walked through, as what that reads are values of its own, and of
    functions that do no harm.
    """
    if type(value).__name__ in ("_local", "Random", "Generator"):
        raise Untold(f"it reads a {type(value).__name__}")
    if isinstance(value, types.MethodType):
        value = value.__func__
    if not isinstance(value, _CALLABLES) or {id(value), id(getattr(value, "__code__", None))} & inlined:
        return
    module = getattr(value, "__module__", None) or getattr(
        getattr(value, "__objclass__", None), "__module__", None
    )
    name = value.__qualname__
    if getattr(value, "_dynamo_marked_constant", False):
        raise Untold(f"{name}() is called while it is traced, and counts as constant")
    bound = getattr(value, "__self__", None)
    if isinstance(bound, type):
        module, name = bound.__module__, f"{bound.__qualname__}.{value.__name__}"
    if not isinstance(module, str):
        return
    package = module.partition(".")[0]
    if package == "builtins":
        refused = name in _READ_MORE and getattr(builtins, name, None) is value
    elif package in sys.stdlib_module_names:
        of, _, attribute = name.rpartition(".")
        refused = not computes(module, name) or attribute in TOGETHER.get(f"{module}.{of}", ())
    else:
        refused = package == "torch" and name in _ASK_THE_PROCESS
    if refused:
        raise Untold(f"it calls {name}()" if package == "builtins" else f"it calls {module}.{name}()")
