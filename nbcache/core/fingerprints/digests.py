"""Fingerprints of functions, classes and values: by what they hold and do, wherever they are defined.

Two processes compute the same fingerprint only if two values do the same. A function counts by its
instructions and names, and by all that they read: globals, attributes of modules, closure cells, defaults,
and the functions and classes that they call. Comments, annotations, docstrings and places in files do not
count.

A function or class of a *known* package counts by its name alone: of the standard library, which belongs to
the Python that is bound to anyway, and of the packages that the caller names. What is written around user
code in such a package (a decorator, a partial) is looked through.

If a value may read a file, holds a lock or cannot be compared, `Unknown` is raised and names it.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
import hashlib
import logging
import sys
import threading
import types
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import resolve_name
from pathlib import PurePath
from typing import Any

from nbcache.core.fingerprints.code_digest import (
    FORMATS,
    LOADS,
    LOADS_ATTRIBUTE,
    LOADS_CELL,
    LOADS_GLOBAL,
    STORES,
    Step,
    code_digest,
    exact,
    hashed,
    steps_of,
    value_digest,
)
from nbcache.core.fingerprints.objects import HEAP, TOO_MUCH, Objects, full_name, registered_directly
from nbcache.core.fingerprints.reads import Reads, Unknown
from nbcache.core.installed import CACHED, DESCRIPTORS, Known, contents, is_users_module

__all__ = ["Fingerprint", "Rule", "Unknown"]

Rule = Callable[["Fingerprint", Any], bool]
"""Adds a value of a type of its own to a fingerprint and returns True, or returns False."""

_MOST_VALUES = 20_000
"""The number of values that are looked at, numbers and texts included."""
_MOST_BYTES = 1 << 20
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_OF_LOGGERS = frozenset(vars(logging.getLogger("nbcache")))
"""Attributes that every logger has."""
_EMPTY: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Cached functions that had no answers when they were seen → their fingerprints at that time."""
_OF_NO_EFFECT = frozenset(
    {"__abstractmethods__", "__dataclass_fields__", "__orig_bases__", "__parameters__", "__type_params__"}
)
"""Attributes of classes that tell names and places, or what other attributes tell, too."""
_ABSENT = object()


class Fingerprint(Objects):
    """A digest that grows by the values that are added to it; all that an instance holds counts."""

    def __init__(
        self, known: Known, rules: Sequence[Rule] = (), ignored: frozenset[str] = frozenset()
    ) -> None:
        """`rules` come before everything else; attributes whose names are `ignored` do not count."""
        super().__init__((), ignored | _OF_NO_EFFECT, most=_MOST_VALUES)
        self._rules = tuple(rules)
        self.known = known
        self.reads = Reads(self.unknown)
        self._deeply = True
        self._parts_here: list[str] = []
        """The digests and texts that were added to the value that is looked at."""
        self._added = False
        self._plain_values = 0
        self._keeping: set[int] = set()
        """Ids of the cached functions that this is a fingerprint of."""
        self._words: list[str] = []

    @property
    def hexdigest(self) -> str:
        """The digest of all that was added so far."""
        text = f"nbcache fingerprint 2\n{hashed(self._parts_here)} {self.identity}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def has_values(self) -> bool:
        """Whether more was added than notes."""
        return self._added

    def note(self, *texts: object) -> None:
        """Add texts."""
        self._parts_here += (
            text.hex() if isinstance(text, bytes) else f"{type(text).__name__} {text}" for text in texts
        )

    def add(self, value: Any, words: str = "") -> None:
        """Add a value with all that it holds; raise Unknown, which `words` name it in, if that is unknown."""
        self._added = True
        with self.within(words) if words else nullcontext():
            try:
                self._parts_here.append(self.digest(value))
            except RecursionError as error:
                raise Unknown(TOO_MUCH) from error

    @contextmanager
    def within(self, words: str) -> Iterator[None]:
        """Let `words` name what is added in here, should it be unknown."""
        self._words.append(words)
        yield
        self._words.pop()

    def unknown(self, what: str) -> Unknown:
        """Return the error that names a value, and what holds it."""
        names = [words for words in self._words if words][-3:]
        return Unknown(f"{what} ({', in '.join(reversed(names))})" if names else what)

    def opaque(self, value: Any) -> str:
        """Return the digest of a value written in C, by what it would be pickled as."""
        kind = type(value)
        if found := self._global_in_c(kind, value):
            return found
        if getattr(value, "nbytes", 0) > _MOST_BYTES:
            raise self.unknown("a large array")
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(2) if reduce is None else reduce(value)
        except Exception as error:
            raise self.unknown(f"a {kind.__qualname__}, which cannot be compared") from error
        if isinstance(reduced, str) and kind.__module__ != "typing":  # a name alone
            raise self.unknown(f"a {kind.__qualname__}, which cannot be compared")
        return self._parts("reduced", kind, reduced)

    def _plain(self, kind: type, value: Any) -> str:
        self._plain_values += 1
        if self._plain_values > _MOST_VALUES:
            raise Unknown(TOO_MUCH)
        if kind in (str, bytes) and len(value) > _MOST_BYTES:
            raise self.unknown("a large text")
        if kind is str:
            self.reads.text(value)
        return f"{kind.__name__} {exact(value)}"

    def _make(self, value: Any, kind: Any) -> str:
        outer, self._parts_here = self._parts_here, []
        self._words.append(_name(value))
        try:
            if any(rule(self, value) for rule in self._rules):
                return self._join("ruled", *self._parts_here)
            self.reads.value(value)
            found = self._special(value)
            return self._join("value", found or kind.make(value), *self._parts_here)
        finally:
            self._parts_here = outer
            self._words.pop()

    def _special(self, value: Any) -> str:
        """Return the digest of what `Objects` would compare too closely, or not at all; else nothing."""
        kind = type(value)
        if any(value is stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)):
            return "stream"
        if issubclass(kind, types.CodeType):
            return self._join(value_digest(value), *self._read_by(value, {}, {}))
        if issubclass(kind, _LOCKS):
            return f"lock {kind.__name__}"
        if issubclass(kind, logging.Logger):
            self.reads.together("logging.Logger")
            own = {name: held for name, held in vars(value).items() if name not in _OF_LOGGERS}
            return self._join(f"logger {value.name}", *self._named(own, self._ignored))
        if kind in weakref.ProxyTypes:
            raise self.unknown("a weak proxy")
        if issubclass(kind, PurePath) and self.known.has(kind):
            self.reads.together("pathlib.Path")
            return f"{kind.__name__} {value}"  # it may keep its hash, which differs in each process
        if issubclass(kind, CACHED):
            return self._cached(value)
        if issubclass(kind, threading.local):
            return self._join("local", self.digest(kind), *self._held(value))
        return ""

    def _global_in_c(self, kind: type, value: Any) -> str:
        """Return the digest of a callable object written in C that a module has by its name; else nothing."""
        if kind.__flags__ & HEAP or not callable(value):
            return ""
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        for module in (getattr(value, "__module__", None), kind.__module__):
            holder = sys.modules.get(module) if isinstance(module, str) else None
            if isinstance(name, str) and holder is not None and vars(holder).get(name) is value:
                return f"{full_name(kind)} {name} {self._version_of(str(module), value)}"
        return ""

    def _cached(self, function: Any) -> str:
        """Return the digest of a function that keeps answers; those that it has depend on what was there."""
        inner = function.__wrapped__
        code = getattr(inner, "__code__", None)
        is_known = code is not None and self.known.has_file(code.co_filename)
        if not is_known and id(function) not in self._keeping:  # else it calls itself
            alone = Fingerprint(self.known, self._rules, self._ignored)
            alone._keeping = {*self._keeping, id(function)}
            alone.add(inner)
            if function.cache_info().currsize == 0:
                _EMPTY[function] = alone.hexdigest
            elif _EMPTY.get(function) != alone.hexdigest:
                raise self.unknown("a function that keeps answers it gave before nbcache saw it")
        return self._parts("cached", inner)

    def _elements(self, value: Any, base: Any) -> list[str]:
        if base in (set, frozenset):
            return sorted(map(self._alone, base.__iter__(value)))
        return [*map(self.digest, base.__iter__(value))]

    def _alone(self, value: Any) -> str:
        """Return the digest of an element of a set, whichever others came before it: sets have no order."""
        met, numbers, found = self._met, len(self._numbers), len(self._found)
        self._met = []
        digest = f"{self.digest(value)} {self.identity}"
        self._met = met
        for kept, count in ((self._numbers, numbers), (self._found, found)):
            while len(kept) > count:
                kept.popitem()
        return digest

    def _named(self, values: Mapping[str, Any], ignored: frozenset[str]) -> list[str]:
        names = [name for name in values if name not in ignored and name not in self._ignored]
        found = [" ".join(map(str, names))]  # code may go through attributes in their order
        for name in sorted(names, key=str):
            with self.within(f"`{name}`"):
                found.append(self.digest(values[name]))
        return found

    def _items(self, value: dict[Any, Any]) -> list[str]:
        found = []
        for key, item in dict.items(value):
            found.append(self.digest(key))
            with self.within(f"[{key!r}]" if type(key) in (str, int) else ""):
                found.append(self.digest(item))
        return found

    def _module(self, module: types.ModuleType) -> str:
        if not self.known.has_module(module.__name__):
            raise self.unknown("the module as a whole")
        self.reads.of_module(module.__name__, "")
        self.reads.owners.append(module)
        return f"module {module.__name__}"

    def _descriptor(self, value: Any) -> str:
        owner, bound = getattr(value, "__objclass__", None), getattr(value, "__self__", None)
        text = f"{type(value).__name__} {value.__name__}"
        if owner is not None:
            return f"{text} {full_name(owner)}"
        if bound is None or isinstance(bound, types.ModuleType):
            return f"{text} {self._version_of(getattr(value, '__module__', None) or 'builtins', value)}"
        return self._parts(text, bound)

    def _version_of(self, module: str, value: Any) -> str:
        """Return the name of the module of what is written in C, with its package's version."""
        package = module.partition(".")[0]
        self.reads.of_module(module, value.__name__ if isinstance(value, DESCRIPTORS) else "")
        if self.known.has_module(module) or package == "builtins":
            return module
        version = getattr(sys.modules.get(package), "__version__", None)
        if not isinstance(version, str):
            raise self.unknown(f"code in C of `{package}`, which tells no version")
        return f"{module} {version}"

    def _class(self, cls: type) -> str:
        if self.known.has(cls):
            self.reads.of_module(cls.__module__, cls.__qualname__)
            self.reads.owners.append(cls)
            return self._join(f"known class {full_name(cls)}", *self._registered(cls))
        fields = vars(cls).get("__dataclass_fields__") or {}
        metadata = [self.digest(dict(field.metadata)) for field in fields.values()]
        return self._join(super()._class(cls), *self._registered(cls), *metadata)

    def _registered(self, cls: type) -> list[str]:
        """Return the digests of what was registered for an abstract class: `isinstance` asks for it, too.

        For a known one, it is what the user has registered: packages do so for theirs when they are imported.
        """
        if not isinstance(cls, ABCMeta):
            return []
        if not self.known.has(cls):
            return [self.digest({*registered_directly(cls)})]
        return sorted(
            full_name(other) for other in registered_directly(cls) if is_users_module(other.__module__)
        )

    def _function(self, function: types.FunctionType) -> str:
        code = function.__code__
        if self.known.has_file(code.co_filename):
            if self.known.has(function):
                self.reads.of_module(function.__module__, function.__qualname__)
                return f"known function {function.__module__} {function.__qualname__}"
            text = f"known code {code.co_qualname} {code.co_firstlineno}"  # written around something
            parts = [*map(self.digest, contents(function))]
        else:
            text = f"function {function.__module__} {function.__qualname__} {code_digest(code)}"
            cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
            parts = [*self._read_by(code, function.__globals__, cells)]
        parts += map(self.digest, (function.__defaults__, function.__kwdefaults__))
        return self._join(text, *parts, *self._named(vars(function), frozenset()))

    # --- what code reads ------------------------------------------------------------------------

    def _read_by(
        self,
        code: types.CodeType,
        scope: Mapping[str, Any],
        cells: Mapping[str, types.CellType],
        imported: Mapping[str, Sequence[Any]] | None = None,
    ) -> Iterator[str]:
        """Yield digests of what code reads; the code around it has imported the modules `imported`."""
        steps = steps_of(code)
        modules = {name: list(values) for name, values in (imported or {}).items()}
        for index, step in enumerate(steps):
            if step.operation == "IMPORT_NAME":  # first, as functions within may read what comes later
                yield from self._import(steps, index, scope, modules)
        for index, (operation, _, value, opcode) in enumerate(steps):
            self.reads.texts |= operation in FORMATS
            # From 3.13 on LOAD_FAST loads the cells that make a closure: what they hold is used further in.
            makes_closure = operation == "LOAD_FAST" and value in (*code.co_cellvars, *code.co_freevars)
            if operation in LOADS and value in modules and not makes_closure:
                for module in modules[value]:
                    yield self._chain(module, steps, index)
            if operation in LOADS_GLOBAL:
                if value in scope:
                    yield self._chain(scope[value], steps, index)
                elif hasattr(builtins, value):
                    found = getattr(builtins, value)
                    if found not in (getattr, hasattr) or not _names_a_constant(steps, index):
                        yield self._chain(found, steps, index)
                elif value not in modules:
                    yield f"absent {value}"
            elif operation in LOADS_CELL and value in cells:
                try:
                    yield self._chain(cells[value].cell_contents, steps, index)
                except ValueError:
                    yield f"empty {value}"
            elif opcode in dis.hasconst:
                if isinstance(value, types.CodeType):
                    yield from self._read_by(value, scope, cells, modules)
                else:
                    self.digest(value)  # it may name an attribute
            elif opcode in dis.hasname and operation != "IMPORT_NAME":
                self.reads.name(value)

    def _chain(self, value: Any, steps: Sequence[Step], index: int) -> str:
        """Return the digest of what a name and the attributes after it lead to, through modules alone."""
        words = f"`{steps[index].value}`"
        for following in steps[index + 1 :]:
            if not issubclass(type(value), types.ModuleType) or following.operation not in LOADS_ATTRIBUTE:
                break
            self.reads.name(following.value)
            value = self._attribute(value, following.value)
            words = f"`{following.value}`"
            if value is _ABSENT:
                return f"absent {words}"
        with self.within(words):
            return f"{words} {self.digest(value)}"

    def _attribute(self, module: types.ModuleType, name: str) -> Any:
        """Return an attribute of a module, or that it is absent; no code of others runs to find it."""
        held: dict[str, Any] = object.__getattribute__(module, "__dict__")
        if name in held:
            return held[name]
        kind = type(module)
        if self.known.has_module(module.__name__) or (kind is not types.ModuleType and self.known.has(kind)):
            return getattr(module, name, _ABSENT)
        if hasattr(types.ModuleType, name):
            return object.__getattribute__(module, name)
        if kind is types.ModuleType and "__getattr__" not in held:
            return _ABSENT
        raise self.unknown(f"`{name}` of `{module.__name__}`, which is loaded only when it is asked for")

    def _import(
        self, steps: Sequence[Step], index: int, scope: Mapping[str, Any], imported: dict[str, list[Any]]
    ) -> Iterator[str]:
        """Follow an import within a function: a module that it binds is looked at where it is used."""
        level, names, name = (step.value for step in (*steps[index - 2 : index], steps[index]))
        if level:
            try:
                name = resolve_name("." * level + name, scope.get("__package__") or "")
            except ImportError as error:
                raise self.unknown(f"`{name}`, imported from a package that is not told") from error
        yield f"import {name}"
        renamed = names is None and steps[index + 1].operation == "IMPORT_FROM"  # `import a.b as c`
        if names is None and not renamed:
            name = name.partition(".")[0]
        module = sys.modules.get(name)
        if module is None and not self.known.has_module(name):
            raise self.unknown(f"`{name}`, which it imports and nobody has yet")
        if module is None:
            self.reads.of_module(name, "")
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
            value = _ABSENT if module is None else self._imported_from(module, name, attribute)
            if issubclass(type(value), types.ModuleType):
                imported.setdefault(steps[at + 1].value, []).append(value)
            elif value is not _ABSENT:
                with self.within(f"`{attribute}`"):
                    yield self.digest(value)

    def _imported_from(self, module: types.ModuleType, name: str, attribute: str) -> Any:
        part = sys.modules.get(f"{name}.{attribute}")
        if part is not None and attribute not in object.__getattribute__(module, "__dict__"):
            return part
        return self._attribute(module, attribute)


def _names_a_constant(steps: Sequence[Step], index: int) -> bool:
    """Return whether what is loaded is called at once, with plain names but for a constant as the second."""
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


def _name(value: Any) -> str:
    """Return what a person calls a value, where it has a name."""
    if type(value) is types.FunctionType:
        return f"{value.__qualname__}()"
    return str(type.__getattribute__(value, "__qualname__")) if issubclass(type(value), type) else ""
