"""Fingerprints of values, functions and classes, by their content and behaviour instead of their names.

Two processes compute the same fingerprint only if the values behave the same. A function's fingerprint covers
its instructions and everything that they read: globals, attributes of modules, closure cells, defaults, and
the functions and classes that they call. It leaves out comments, annotations, names of local variables and
line numbers. Names, docstrings and the order of attributes are included only if some of the code reads them.

A function or class of a *known* package contributes its name alone. The standard library is known, because
entries are bound to their Python anyway, and so are the packages that the caller names. A decorator or a
partial of a known package contributes the user code that it wraps.

`Unknown` is raised, and names the value, if the behaviour of a value cannot be determined, for example
because it reads a file. No fingerprint is better than a wrong one.
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
    instance_attributes,
    is_python_class,
    native_class,
    protocol_attributes,
)
from nbcache.core.fingerprints.known_code import CACHED, DESCRIPTORS, KnownPackages, cell_contents
from nbcache.core.fingerprints.reads import Reads, Unknown

__all__ = ["Fingerprint", "Rule", "Unknown", "exact", "exact_int"]

Rule = Callable[["Fingerprint", Any], bool]
"""Adds a value of a type that it handles to a fingerprint and returns True; else returns False."""

_MOST_VALUES = 20_000
"""All visited values, including numbers and texts."""
_MOST_DEPTH = 120
"""Levels of nesting; Python's recursion limit is about five times as high."""
_MOST_BYTES = 1 << 20
_MOST_BITS = 2_000
"""Larger numbers are not written in decimal: `sys.set_int_max_str_digits` allows at least 640 digits."""
_PLAIN = (bool, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_WITHOUT_EFFECT = (type(threading.Lock()), type(threading.RLock()), logging.Logger)
"""Types that have no effect on a result."""
_LOGGER_ATTRIBUTES = frozenset(vars(logging.getLogger("nbcache")))
"""Attributes of every logger."""
_NAMESPACES = (threading.local, types.SimpleNamespace)
"""Types in C whose instances hold attributes only."""
_EMPTY_CACHES: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Function with an `lru_cache` → its digest when its cache was last seen empty."""
_CONTAINERS = (OrderedDict, dict, list, tuple, set, frozenset, deque)
_WRAPPERS = (functools.partial, staticmethod, classmethod, property, CACHED, weakref.ref)
_IGNORED = frozenset(
    {
        *("__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__"),
        *("__annotations_cache__", "__dataclass_fields__", "__dict__", "__doc__", "__firstlineno__"),
        *("__module__", "__orig_bases__", "__parameters__", "__qualname__", "__static_attributes__"),
        *("__weakref__", "_abc_impl"),
    }
)
"""Attributes of classes and functions that hold names and locations, or repeat other attributes."""


class Fingerprint:
    """An incremental digest of values."""

    def __init__(
        self, known: KnownPackages, rules: Sequence[Rule] = (), ignored: frozenset[str] = frozenset()
    ) -> None:
        """`rules` are tried first; attributes whose names are `ignored` are left out."""
        self.known = known
        self._rules = tuple(rules)
        self._ignored = ignored | _IGNORED
        self._state = hashlib.sha256(b"nbcache fingerprint 1\n")
        self._indexes: dict[int, int] = {}
        self._alive: list[Any] = []
        """Keeps added objects alive: Python reuses the id of a dead object."""
        self._cached_functions: set[int] = set()
        """Ids of the functions with an `lru_cache` whose digest this is."""
        self._count = 0
        self._descriptions: list[str] = []
        self.reads = Reads(self.unknown)
        self._names: list[str] = []
        """Names and docstrings in order; the digest includes them if code reads names."""
        self._called: list[str] = []
        """Names of functions and classes; the digest includes them if code reads names or formats values."""

    @property
    def digest(self) -> str:
        """The SHA-256 of everything added so far, 64 hexadecimal digits."""
        digest, reads = self._state.hexdigest(), self.reads
        if not (reads.reads_names or reads.rebinds_globals or reads.formats_values):
            return digest
        parts = (
            self._called if reads.reads_names or reads.formats_values else (),
            self._names if reads.reads_names else (),
            reads.globals if reads.rebinds_globals else (),
        )
        names = "\n\n".join("\n".join(part) for part in parts)
        return hashlib.sha256(f"{digest}\n{names}".encode(errors="surrogatepass")).hexdigest()

    def note(self, *texts: object) -> None:
        """Add texts, each preceded by its length, so that no two sequences have the same bytes."""
        for text in texts:
            data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
            self._state.update(b"%d:" % len(data))
            self._state.update(data)

    @contextmanager
    def describing(self, words: str) -> Iterator[None]:
        """Describe the values added in this context as `words` in errors."""
        self._descriptions.append(words)
        yield
        self._descriptions.pop()

    def unknown(self, reason: str) -> Unknown:
        """Return the error for a value, described by `reason` and the values that hold it."""
        names = [words for words in self._descriptions if words][-3:]
        return Unknown(f"{reason} ({', in '.join(reversed(names))})" if names else reason)

    def add(self, value: Any, words: str = "") -> None:
        """Add a value and everything it holds; Unknown, described as `words`, if that is impossible."""
        with self.describing(words) if words else nullcontext():
            self._add(value)

    def _add(self, value: Any) -> None:
        kind = type(value)
        self._count += 1
        if self._count > _MOST_VALUES:
            raise Unknown("more code than nbcache follows")
        if kind in _PLAIN:
            if kind in (str, bytes) and len(value) > _MOST_BYTES:
                raise self.unknown("a large text")
            self.note(kind.__name__, exact(value))
            if kind is str:
                self.reads.add_text(value)
            elif kind is bytes:
                self.reads.add_placeholders(value.decode("latin-1"))
        elif kind is int:
            self.note("int", hex(value))
        elif id(value) in self._indexes:
            self.note("again", self._indexes[id(value)])
        else:
            if len(self._descriptions) >= _MOST_DEPTH:
                raise Unknown("more code than nbcache follows")
            self._indexes[id(value)] = len(self._indexes)
            self._alive.append(value)
            self._descriptions.append(_name(value))
            if not any(rule(self, value) for rule in self._rules):
                self._add_object(kind, value)
            self._descriptions.pop()

    def _add_object(self, kind: type, value: Any) -> None:
        self.reads.add_value(value)
        if any(value is stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)):
            self.note("stream")
        elif issubclass(kind, types.FunctionType):
            self._add_function(value)
        elif issubclass(kind, type):
            self._add_class(value)
        elif issubclass(kind, types.ModuleType):
            if not self.known.has_module(value.__name__):
                raise self.unknown("the whole module")
            self.reads.add_library_value(value.__name__, "")
            self.note("module", value.__name__)
            self.reads.owners.append(value)
        elif issubclass(kind, types.CodeType):
            add_code(self, value, {}, {})
        elif issubclass(kind, types.MethodType):
            self._add_parts("method", value.__func__, value.__self__)
        elif issubclass(kind, DESCRIPTORS):
            self._add_descriptor(kind, value)
        elif issubclass(kind, _WITHOUT_EFFECT):
            self.note("leaf", kind.__name__)
            if issubclass(kind, logging.Logger):
                self.note(value.name)
                self._add_attributes(
                    {name: item for name, item in vars(value).items() if name not in _LOGGER_ATTRIBUTES}
                )
                self.reads.forbid_attributes("logging.Logger")
        elif kind in weakref.ProxyTypes:
            raise self.unknown("a weak proxy")
        elif kind is types.MappingProxyType:
            self._add_parts(kind.__name__, dict(value))
        elif issubclass(kind, PurePath) and self.known.defines(kind):
            self.note(kind.__name__, value)  # it may cache its hash, which differs between processes
            self.reads.forbid_attributes("pathlib.Path")
        elif issubclass(kind, _WRAPPERS):
            self._add_wrapper(kind, value)
        elif issubclass(kind, _CONTAINERS):
            self._add_container(kind, value)
        else:
            self._add_instance(kind, value)

    def _add_wrapper(self, kind: type, value: Any) -> None:
        """Add a wrapper of, or a reference to, another value."""
        if issubclass(kind, functools.partial):
            self._add_parts("partial", value.func, value.args, value.keywords)
        elif issubclass(kind, property):
            self._add_parts("property", value.fget, value.fset, value.fdel)
        elif issubclass(kind, CACHED):
            self._add_cached(value)
            return
        elif issubclass(kind, weakref.ref):
            self._add_parts("reference", weakref.ref.__call__(value))
        else:
            self._add_parts("static" if issubclass(kind, staticmethod) else "class", value.__func__)
        if not self.known.defines(kind):
            self._add(kind)
        if not issubclass(kind, (staticmethod, classmethod)) or not self.known.defines(kind):
            self._add_attributes(instance_attributes(kind, value))

    def _add_cached(self, function: Any) -> None:
        """Add a function with an `lru_cache`; Unknown if a cached result may come from older code."""
        self._add_parts("cached", function.__wrapped__)
        code = getattr(function.__wrapped__, "__code__", None)
        if code is not None and self.known.has_file(code.co_filename):
            return
        if id(function) in self._cached_functions:  # it calls itself
            return
        fingerprint = Fingerprint(self.known, self._rules, self._ignored)
        fingerprint._cached_functions = {*self._cached_functions, id(function)}
        fingerprint.add(function.__wrapped__)
        if function.cache_info().currsize == 0:
            _EMPTY_CACHES[function] = fingerprint.digest
        elif _EMPTY_CACHES.get(function) != fingerprint.digest:
            raise self.unknown("a function with cached results from before nbcache saw it")

    def _add_parts(self, label: str, *parts: Any) -> None:
        self.note(label, len(parts))
        for part in parts:
            self._add(part)

    def _add_container(self, kind: type, value: Any) -> None:
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
            elements = sorted(self._element_digest(item) for item in base.__iter__(value))
            self.note(*(digest for digest, _, _ in elements))
            for _, called, names in elements:
                self._called += called
                self._names += names
        else:
            for item in base.__iter__(value):
                self._add(item)
        if not self.known.defines(kind):
            self._add_attributes(instance_attributes(kind, value))

    def _element_digest(self, value: Any) -> tuple[str, list[str], list[str]]:
        """Return the digest of one element of a set, and the names in it.

        Sets have no order, so each element gets a separate digest.
        """
        state, visited, called, names = self._state, len(self._indexes), self._called, self._names
        self._state, self._called, self._names = hashlib.sha256(), [], []
        self._add(value)
        result = self._state.hexdigest(), self._called, self._names
        self._state, self._called, self._names = state, called, names
        while len(self._indexes) > visited:
            self._indexes.popitem()
        return result

    def _add_attributes(self, values: Mapping[str, Any]) -> None:
        names = sorted(name for name in values if name not in self._ignored)
        self.note("attributes", len(names))
        for name in names:
            self.note(name)
            self.add(values[name], f"`{name}`")

    def _add_descriptor(self, kind: type, value: Any) -> None:
        owner = getattr(value, "__objclass__", None)
        bound = getattr(value, "__self__", None)
        self.note("builtin", kind.__name__, value.__name__)
        if owner is not None:
            self.note(owner.__module__, owner.__qualname__)
        elif bound is None or isinstance(bound, types.ModuleType):
            self._add_version(getattr(value, "__module__", None) or "builtins", value)
        else:
            self._add(bound)

    def _add_version(self, module: str, value: Any) -> None:
        """Add a callable in C by its module's name and its package's version."""
        package = module.partition(".")[0]
        self.note(module)
        self.reads.add_library_value(module, value.__name__ if isinstance(value, DESCRIPTORS) else "")
        if self.known.has_module(module) or package == "builtins":
            return
        version = getattr(sys.modules.get(package), "__version__", None)
        if not isinstance(version, str):
            raise self.unknown(f"C code of `{package}`, which has no version")
        self.note(version)

    def _add_instance(self, kind: type, value: Any) -> None:
        self.note("instance")
        native = native_class(kind)
        if native is kind and callable(value) and (names := self._global_of(kind, value)) is not None:
            self._add_version(names[0], value)
            self.note(kind.__qualname__, *names)
            return
        self._add(kind)
        state = instance_attributes(kind, value)
        self._names.append(" ".join(state))
        self._add_attributes(state)
        if native in _PLAIN or native is int:
            text: Any = exact_int if native is int else native.__repr__  # the class may override it
            self.note(text(value))
        elif native in _NAMESPACES:
            pass
        elif native is not object or not (
            state or kind is object or is_python_class(kind) or has_dictionary(value)
        ):
            self._add_pickled(kind, value)

    def _global_of(self, kind: type, value: Any) -> tuple[str, str] | None:
        """Return the module and name under which a value in C can be imported; else None."""
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        for module in (getattr(value, "__module__", None), kind.__module__):
            holder = sys.modules.get(module) if isinstance(module, str) else None
            if isinstance(name, str) and holder is not None and vars(holder).get(name) is value:
                return str(module), name
        return None

    def _add_pickled(self, kind: type, value: Any) -> None:
        """Add the content of a value in C, in the form that pickle stores."""
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

    def _add_class(self, cls: type) -> None:
        if self.known.defines(cls):
            self.reads.add_library_value(cls.__module__, cls.__qualname__)
            self.note("known class", cls.__module__, cls.__qualname__)
            self.reads.owners.append(cls)
            self._add_registered_classes(cls)
            return
        self.note("class")
        self._names.append(f"{vars(cls).get('__doc__')} {' '.join(vars(cls))}")
        self._called.append(_name(cls))
        self._add(type(cls))
        self._add_parts("bases", *cls.__bases__)
        self._add_attributes(dict(vars(cls)))
        if vars(cls).get("_is_protocol"):  # `isinstance` checks annotated attributes, too
            self.note(*sorted(protocol_attributes(cls)))
        self._add_registered_classes(cls)
        for name, field in (vars(cls).get("__dataclass_fields__") or {}).items():
            self._add_parts(f"field {name}", dict(field.metadata))

    def _add_registered_classes(self, cls: type) -> None:
        """Add the classes registered for an abstract class, which `isinstance` accepts.

        A known class contributes only user classes: packages register their own during import.
        """
        if not isinstance(cls, ABCMeta):
            return
        registered = [reference() for reference in _get_dump(cls)[0]]
        if self.known.defines(cls):
            own = [
                kind for kind in registered if kind is not None and self.known.is_user_module(kind.__module__)
            ]
            self.note(*sorted(f"{kind.__module__}.{_name(kind)}" for kind in own))
        else:
            self._add(set(registered))

    def _add_function(self, function: types.FunctionType) -> None:
        if self.known.defines(function) and self.known.has_file(function.__code__.co_filename):
            self.reads.add_library_value(function.__module__, function.__qualname__)
            self.note("known function", function.__module__, function.__qualname__)
            return
        if self.known.has_file(function.__code__.co_filename):  # a wrapper
            code = function.__code__
            self.note("known code", code.co_qualname, code.co_firstlineno)
            self._add_parts("cells", *cell_contents(function))
        else:
            self.note("function")
            self._names.append(f"{function.__name__} {function.__doc__}")
            self._called.append(function.__qualname__)
            cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
            add_code(self, function.__code__, function.__globals__, cells)
        self._add_parts("defaults", function.__defaults__, function.__kwdefaults__)
        self._add_attributes(vars(function))


def exact(value: Any) -> str:
    """Return a plain value as a text that is unique among values of its type; a NaN as its bits."""
    if isinstance(value, float) and value != value:
        return f"nan {struct.pack('>d', value).hex()}"
    if isinstance(value, complex) and value != value:
        return f"{exact(value.real)} {exact(value.imag)}"
    return repr(value) if type(value) is not int else exact_int(value)


def exact_int(value: int) -> str:
    """Return a number as text, even if it has too many digits for Python's `repr`."""
    return int.__repr__(value) if int.bit_length(value) <= _MOST_BITS else f"0x{int.__format__(value, 'x')}"


def _name(value: Any) -> str:
    """Return the name of a function or class as a user writes it; else an empty text."""
    if type(value) is types.FunctionType:
        return f"{value.__qualname__}()"
    return str(type.__getattribute__(value, "__qualname__")) if issubclass(type(value), type) else ""
