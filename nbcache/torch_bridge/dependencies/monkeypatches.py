"""What torch itself has put in its tables, modules and classes: whatever differs from it is somebody else's.

Whose code an entry is does not tell who has put it there: a lowering of torch's own in the place of another
one changes what torch compiles. So what is there is noted when torch has made it, and what was replaced,
added or taken out since is told, by key and identity. Where torch was imported before nbcache was loaded, as
well as what is not torch's code among it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from importlib.metadata import PackageNotFoundError, requires
from operator import is_
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from nbcache.core.fingerprints.known_code import KnownPackages
from nbcache.torch_bridge.dependencies.tables import SCRATCH

__all__ = ["ABSENT", "Change", "Originals", "Replacements", "may_be_set"]

ABSENT = "taken out"
"""Stands for what torch had put there, and is gone."""
_OF_NO_EFFECT = frozenset(
    {
        *("__abstractmethods__", "__annotate__", "__annotations__", "__annotations_cache__", "__builtins__"),
        *("__doc__", "__firstlineno__", "__format__", "__repr__", "__static_attributes__", "__str__"),
        *("__warningregistry__", "___has_generation_tag_patch", "___needs_generation_tag_patch", "_abc_impl"),
    }
)
"""Attributes that tell texts, or that Python and torch set while they run."""
_SET_BY_TORCH = (
    *("_disable_dynamo.", "install_generation_tagging_init."),
    "TritonKernelOverrides._setup_libdevice_routing.",
)
"""How names of functions begin that torch puts around what `torch`, `torch.nn.Module` and others have."""
_COMPILER = (
    "torch._decomp",
    "torch._functorch.",
    "torch._higher_order_ops.",
    "torch._inductor.",
    "torch._library",
    "torch._meta_registrations",
    "torch._prims",
    "torch._refs",
    "torch._subclasses.",
    "torch.fx.",
)
"""How the names of the modules begin that torch compiles with."""
_PLAIN = (bool, bytes, complex, float, int, str, tuple)
"""Types of attributes that others may set to another value."""
_INERT = frozenset({*_PLAIN, dict, frozenset, list, ModuleType, set, type(None)})
"""Types whose values cannot be called."""
_USED = frozenset({"filelock", "jinja2", "mpmath", "networkx", "numpy", "optree", "sympy", "torchgen"})
"""Packages that torch imports functions from; its metadata name more."""


class Change(NamedTuple):
    """What others have put somewhere; `replaced` says that torch had something there."""

    key: Any
    value: Any
    replaced: bool


class _Noted:
    """What torch has put in one place, and what was there when that was last looked at."""

    def __init__(self, owner: Any, torchs: Mapping[Any, Any], late: bool) -> None:
        self.owner = owner
        self.torchs = dict(torchs)
        self.late = late
        self.keys: tuple[Any, ...] = ()
        self.values: tuple[Any, ...] = ()
        self.changes: Collection[Change] | None = None

    def is_as_before(self, entries: Mapping[Any, Any]) -> bool:
        return (
            len(entries) == len(self.values)
            and all(map(is_, entries.values(), self.values))
            and all(map(is_, entries, self.keys))
        )


class Originals:
    """Remembers what torch has put somewhere, and tells what others have."""

    def __init__(self, made: Callable[[Any], bool]) -> None:
        """`made` tells whether code is torch's."""
        self._made = made
        self._noted: dict[int, _Noted] = {}

    def note(self, owner: Any, *, late: bool, torchs: Mapping[Any, Any] | None = None) -> None:
        """Note a table, a module or a class as it is now, or as torch has made it: `torchs`.

        `late` says that others may have been there before.
        """
        self._noted.setdefault(id(owner), _Noted(owner, _entries(owner) if torchs is None else torchs, late))

    def note_entry(self, table: Any, key: Any) -> None:
        """Note that torch itself has put an entry into a table, after all the rest of it."""
        noted = self._noted.get(id(table))
        if noted is not None and key in table:
            noted.torchs[key] = table[key]
            noted.changes = None

    def forget(self, owner: Any) -> None:
        """Forget what was noted of a table."""
        self._noted.pop(id(owner), None)

    def torchs(self, owner: Any) -> Mapping[Any, Any]:
        """Return what torch has put in `owner`, which was noted."""
        self.changes(owner)
        return self._noted[id(owner)].torchs

    def is_noted(self, owner: Any) -> bool:
        """Tell whether it is known what torch has put in `owner`."""
        return id(owner) in self._noted

    def changes(self, owner: Any) -> Collection[Change]:
        """Return what others have put in `owner`, which was noted; what they have taken out comes last."""
        noted, entries = self._noted[id(owner)], dict(_entries(owner))  # other threads may change them
        if noted.late:
            if not self._made([_code(owner, value) for value in noted.torchs.values()]):
                noted.torchs = {
                    key: value for key, value in noted.torchs.items() if self._made(_code(owner, value))
                }
            noted.late = False
        if noted.changes is None or not noted.is_as_before(entries):
            if isinstance(owner, (list, tuple)):
                noted.changes = [*_elements(noted.torchs, entries)]
            else:
                noted.changes = [*self._differences(noted, entries)]
            noted.keys, noted.values = tuple(entries), tuple(entries.values())
        return noted.changes

    def _differences(self, noted: _Noted, entries: Mapping[Any, Any]) -> Iterator[Change]:
        owner, torchs = noted.owner, noted.torchs
        named = isinstance(owner, (type, ModuleType))
        for key, value in entries.items():
            if torchs.get(key, ABSENT) is value or (named and self._is_idle(key, value)):
                continue
            if key not in torchs and isinstance(owner, type) and _inherited(owner, key) is value:
                continue  # as after a replacement that was taken back
            yield Change(key, value, key in torchs or (named and _has_itself(owner, key)))
        for key in torchs:
            if key not in entries:
                yield Change(key, ABSENT, True)

    def _is_idle(self, name: str, value: Any) -> bool:
        """Tell whether what stands at this name changes nothing, or was put there by torch while it runs."""
        if name in _OF_NO_EFFECT or isinstance(value, ModuleType):
            return True
        held = getattr(value, "__func__", value)
        code = held.func if isinstance(held, partial) else held
        if not isinstance(code, FunctionType):
            return False
        return code.__code__.co_qualname.startswith(_SET_BY_TORCH) and self._made(held)


class Replacements:
    """Finds what others have put into the modules of torch's compiler, and into their classes."""

    def __init__(self, known: KnownPackages) -> None:
        """`known` tells what is torch's."""
        self._known = known
        self._looked_at: set[str] = set()
        """Names of the modules that were looked at, of the compiler or not."""
        self._places: dict[str, type | ModuleType] = {}
        """The compiler's modules, and the classes that they define, by name."""
        self._seen: dict[str, tuple[Collection[Any], list[Any]]] = {}
        """By place: what it holds, and what that was when it was last looked at."""
        self._others: dict[str, list[tuple[str, Any]]] = {}
        """By place: what of that was somebody else's, where anything was."""

    def found(self) -> list[tuple[str, Any]]:
        """Return them, each with its place."""
        imported = sys.modules.keys() - self._looked_at
        for name in filter(_is_of_compiler, imported):
            module = sys.modules.get(name)
            if module is not None and self._known.has_file(getattr(module, "__file__", None) or ""):
                self._places.setdefault(name, module)  # it is no compiled graph
        self._looked_at |= imported
        places = list(self._places.items())
        for place, owner in places:
            seen = self._seen.get(place)
            if seen is None or not _are_same(*seen):
                places += self._look(place, owner)
        return [each for place in sorted(self._others) for each in self._others[place]]

    def _look(self, place: str, owner: type | ModuleType) -> Iterator[tuple[str, type]]:
        """Look at what one place holds; yield the classes that a module defines and nobody has looked at."""
        held = vars(owner)
        entries = list(held.items())
        self._seen[place] = held.values(), [value for _, value in entries]
        others = [(f"{place}.{key}", value) for key, value in entries if self._is_others(owner, value)]
        others = [each for each in others if each[0] != f"{SCRATCH}.forward"]
        if others:
            self._others[place] = others
        else:
            self._others.pop(place, None)
        for key, value in entries if isinstance(owner, ModuleType) else ():
            name = f"{place}.{key}"
            if isinstance(value, type) and value.__module__ == place and name not in self._places:
                self._places[name] = value
                yield name, value

    def _is_others(self, owner: Any, value: Any) -> bool:
        """Tell whether somebody else has written what a module or a class holds: any callable counts."""
        kind = type(value)
        if kind is FunctionType:
            return self._is_others_function(owner, value)
        if kind in _INERT:
            return False
        if issubclass(kind, MethodType) and self._is_strange(type(value.__self__)):
            return True
        if issubclass(kind, (staticmethod, classmethod, MethodType)):
            return self._is_others(owner, value.__func__)
        if issubclass(kind, property):
            return self._is_others(owner, value.fget)
        if issubclass(kind, partial):
            held = (value.func, *value.args, *value.keywords.values())
            return any(self._is_others(owner, each) for each in held)
        if issubclass(kind, type):
            return self._known.is_user_module(value.__module__)  # torch imports some of others'
        return callable(value) and self._is_strange(kind)

    def _is_others_function(self, owner: Any, function: FunctionType) -> bool:
        """Tell whether somebody else has written a function that a module or a class holds."""
        in_class = isinstance(owner, type)
        if self._known.has_file(function.__code__.co_filename):
            around = None if in_class else getattr(function, "__wrapped__", None)
            if not isinstance(around, FunctionType) or self._known.has_file(around.__code__.co_filename):
                return False
        elif in_class and (self._known.is_library_method(owner, function) or self._is_torchs_text(function)):
            return False
        return (function.__module__ or "").partition(".")[0] not in _requirements()

    def _is_torchs_text(self, function: FunctionType) -> bool:
        """Tell whether torch may have made a function of a text, some outside of modules."""
        module = function.__globals__.get("__name__")
        made = function.__code__.co_filename == "<string>"
        return made and (not isinstance(module, str) or self._known.has_module(module))

    def _is_strange(self, kind: type) -> bool:
        """Tell whether a class is neither torch's nor Python's, or stands for anything, as a mock does."""
        module = kind.__module__
        if not isinstance(module, str) or module.startswith("unittest."):
            return True
        package = module.partition(".")[0]
        return package not in _requirements() and not self._known.has_module(package)


@cache
def _requirements() -> Collection[str]:
    """Return the packages that torch imports functions from: those that it requires, and some others."""
    try:
        required = requires("torch") or []
    except PackageNotFoundError:
        required = []
    names = (re.match(r"[\w.-]*", line) for line in required)
    return _USED | {name[0].lower().replace("-", "_") for name in names if name is not None}


def _are_same(held: Collection[Any], before: Sequence[Any]) -> bool:
    try:
        return len(held) == len(before) and all(map(is_, held, before))
    except RuntimeError:  # another thread is just changing it
        return False


def _is_of_compiler(module: str) -> bool:
    return module.startswith(_COMPILER)


def _elements(torchs: Mapping[Any, Any], entries: Mapping[Any, Any]) -> Iterator[Change]:
    """Return what was added to a list, and how much of it is gone."""
    there, before = {*map(id, entries.values())}, {*map(id, torchs.values())}
    for number, value in entries.items():
        if id(value) not in before:
            yield Change(number, value, False)
    for number, value in torchs.items():
        if id(value) not in there:
            yield Change(number, ABSENT, True)


def _code(owner: Any, value: Any) -> Any:
    """Return what may be somebody else's code of a value that `owner` holds."""
    if isinstance(owner, ModuleType) and isinstance(value, type):  # imported, for annotations
        return None
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def _entries(owner: Any) -> Mapping[Any, Any]:
    if isinstance(owner, (list, tuple)):
        return dict(enumerate(owner))
    if isinstance(owner, set):
        return {each: each for each in sorted(owner, key=_name)}
    return vars(owner) if isinstance(owner, (type, ModuleType)) else owner


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or function)


def _inherited(owner: type, name: str) -> Any:
    """Return what a class has from its base classes at this name."""
    return next((vars(base)[name] for base in owner.__mro__[1:] if name in vars(base)), ABSENT)


def _has_itself(owner: Any, name: str) -> bool:
    """Tell whether a class has inherited this name, or its source or the module's has it."""
    if isinstance(owner, type) and _inherited(owner, name) is not ABSENT:
        return True
    module = _module_of(owner)
    return module is not None and name in _names(module)


def may_be_set(owner: type | ModuleType, name: str, value: Any) -> bool:
    """Tell whether others may have set an attribute of a class or module of torch's, or added it.

    They may set plain values, and add what the module's source does not have; of C nobody knows.
    """
    module = _module_of(owner)
    return isinstance(value, _PLAIN) or module is None or name not in (_names(module) or (name,))


def _module_of(owner: type | ModuleType) -> ModuleType | None:
    return owner if isinstance(owner, ModuleType) else sys.modules.get(owner.__module__)


@lru_cache(maxsize=64)
def _names(module: ModuleType) -> Collection[str]:
    """Return the names that the source of a module, and of what is defined there, has; none of C."""
    try:
        code = module.__spec__.loader.get_code(module.__name__)  # type: ignore[union-attr]
    except Exception:  # it has none
        code = None
    if code is None:
        return ()
    parts = [code, *(part for part in code.co_consts if isinstance(part, CodeType))]
    return {name for part in parts for name in part.co_names}
