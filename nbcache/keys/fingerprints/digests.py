"""Fingerprints of values, functions and classes, by their content and behaviour instead of their names.

A function's fingerprint covers its instructions and everything that they read: globals, attributes of
modules, closure cells, defaults, and the functions and classes that they call. It leaves out comments,
annotations, names of local variables and line numbers. Names, docstrings and the order of attributes are
included only if some of the code reads them. A function or class of a *known* package contributes its name
alone. A decorator or a partial of a known package contributes the user code that it wraps.

`Unknown` is raised, and names the value, if the behaviour of a value cannot be determined, for example
because it reads a file. No fingerprint is better than a wrong one.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
import functools
import hashlib
import importlib
import inspect
import io
import logging
import operator
import os
import random
import re
import sys
import threading
import types
import typing
import weakref
from _abc import _get_dump  # type: ignore[import-not-found]
from abc import ABCMeta
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import resolve_name
from pathlib import PurePath
from typing import Any

from nbcache.keys.fingerprints.code import (
    FORMATS,
    LOADS,
    LOADS_ATTRIBUTE,
    LOADS_CELL,
    LOADS_GLOBAL,
    REBINDS,
    STORES,
    Step,
    code_digest,
    exact,
    exact_int,
    steps_of,
    words,
)
from nbcache.keys.fingerprints.known_code import CACHED, DESCRIPTORS, KnownPackages, cell_contents
from nbcache.keys.fingerprints.objects import (
    DESCRIPTIVE,
    Unknown,
    dictionary_of,
    instance_attributes,
    is_python_class,
    native_class,
    protocol_attributes,
)

Rule = Callable[["Fingerprint", Any], bool]
"""Adds a value of a type that it handles to a fingerprint and returns True; else returns False."""


_PURE_MODULES = words(
    "abc array base64 binascii bisect builtins cmath codecs collections contextlib copy copyreg dataclasses",
    "datetime enum fractions functools graphlib hashlib heapq html itertools json keyword math numbers",
    "opcode operator pprint random re reprlib sre statistics string struct textwrap types typing warnings",
    "weakref zlib",
)
"""Modules of pure functions; a leading underscore of a C module is left out."""
_PURE_NAMES: Mapping[str, frozenset[str]] = {
    "argparse": words("Namespace"),
    "inspect": words("isbuiltin isclass iscoroutinefunction isfunction isgeneratorfunction ismethod"),
    "io": words("BytesIO StringIO TextIOBase"),
    "ntpath": words("basename commonprefix dirname isabs join normpath split splitext"),
    "os": words("PathLike fspath"),
    "pathlib": words("PurePath PurePosixPath PureWindowsPath"),
    "posix": words("fspath"),
    "sys": words("float_info hash_info int_info intern version_info"),
    "thread": words("LockType RLock _local allocate_lock get_ident lock"),
    "threading": words("Lock RLock _RLock get_ident local"),
}
"""Pure functions and classes of other modules, and locks."""
STATEFUL_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "dataclasses.fields": words("type"),
    "datetime.date": words("today"),
    "datetime.datetime": words("now today utcnow"),
    "logging.Logger": words(
        "disabled filters getChild getEffectiveLevel handlers hasHandlers isEnabledFor level"
    ),
    "pathlib.Path": words(
        "absolute cwd exists expanduser glob group home is_block_device is_char_device is_dir is_fifo",
        "is_file is_junction is_mount is_socket is_symlink iterdir lstat open owner readlink",
        "resolve rglob samefile stat walk",
    ),
}
"""Function or class → attributes that read outside state. Without them, the function or class is pure."""
_READERS: tuple[Any, ...] = (
    *(builtins.open, builtins.eval, builtins.exec, builtins.globals, builtins.locals, builtins.input),
    *(builtins.__import__, importlib.import_module, io.open, os.getenv, os.environ, sys.modules),
    *(sys._getframe, inspect.currentframe, inspect.get_annotations, inspect.getsource, inspect.stack),
    *(inspect.getsourcelines, random.SystemRandom, typing.get_type_hints),
)
"""Functions and values that read outside state, such as a file or a name that is computed at run time."""
_READING_ATTRIBUTES = words(
    "__annotate__ __annotations__ __globals__ __orig_bases__ __signature__ __subclasses__",
    "__text_signature__ __type_params__ f_back f_globals f_locals from_file fromfile genfromtxt",
    "get_annotations get_original_bases get_protocol_members load_file loadtxt memmap read_bytes read_text",
)
"""Names of attributes that read outside state, on any object."""
_FORMATTING = words(
    "__format__ __repr__ __str__ aRepr ascii format format_map pformat print repr safe_substitute saferepr",
    "str substitute typename",
)
_NAMING_ATTRIBUTES = words("__dict__ __doc__ __name__ __qualname__ co_name co_qualname")
"""Attributes that expose names, docstrings and definition order, which digests otherwise leave out."""
_PLACEHOLDER = re.compile(r"%(?:\([^)]*\))?[-#0 +]*[\d*.]*[hlL]?[sra]")
_NAMESPACE_READERS = (builtins.dir, builtins.vars)
_ATTRIBUTE_READERS: tuple[Any, ...] = (
    *(*_NAMESPACE_READERS, builtins.getattr, builtins.hasattr, operator.attrgetter, operator.methodcaller),
)
_LONGEST_NAME = 1000
"""Characters; a longer text is no dotted name of an attribute."""
_MOST_VALUES = 20_000
"""All visited values, including numbers and texts."""
_MOST_DEPTH = 120
"""Levels of nesting; Python's recursion limit is about five times as high."""
_MOST_BYTES = 1 << 20
_MOST_SHOWN = 100
_LONGEST_SHOWN = 100
_SHOWN = (bool, int, float, complex)
"""Types of values that explanations show. Texts are left out, since they may be private."""
_PLAIN = (bool, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_WITHOUT_EFFECT = (type(threading.Lock()), type(threading.RLock()), logging.Logger)
_LOGGER_ATTRIBUTES = frozenset(vars(logging.getLogger("nbcache")))
_NAMESPACES = (threading.local, types.SimpleNamespace)
"""Types in C whose instances hold attributes only."""
_EMPTY_CACHES: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Function with an `lru_cache` → its digest when its cache was last seen empty."""
_CONTAINERS = (OrderedDict, dict, list, tuple, set, frozenset, deque)
_WRAPPERS = (functools.partial, staticmethod, classmethod, property, CACHED, weakref.ref)
_IGNORED = DESCRIPTIVE | {
    *("__abstractmethods__", "__annotate_func__", "__dataclass_fields__", "__dict__", "__module__"),
    *("__orig_bases__", "__parameters__", "__qualname__", "__weakref__"),
}
"""Attributes of classes and functions that hold names and locations, or repeat other attributes."""
_FLAGS = 0x02AC
"""Bits of `co_flags` that affect a call: `*args`, `**kwargs`, generators and coroutines."""
_ABSENT = object()


class Fingerprint:
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
        self.shown: dict[str, str] = {}
        """For explanations: named number or flag → its text; function → `#` and a digest of its code."""
        self.reads = Reads(self.unknown)
        self._names: list[str | None] = []
        """Names of functions and classes; the digest includes them if code reads names or formats values."""
        self._documents: list[str | None] = []
        """Docstrings and the order of attributes; the digest includes them if code reads names."""

    @property
    def digest(self) -> str:
        digest, reads = self._state.hexdigest(), self.reads
        if not (reads.reads_names or reads.rebinds_globals or reads.formats_values):
            return digest
        parts = (
            self._names if reads.reads_names or reads.formats_values else (),
            self._documents if reads.reads_names else (),
            reads.globals if reads.rebinds_globals else (),
        )
        text = repr((digest, *parts))
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()

    def note(self, *texts: object) -> None:
        """Add texts, each preceded by its length, so that no two sequences have the same bytes."""
        for text in texts:
            data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
            self._state.update(b"%d:" % len(data))
            self._state.update(data)

    @contextmanager
    def describing(self, words: str) -> Iterator[None]:
        """Describe the value that the block adds as `words` in the text of Unknown."""
        self._descriptions.append(words)
        yield
        self._descriptions.pop()

    def unknown(self, reason: str) -> Unknown:
        place = self.location()
        return Unknown(f"{reason} ({place})" if place else reason)

    def location(self, *more: str) -> str:
        """Return where the value that is being added was found; `more` names parts of it."""
        return _place([*self._descriptions, *more])

    def _show(self, text: str, words: str = "") -> None:
        """Give explanations the text of the value that is being added, unless they have many already."""
        if len(self.shown) < _MOST_SHOWN and len(text) <= _LONGEST_SHOWN:
            named = [part for part in self._descriptions if not part.startswith("[")]  # without keys of dicts
            self.shown.setdefault(words + _place(named), text)

    def add(self, value: Any, words: str = "") -> None:
        """Add a value and everything it holds; Unknown, described as `words`, if that is impossible."""
        with self.describing(words) if words else nullcontext():
            if words and type(value) in _SHOWN:
                self._show(exact(value))
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
            if kind in (str, bytes):
                self.reads.add_text(value if kind is str else value.decode("latin-1"))
        elif kind is int:
            self.note("int", hex(value))
        elif id(value) in self._indexes:
            self.note("again", self._indexes[id(value)])
        else:
            if len(self._descriptions) >= _MOST_DEPTH:
                raise Unknown("more code than nbcache follows")
            self._indexes[id(value)] = len(self._indexes)
            self._alive.append(value)
            self._descriptions.append(name_of(value))
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
                own = vars(value).keys() - _LOGGER_ATTRIBUTES
                self._add_attributes({name: item for name, item in vars(value).items() if name in own})
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
        if issubclass(kind, functools.partial):
            self._add_parts("partial", value.func, value.args, value.keywords)
        elif issubclass(kind, property):
            self._add_parts("property", value.fget, value.fset, value.fdel)
        elif issubclass(kind, CACHED):
            self._add_cached_function(value)
            return
        elif issubclass(kind, weakref.ref):
            self._add_parts("reference", weakref.ref.__call__(value))
        else:
            self._add_parts("static" if issubclass(kind, staticmethod) else "class", value.__func__)
        if not self.known.defines(kind):
            self._add(kind)
        if not issubclass(kind, (staticmethod, classmethod)) or not self.known.defines(kind):
            self._add_attributes(instance_attributes(kind, value))

    def _add_cached_function(self, function: Any) -> None:
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
            self._names += (names for _, names, _ in elements)
            self._documents += (documents for _, _, documents in elements)
        else:
            for item in base.__iter__(value):
                self._add(item)
        if not self.known.defines(kind):
            self._add_attributes(instance_attributes(kind, value))

    def _element_digest(self, value: Any) -> tuple[str, str, str]:
        """Return the digest of one element of a set, its names and its documents: sets have no order."""
        state, visited, names, documents = self._state, len(self._indexes), self._names, self._documents
        self._state, self._names, self._documents = hashlib.sha256(), [], []
        self._add(value)
        result = self._state.hexdigest(), repr(self._names), repr(self._documents)
        self._state, self._names, self._documents = state, names, documents
        while len(self._indexes) > visited:
            self._indexes.popitem()
        return result

    def _add_document(self, text: object) -> None:
        self._documents.append(None if text is None else str(text))

    def _add_attributes(self, values: Mapping[str, Any]) -> None:
        names = [name for name in values if name not in self._ignored]
        self._add_document(" ".join(names))
        self.note("attributes", len(names))
        for name in sorted(names):
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
        self._add_attributes(state)
        if native in _PLAIN or native is int:
            text: Any = exact_int if native is int else native.__repr__  # the class may override it
            self.note(text(value))
        elif native in _NAMESPACES:
            pass
        elif native is not object or not (
            state or kind is object or is_python_class(kind) or dictionary_of(value) is not None
        ):
            self._add_by_pickling(kind, value)

    def _global_of(self, kind: type, value: Any) -> tuple[str, str] | None:
        """Return the module and name under which a value in C can be imported; else None."""
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        for module in (getattr(value, "__module__", None), kind.__module__):
            holder = sys.modules.get(module) if isinstance(module, str) else None
            if isinstance(name, str) and holder is not None and vars(holder).get(name) is value:
                return str(module), name
        return None

    def _add_by_pickling(self, kind: type, value: Any) -> None:
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
        self._names.append(name_of(cls))
        self._add_document(vars(cls).get("__doc__"))
        self._add(type(cls))
        self._add_parts("bases", *cls.__bases__)
        self._add_attributes(dict(vars(cls)))
        if vars(cls).get("_is_protocol"):  # `isinstance` checks annotated attributes, too
            self.note(*sorted(protocol_attributes(cls)))
        self._add_registered_classes(cls)
        for name, field in (vars(cls).get("__dataclass_fields__") or {}).items():
            self._add_parts(f"field {name}", dict(field.metadata))

    def _add_registered_classes(self, cls: type) -> None:
        """Add the classes that `isinstance` accepts for an abstract class; for a known one, the user's."""
        if not isinstance(cls, ABCMeta):
            return
        registered = [reference() for reference in _get_dump(cls)[0]]
        if self.known.defines(cls):
            classes = [kind for kind in registered if kind is not None]
            own = [kind for kind in classes if self.known.is_user_module(kind.__module__)]
            self.note(*sorted(f"{kind.__module__}.{name_of(kind)}" for kind in own))
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
            self._show(f"#{code_digest(function.__code__)[:12]}", "the code of ")
            self._names += (function.__name__, function.__qualname__)
            self._add_document(function.__doc__)
            closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
            add_code(self, function.__code__, function.__globals__, closure)
        self._add_parts("defaults", function.__defaults__, function.__kwdefaults__)
        self._add_attributes(vars(function))


class Reads:
    """Everything that the code in one fingerprint reads."""

    def __init__(self, unknown: Callable[[str], Unknown]) -> None:
        self._unknown = unknown
        self.attributes: set[str] = set()
        self.functions: set[str] = set()
        """Names of known functions and classes that code reads as values, for example by an import."""
        self.owners: list[types.ModuleType | type] = []
        """Known modules and classes that code reads as values: it may read any of their attributes."""
        self.any_attribute = False
        self.globals: list[str] = []
        self.rebinds_globals = False
        """True if code rebinds globals: then the digest includes the names of the globals that it reads."""
        self.reads_names = False
        """True if code reads names, docstrings or definition order."""
        self.has_formats = False
        self._forbidden: dict[str, frozenset[str]] = {}
        """Name of an added function or class → attributes of it that code must not read."""

    @property
    def formats_values(self) -> bool:
        """True if code makes texts of values, which may contain everything below them."""
        return self.has_formats or not _FORMATTING.isdisjoint(self.attributes | self.functions)

    def add_value(self, value: Any) -> None:
        """Record what a call of `value` reads; Unknown if it reads state that no cache key covers."""
        if any(value is reader for reader in _READERS):
            raise self._unknown("it reads state that no cache key covers")
        self.reads_names |= any(value is reader for reader in _NAMESPACE_READERS)
        self.any_attribute |= any(value is reader for reader in _ATTRIBUTE_READERS)

    def add_attribute(self, name: Any, *, is_generated: bool = False) -> None:
        """Record that code reads an attribute; Unknown if it reads state that no cache key covers.

        `is_generated`: `dataclass` wrote the code, which reads names only if other code formats values.
        """
        if type(name) is not str:
            return
        self.attributes.add(name)
        for kind, names in self._forbidden.items():
            if name in names:
                raise self._unknown(f"`{name}` of `{kind}`, which reads state that no cache key covers")
        self.reads_names |= name in _NAMING_ATTRIBUTES and not is_generated
        if name in _READING_ATTRIBUTES:
            raise self._unknown(f"`{name}`, which reads state that no cache key covers")

    def add_text(self, text: str) -> None:
        """Record a text in code: it may name attributes, or be a format."""
        self.has_formats |= _PLACEHOLDER.search(text) is not None
        if len(text) < _LONGEST_NAME:
            for name in text.split("."):
                self.add_attribute(name)

    def add_library_value(self, module: str, name: str) -> None:
        """Record that code reads `name` of a known module; Unknown if that reads outside state."""
        if not is_pure(module, name):
            raise self._unknown(
                f"`{module}{name and '.'}{name}`, which may read state that no cache key covers"
            )
        self.functions.add(name.rpartition(".")[2])
        self.forbid_attributes(f"{module}.{name}")

    def forbid_attributes(self, name: str) -> None:
        """Forbid the stateful attributes of a function or class that code holds from now on."""
        if name in STATEFUL_ATTRIBUTES and name not in self._forbidden:
            self._forbidden[name] = STATEFUL_ATTRIBUTES[name]
            for attribute in sorted(self.attributes & STATEFUL_ATTRIBUTES[name]):
                raise self._unknown(f"`{attribute}` of `{name}`, which reads state that no cache key covers")


def _place(descriptions: Sequence[str]) -> str:
    return ", in ".join(reversed([words for words in descriptions if words][-3:]))


def is_pure(module: str, name: str) -> bool:
    """Return whether `name` of a module depends on its arguments alone; True outside the standard library."""
    package = module.partition(".")[0]
    if package not in sys.stdlib_module_names:
        return True
    package = package.lstrip("_")
    if package == "posixpath":
        package = "ntpath"
    return package in _PURE_MODULES or name.partition(".")[0] in _PURE_NAMES.get(package, frozenset())


def name_of(value: Any) -> str:
    """Return the name of a function or class as a user writes it; else an empty text."""
    if type(value) is types.FunctionType:
        return f"{value.__qualname__}()"
    return str(type.__getattribute__(value, "__qualname__")) if issubclass(type(value), type) else ""


def add_code(
    state: Fingerprint,
    code: types.CodeType,
    scope: Mapping[str, Any],
    closure: Mapping[str, types.CellType],
    imported: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Add a code object; `imported` are the modules that the enclosing code has imported, by name."""
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    state.note("code", code.co_flags & _FLAGS, code.co_argcount, code.co_posonlyargcount)
    state._names.append(code.co_qualname)
    state.note(len(arguments), *arguments, code.co_exceptiontable)
    steps = steps_of(code)
    is_generated = code.co_name == "__repr__" and code.co_filename == "<string>"  # by `dataclass`
    modules = {name: list(candidates) for name, candidates in (imported or {}).items()}
    for index, step in enumerate(steps):
        if step.operation == "IMPORT_NAME":  # imports first: a nested function may use a later import
            _follow_import(state, steps, index, scope, modules)
    for index, (operation, number, value, opcode) in enumerate(steps):
        state.note(operation)
        state.reads.has_formats |= operation in FORMATS and not is_generated
        # From Python 3.13 on, LOAD_FAST also loads the cells for a nested function's closure.
        makes_closure = operation == "LOAD_FAST" and value in (*code.co_cellvars, *code.co_freevars)
        if operation in LOADS and value in modules and not makes_closure:
            for module in modules[value]:
                _add_attribute_chain(state, module, steps, index)
        state.reads.rebinds_globals |= operation in REBINDS
        if operation in LOADS_GLOBAL:
            state.reads.globals.append(value)
            if value in scope:
                _add_attribute_chain(state, scope[value], steps, index)
            elif (builtin := getattr(builtins, value, _ABSENT)) is not _ABSENT:
                if builtin in (getattr, hasattr) and _names_a_constant(steps, index):
                    state.note(value)  # the constant is added as the name of an attribute
                else:
                    _add_attribute_chain(state, builtin, steps, index)
            elif value not in modules:
                state.note("absent", value)
        elif operation in LOADS_CELL and value in closure:
            try:
                content = closure[value].cell_contents
            except ValueError:
                state.note("empty")
            else:
                _add_attribute_chain(state, content, steps, index)
        elif opcode in dis.hasconst:
            if isinstance(value, types.CodeType):
                add_code(state, value, scope, closure, modules)
            else:
                state.add(value)
        elif opcode in dis.hasname:
            if operation != "IMPORT_NAME":
                state.reads.add_attribute(value, is_generated=is_generated)
                state.note(value)
        elif number is not None and value not in modules:
            state.note(number)


def _names_a_constant(steps: Sequence[Step], index: int) -> bool:
    """Return whether the loaded function is called at once with a constant as its second argument."""
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


def _add_attribute_chain(state: Fingerprint, value: Any, steps: Sequence[Step], index: int) -> None:
    """Add the value of a name, followed through attributes as long as the value is a module."""
    words = f"`{steps[index].value}`"
    for step in steps[index + 1 :]:
        if not issubclass(type(value), types.ModuleType) or step.operation not in LOADS_ATTRIBUTE:
            break
        state.reads.add_attribute(step.value)
        attribute = _attribute(state, value, step.value)
        if attribute is _ABSENT:
            state.note("absent", step.value)
            return
        value = attribute
        words = f"`{step.value}`"
    state.add(value, words)


def _attribute(state: Fingerprint, module: types.ModuleType, name: str) -> Any:
    """Return an attribute of a module, or `_ABSENT`, without running user code."""
    attributes: dict[str, Any] = object.__getattribute__(module, "__dict__")
    if name in attributes:
        return attributes[name]
    kind, known = type(module), state.known
    if known.has_module(module.__name__) or (kind is not types.ModuleType and known.defines(kind)):
        return getattr(module, name, _ABSENT)
    if hasattr(types.ModuleType, name):
        return object.__getattribute__(module, name)
    if kind is types.ModuleType and "__getattr__" not in attributes:
        return _ABSENT
    raise state.unknown(f"`{name}` of `{module.__name__}`, which the module loads on first use")


def _follow_import(
    state: Fingerprint,
    steps: Sequence[Step],
    index: int,
    scope: Mapping[str, Any],
    imported: dict[str, list[Any]],
) -> None:
    """Follow an import in a function; an imported module is added where the function uses it."""
    level, names, name = (step.value for step in (*steps[index - 2 : index], steps[index]))
    if level:
        try:
            name = resolve_name("." * level + name, scope.get("__package__") or "")
        except ImportError as error:
            raise state.unknown(f"`{name}`, imported relative to an unknown package") from error
    state.note(name)
    renamed = names is None and steps[index + 1].operation == "IMPORT_FROM"  # `import a.b as c`
    if names is None and not renamed:
        name = name.partition(".")[0]
    module = sys.modules.get(name)
    if module is None and not state.known.has_module(name):
        raise state.unknown(f"`{name}`, a module that is not imported yet")
    if module is None:
        state.reads.add_library_value(name, "")
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
        member = _ABSENT if module is None else _import_member(state, module, name, attribute)
        if issubclass(type(member), types.ModuleType):
            imported.setdefault(steps[at + 1].value, []).append(member)
        elif member is not _ABSENT:
            state.add(member, f"`{attribute}`")


def _import_member(state: Fingerprint, module: types.ModuleType, name: str, attribute: str) -> Any:
    part = sys.modules.get(f"{name}.{attribute}")
    if part is not None and attribute not in object.__getattribute__(module, "__dict__"):
        return part
    return _attribute(state, module, attribute)
