"""Fingerprints of values, functions and classes: by what they hold and do, and not by their names.

Two processes find the same fingerprint only where two values do the same. A function counts by its
instructions and by all that they read: globals, attributes of modules, closure cells, defaults, and the
functions and classes that they call. Comments, annotations, names of local variables and places in files do
not count. Names, docstrings and the order of attributes count only where some of the code reads such things.

A function or class of a *known* package counts by its name alone: of the standard library, which belongs to
the Python that is bound to anyway, and of the packages that the caller names. What is written around user
code in such a package (a decorator, a partial) is looked through.

Where it cannot be told what a value does (it reads a file, holds a lock, comes from nowhere), `Unknown` is
raised and says which: no fingerprint is better than a wrong one.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import logging
import struct
import sys
import threading
import types
import weakref
from _abc import _get_dump  # type: ignore[import-not-found]
from abc import ABCMeta
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import PurePath
from typing import Any

from nbcache.core.fingerprints.code import add_code
from nbcache.core.fingerprints.instances import (
    has_dictionary,
    has_python,
    held,
    native_class,
    protocol_attributes,
)
from nbcache.core.fingerprints.known_code import CACHED, DESCRIPTORS, Known, contents
from nbcache.core.fingerprints.reads import Reads, Unknown

__all__ = ["Fingerprint", "Rule", "Unknown", "exact", "exact_int"]

Rule = Callable[["Fingerprint", Any], bool]
"""Adds a value of a type of its own to a fingerprint and returns True, or returns False."""

_MOST_VALUES = 20_000
"""Of all that is looked at, numbers and texts as well."""
_MOST_DEPTH = 120
"""Of values within values; Python's own limit is some five times as far away."""
_MOST_BYTES = 1 << 20
_MOST_BITS = 2_000
"""Of numbers that are told in decimal: `sys.set_int_max_str_digits` allows 640 digits at least."""
_PLAIN = (bool, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_LEAVES = (type(threading.Lock()), type(threading.RLock()), logging.Logger)
"""They do nothing to a result."""
_OF_LOGGERS = frozenset(vars(logging.getLogger("nbcache")))
"""Attributes that every logger has."""
_DICTIONARIES = (threading.local, types.SimpleNamespace)
"""They are written in C, and hold nothing but attributes."""
_EMPTY: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Functions that keep their answers and had none when they were seen, with the digests that they had then."""
_CONTAINERS = (OrderedDict, dict, list, tuple, set, frozenset, deque)
_WRAPPERS = (functools.partial, staticmethod, classmethod, property, CACHED, weakref.ref)
_OF_NO_EFFECT = frozenset(
    {
        *("__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__"),
        *("__annotations_cache__", "__dataclass_fields__", "__dict__", "__doc__", "__firstlineno__"),
        *("__module__", "__orig_bases__", "__parameters__", "__qualname__", "__static_attributes__"),
        *("__weakref__", "_abc_impl"),
    }
)
"""Attributes of classes and functions that tell names and places, or what other attributes tell, too."""


class Fingerprint:
    """A digest that grows by the values that are added to it."""

    def __init__(
        self, known: Known, rules: Sequence[Rule] = (), ignored: frozenset[str] = frozenset()
    ) -> None:
        """`rules` come before everything else; attributes whose names are `ignored` do not count."""
        self.known = known
        self._rules = tuple(rules)
        self._ignored = ignored | _OF_NO_EFFECT
        self._state = hashlib.sha256(b"nbcache fingerprint 1\n")
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []
        """What was added: an id is told again once its object is gone."""
        self._keeping: set[int] = set()
        """Functions that keep their answers, and of which this is the digest."""
        self._count = 0
        self._words: list[str] = []
        self.reads = Reads(self.unknown)
        self._names: list[str] = []
        """Names and texts that were seen, in order; they count if code reads such."""
        self._called: list[str] = []
        """Names of functions and classes that were seen; they count if code makes texts of values as well."""

    @property
    def digest(self) -> str:
        """The SHA-256 of all that was added so far, 64 hexadecimal digits."""
        digest, reads = self._state.hexdigest(), self.reads
        if not (reads.names or reads.rebinds or reads.texts):
            return digest
        parts = (
            self._called if reads.names or reads.texts else (),
            self._names if reads.names else (),
            reads.globals if reads.rebinds else (),
        )
        names = "\n\n".join("\n".join(part) for part in parts)
        return hashlib.sha256(f"{digest}\n{names}".encode(errors="surrogatepass")).hexdigest()

    def note(self, *texts: object) -> None:
        """Add texts, each preceded by its length, so that no two sequences share their bytes."""
        for text in texts:
            data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
            self._state.update(b"%d:" % len(data))
            self._state.update(data)

    @contextmanager
    def within(self, words: str) -> Iterator[None]:
        """Have `words` name what is added in here, should it be unknown."""
        self._words.append(words)
        yield
        self._words.pop()

    def unknown(self, what: str) -> Unknown:
        """Return the error that names a value, and what holds it."""
        names = [words for words in self._words if words][-3:]
        return Unknown(f"{what} ({', in '.join(reversed(names))})" if names else what)

    def add(self, value: Any, words: str = "") -> None:
        """Add a value with all that it holds; Unknown where that cannot be told.

        `words` name it in that case.
        """
        with self.within(words) if words else nullcontext():
            self._add(value)

    def _add(self, value: Any) -> None:
        kind = type(value)
        self._count += 1
        if self._count > _MOST_VALUES:
            raise Unknown("more code than nbcache looks at")
        if kind in _PLAIN:
            if kind in (str, bytes) and len(value) > _MOST_BYTES:
                raise self.unknown("a large text")
            self.note(kind.__name__, exact(value))
            if kind is str:
                self.reads.text(value)
            elif kind is bytes:
                self.reads.places_in(value.decode("latin-1"))
        elif kind is int:
            self.note("int", hex(value))
        elif id(value) in self._seen:
            self.note("again", self._seen[id(value)])
        else:
            if len(self._words) >= _MOST_DEPTH:
                raise Unknown("more code than nbcache looks at")
            self._seen[id(value)] = len(self._seen)
            self._alive.append(value)
            self._words.append(_name(value))
            if not any(rule(self, value) for rule in self._rules):
                self._add_other(kind, value)
            self._words.pop()

    def _add_other(self, kind: type, value: Any) -> None:
        self.reads.value(value)
        if any(value is stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)):
            self.note("stream")
        elif issubclass(kind, types.FunctionType):
            self._function(value)
        elif issubclass(kind, type):
            self._class(value)
        elif issubclass(kind, types.ModuleType):
            if not self.known.has_module(value.__name__):
                raise self.unknown("the module as a whole")
            self.reads.of_module(value.__name__, "")
            self.note("module", value.__name__)
            self.reads.owners.append(value)
        elif issubclass(kind, types.CodeType):
            add_code(self, value, {}, {})
        elif issubclass(kind, types.MethodType):
            self._parts("method", value.__func__, value.__self__)
        elif issubclass(kind, DESCRIPTORS):
            self._descriptor(kind, value)
        elif issubclass(kind, _LEAVES):
            self.note("leaf", kind.__name__)
            if issubclass(kind, logging.Logger):
                self.note(value.name)
                self._attributes(
                    {name: each for name, each in vars(value).items() if name not in _OF_LOGGERS}
                )
                self.reads.together("logging.Logger")
        elif kind in weakref.ProxyTypes:
            raise self.unknown("a weak proxy")
        elif kind is types.MappingProxyType:
            self._parts(kind.__name__, dict(value))
        elif issubclass(kind, PurePath) and self.known.has(kind):
            self.note(kind.__name__, value)  # it may keep its hash, which differs in each process
            self.reads.together("pathlib.Path")
        elif issubclass(kind, _WRAPPERS):
            self._wrapper(kind, value)
        elif issubclass(kind, _CONTAINERS):
            self._container(kind, value)
        else:
            self._instance(kind, value)

    def _wrapper(self, kind: type, value: Any) -> None:
        """Add what is written around something, or refers to it."""
        if issubclass(kind, functools.partial):
            self._parts("partial", value.func, value.args, value.keywords)
        elif issubclass(kind, property):
            self._parts("property", value.fget, value.fset, value.fdel)
        elif issubclass(kind, CACHED):
            self._cached(value)
            return
        elif issubclass(kind, weakref.ref):
            self._parts("reference", weakref.ref.__call__(value))
        else:
            self._parts("static" if issubclass(kind, staticmethod) else "class", value.__func__)
        if not self.known.has(kind):
            self._add(kind)
        if not issubclass(kind, (staticmethod, classmethod)) or not self.known.has(kind):
            self._attributes(held(kind, value))

    def _cached(self, function: Any) -> None:
        """Add a function whose answers `functools` keeps; those that it has were given for what was there."""
        self._parts("cached", function.__wrapped__)
        code = getattr(function.__wrapped__, "__code__", None)
        if code is not None and self.known.has_file(code.co_filename):
            return
        if id(function) in self._keeping:  # it calls itself
            return
        alone = Fingerprint(self.known, self._rules, self._ignored)
        alone._keeping = {*self._keeping, id(function)}
        alone.add(function.__wrapped__)
        if function.cache_info().currsize == 0:
            _EMPTY[function] = alone.digest
        elif _EMPTY.get(function) != alone.digest:
            raise self.unknown("a function that keeps answers it gave before nbcache saw it")

    def _parts(self, label: str, *parts: Any) -> None:
        self.note(label, len(parts))
        for part in parts:
            self._add(part)

    def _container(self, kind: type, value: Any) -> None:
        base: Any = next(base for base in _CONTAINERS if issubclass(kind, base))
        self.note("container", base.__len__(value))
        self._add(kind)
        if issubclass(kind, (defaultdict, deque)):
            self._add(value.default_factory if issubclass(kind, defaultdict) else value.maxlen)
        if issubclass(base, dict):
            for key, item in base.items(value):
                self._add(key)
                is_short = type(key) is str or (type(key) is int and key.bit_length() < 64)
                self.add(item, f"[{key!r}]" if is_short else "")
        elif base in (set, frozenset):
            elements = sorted(self._alone(item) for item in base.__iter__(value))
            self.note(*(digest for digest, _, _ in elements))
            for _, called, names in elements:
                self._called += called
                self._names += names
        else:
            for item in base.__iter__(value):
                self._add(item)
        if not self.known.has(kind):
            self._attributes(held(kind, value))

    def _alone(self, value: Any) -> tuple[str, list[str], list[str]]:
        """Return the digest of one element of a set, and the names in it.

        Sets have no order, so each element counts by itself.
        """
        state, before, called, names = self._state, len(self._seen), self._called, self._names
        self._state, self._called, self._names = hashlib.sha256(), [], []
        self._add(value)
        found = self._state.hexdigest(), self._called, self._names
        self._state, self._called, self._names = state, called, names
        while len(self._seen) > before:
            self._seen.popitem()
        return found

    def _attributes(self, values: Mapping[str, Any]) -> None:
        names = sorted(name for name in values if name not in self._ignored)
        self.note("attributes", len(names))
        for name in names:
            self.note(name)
            self.add(values[name], f"`{name}`")

    def _descriptor(self, kind: type, value: Any) -> None:
        owner = getattr(value, "__objclass__", None)
        bound = getattr(value, "__self__", None)
        self.note("builtin", kind.__name__, value.__name__)
        if owner is not None:
            self.note(owner.__module__, owner.__qualname__)
        elif bound is None or isinstance(bound, types.ModuleType):
            self._version_of(getattr(value, "__module__", None) or "builtins", value)
        else:
            self._add(bound)

    def _version_of(self, module: str, value: Any) -> None:
        """Add a callable that is written in C by its module's name and its package's version."""
        package = module.partition(".")[0]
        self.note(module)
        self.reads.of_module(module, value.__name__ if isinstance(value, DESCRIPTORS) else "")
        if self.known.has_module(module) or package == "builtins":
            return
        version = getattr(sys.modules.get(package), "__version__", None)
        if not isinstance(version, str):
            raise self.unknown(f"code in C of `{package}`, which tells no version")
        self.note(version)

    def _instance(self, kind: type, value: Any) -> None:
        self.note("instance")
        native = native_class(kind)
        if native is kind and callable(value) and (found := self._global_of(kind, value)) is not None:
            self._version_of(found[0], value)
            self.note(kind.__qualname__, *found)
            return
        self._add(kind)
        state = held(kind, value)
        self._names.append(" ".join(state))
        self._attributes(state)
        if native in _PLAIN or native is int:
            text: Any = exact_int if native is int else native.__repr__  # not what the class tells
            self.note(text(value))
        elif native in _DICTIONARIES:
            pass
        elif native is not object or not (
            state or kind is object or has_python(kind) or has_dictionary(value)
        ):
            self._reduced(kind, value)

    def _global_of(self, kind: type, value: Any) -> tuple[str, str] | None:
        """Return the module and name of a value that is written in C, where it is found by them."""
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        for module in (getattr(value, "__module__", None), kind.__module__):
            holder = sys.modules.get(module) if isinstance(module, str) else None
            if isinstance(name, str) and holder is not None and vars(holder).get(name) is value:
                return str(module), name
        return None

    def _reduced(self, kind: type, value: Any) -> None:
        """Add what a value written in C holds, as it would be pickled."""
        if getattr(value, "nbytes", 0) > _MOST_BYTES:
            raise self.unknown("a large array")
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(2) if reduce is None else reduce(value)
        except Exception as error:
            raise self.unknown(f"a {kind.__qualname__}, which cannot be compared") from error
        if isinstance(reduced, str) and kind.__module__ != "typing":  # a name alone
            raise self.unknown(f"a {kind.__qualname__}, which cannot be compared")
        self._add(reduced)

    def _class(self, cls: type) -> None:
        if self.known.has(cls):
            self.reads.of_module(cls.__module__, cls.__qualname__)
            self.note("known class", cls.__module__, cls.__qualname__)
            self.reads.owners.append(cls)
            self._registered(cls)
            return
        self.note("class")
        self._names.append(f"{vars(cls).get('__doc__')} {' '.join(vars(cls))}")
        self._called.append(_name(cls))
        self._add(type(cls))
        self._parts("bases", *cls.__bases__)
        self._attributes(dict(vars(cls)))
        if vars(cls).get("_is_protocol"):  # `isinstance` asks for what has an annotation alone
            self.note(*sorted(protocol_attributes(cls)))
        self._registered(cls)
        for name, field in (vars(cls).get("__dataclass_fields__") or {}).items():
            self._parts(f"field {name}", dict(field.metadata))

    def _registered(self, cls: type) -> None:
        """Add what was registered for an abstract class: `isinstance` asks for it, too.

        For a known one, it is what the user has registered: packages do so for theirs when they are imported.
        """
        if not isinstance(cls, ABCMeta):
            return
        registered = [each() for each in _get_dump(cls)[0]]
        if self.known.has(cls):
            own = [each for each in registered if each is not None and self.known.is_users(each.__module__)]
            self.note(*sorted(f"{each.__module__}.{_name(each)}" for each in own))
        else:
            self._add(set(registered))

    def _function(self, function: types.FunctionType) -> None:
        if self.known.has(function) and self.known.has_file(function.__code__.co_filename):
            self.reads.of_module(function.__module__, function.__qualname__)
            self.note("known function", function.__module__, function.__qualname__)
            return
        if self.known.has_file(function.__code__.co_filename):  # written around something
            code = function.__code__
            self.note("known code", code.co_qualname, code.co_firstlineno)
            self._parts("cells", *contents(function))
        else:
            self.note("function")
            self._names.append(f"{function.__name__} {function.__doc__}")
            self._called.append(function.__qualname__)
            cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
            add_code(self, function.__code__, function.__globals__, cells)
        self._parts("defaults", function.__defaults__, function.__kwdefaults__)
        self._attributes(vars(function))


def exact(value: Any) -> str:
    """Return a plain value as text, such that no two that differ have the same; of a NaN, its bits."""
    if isinstance(value, float) and value != value:
        return f"nan {struct.pack('>d', value).hex()}"
    if isinstance(value, complex) and value != value:
        return f"{exact(value.real)} {exact(value.imag)}"
    return repr(value) if type(value) is not int else exact_int(value)


def exact_int(value: int) -> str:
    """Return a number as text, also where Python's `repr` refuses to, as it has too many digits."""
    return int.__repr__(value) if int.bit_length(value) <= _MOST_BITS else f"0x{int.__format__(value, 'x')}"


def _name(value: Any) -> str:
    """Return what a person calls a value, where it has a name."""
    if type(value) is types.FunctionType:
        return f"{value.__qualname__}()"
    return str(type.__getattribute__(value, "__qualname__")) if issubclass(type(value), type) else ""
