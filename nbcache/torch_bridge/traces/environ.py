"""Which variables of the environment code reads: Dynamo reads them while it traces, and guards nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import CodeType
from typing import Any

from nbcache.core.fingerprints.instructions import LOADS_ATTRIBUTE, LOADS_GLOBAL, Step, steps_of
from nbcache.torch_bridge.traces.values import Untold

__all__ = ["variables"]

_NAMES = frozenset({"environ", "environb", "getenv"})
_LOADS_VALUE = frozenset({"LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME"})
_OF_NO_EFFECT = frozenset({"CACHE", "NOP", "PRECALL", "PUSH_NULL", "RESUME"})


def variables(code: CodeType, scope: Mapping[str, Any]) -> set[str]:
    """Return the names of the variables that `code` reads; Untold where some are named while it runs."""
    ours = {
        name for name in code.co_names if any(scope.get(name) is each for each in (os.environ, os.getenv))
    }
    names = _NAMES | ours
    steps = [step for step in steps_of(code) if step.operation not in _OF_NO_EFFECT]
    found = set()
    for index, step in enumerate(steps):
        if step.operation == "IMPORT_FROM" and step.value in _NAMES:
            raise Untold(f"{code.co_qualname}() imports the environment")
        if step.operation in LOADS_ATTRIBUTE | LOADS_GLOBAL and step.value in names:
            name = _constant(steps[index + 1 : index + 5]) or _asked_for(steps, index)
            if name is None:
                raise Untold(
                    f"{code.co_qualname}() reads variables of the environment that it names as it runs"
                )
            found.add(name)
    return found


def _constant(following: list[Step]) -> str | None:
    """Return the text in `environ.get("A")`, `environ["A"]` and `getenv("A")`."""
    if (
        following
        and following[0].operation in LOADS_ATTRIBUTE
        and following[0].value in ("get", "__getitem__")
    ):
        following = following[1:]
    if not following or following[0].operation != "LOAD_CONST" or not isinstance(following[0].value, str):
        return None
    after = [step.operation for step in following[1:3]]
    with_default = len(after) == 2 and after[0] in _LOADS_VALUE and after[1] == "CALL"
    return following[0].value if after[:1] in (["CALL"], ["BINARY_SUBSCR"]) or with_default else None


def _asked_for(steps: list[Step], index: int) -> str | None:
    """Return the text in `"A" in environ`, with the module before it where there is one."""
    if index + 1 < len(steps) and steps[index + 1].operation == "CONTAINS_OP":
        for step in reversed(steps[max(0, index - 2) : index]):
            if step.operation == "LOAD_CONST" and isinstance(step.value, str):
                return step.value
    return None
