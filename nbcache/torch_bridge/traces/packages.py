"""What code of installed packages reads that Python runs while Dynamo traces: nothing of it has a guard."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any

from nbcache.core.fingerprints.code_digest import code_digest
from nbcache.torch_bridge.traces.facts import found_at
from nbcache.torch_bridge.traces.own_code import within
from nbcache.torch_bridge.traces.values import Untold
from nbcache.torch_bridge.traces.watch import Seen

__all__ = ["holds", "read_deeply", "run_of_packages", "verdict_of"]

_OWN = frozenset(
    {
        ("transformers.configuration_utils", "PreTrainedConfig.__getattribute__"),
        (
            "transformers.integrations.heterogeneity.configuration_utils",
            "HeterogeneousConfigMixin.__getattribute__",
        ),
    }
)
"""Methods that read nothing but what their object holds, by module and qualified name."""


def run_of_packages(seen: Seen, values: Sequence[Any]) -> list[tuple[str, str]]:
    """Return where functions of installed packages are that Python has run; Untold of any but a few.

    What `inspect` and imports ask of modules does not count: methods of finders, and of classes of modules
    where Dynamo has not met such a module among `values`.
    """
    found = []
    kinds = {type(value) for value in values if isinstance(value, ModuleType)}
    finders = {type(finder) for finder in sys.meta_path}
    for code, module in seen.ran_of_packages.items():
        owner = _owner(code, module)
        if owner in finders:
            continue
        if owner is not None and issubclass(owner, ModuleType):
            if not any(issubclass(kind, owner) for kind in kinds):
                continue
        elif (module, code.co_qualname) in _OWN and found_at(module, code.co_qualname).__code__ is code:
            found.append((module, code.co_qualname))
            continue
        why = f"Python runs {code.co_qualname}() of {module or 'a package'} while it is traced"
        raise Untold(why, code=code, module=module)
    return found


def read_deeply(
    places: Sequence[tuple[str, str]], values: Sequence[Any], held: Sequence[tuple[Any, str]]
) -> Iterator[int]:
    """Return the indices of the objects that the functions at these places are methods of.

    Python may have read any depth of them.
    """
    owners = {found_at(module, name.rpartition(".")[0]) for module, name in places}
    met = {id(value) for value in values}
    yield from (index for index, value in enumerate(values) if owners & {*type(value).__mro__})
    for value, _ in held:
        if id(value) not in met and owners & {*type(value).__mro__}:
            raise Untold(f"Python runs a method of a {type(value).__qualname__} that it comes to by no name")


def _owner(code: CodeType, module: str) -> type | None:
    """Return the class whose method this code is; None where it is none, or cannot be found."""
    try:
        found = found_at(module, code.co_qualname.rpartition(".")[0])
    except Untold:
        return None
    return found if isinstance(found, type) else None


def verdict_of(why: BaseException) -> bytes:
    """Return the stored form of the reason for which a function has no trace.

    Where Python ran a function, the verdict names the function, so that `holds` can look for it.
    """
    code, cause = getattr(why, "code", None), None
    if code is not None:
        files = {getattr(module, "__file__", None): name for name, module in [*sys.modules.items()]}
        module = getattr(why, "module", "") or files.get(code.co_filename, "__main__")
        cause = [module, code.co_qualname, code_digest(code)]
    return json.dumps({"why": str(why), "cause": cause}).encode()


def holds(verdict: bytes) -> bool:
    """Return whether the cause of a stored verdict is still there: the same function under the same name.

    A verdict without a function depends only on the key under which it is stored.
    """
    try:
        cause = json.loads(verdict)["cause"]
        if cause is None:
            return True
        module, name, digest = cause
        outer = found_at(module, name.partition(".<locals>")[0]).__code__
        return any(code.co_qualname == name and code_digest(code) == digest for code in within(outer))
    except (AttributeError, KeyError, TypeError, ValueError, Untold):
        return False
