"""Attributes, modules and classes that code reads, and reads of state that no cache key covers."""

from __future__ import annotations

import builtins
import importlib
import inspect
import io
import operator
import os
import random
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


_PURE_MODULES = _words(
    "abc array base64 binascii bisect builtins cmath codecs collections contextlib copy copyreg dataclasses",
    "datetime enum fractions functools graphlib hashlib heapq html itertools json keyword math numbers",
    "opcode operator pprint random re reprlib sre statistics string struct textwrap types typing warnings",
    "weakref zlib",
)
"""Modules of pure functions; a leading underscore of a C module is left out."""
_PURE_NAMES: Mapping[str, frozenset[str]] = {
    "argparse": _words("Namespace"),
    "inspect": _words("isbuiltin isclass iscoroutinefunction isfunction isgeneratorfunction ismethod"),
    "io": _words("BytesIO StringIO TextIOBase"),
    "ntpath": _words("basename commonprefix dirname isabs join normpath split splitext"),
    "os": _words("PathLike fspath"),
    "pathlib": _words("PurePath PurePosixPath PureWindowsPath"),
    "posix": _words("fspath"),
    "sys": _words("float_info hash_info int_info intern version_info"),
    "thread": _words("LockType RLock _local allocate_lock get_ident lock"),
    "threading": _words("Lock RLock _RLock get_ident local"),
}
"""Pure functions and classes of other modules, and locks."""
STATEFUL_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "dataclasses.fields": _words("type"),
    "datetime.date": _words("today"),
    "datetime.datetime": _words("now today utcnow"),
    "logging.Logger": _words(
        "disabled filters getChild getEffectiveLevel handlers hasHandlers isEnabledFor level"
    ),
    "pathlib.Path": _words(
        "absolute cwd exists expanduser glob group home is_block_device is_char_device is_dir is_fifo",
        "is_file is_junction is_mount is_socket is_symlink iterdir lstat open owner readlink",
        "resolve rglob samefile stat walk",
    ),
}
"""Function or class → attributes that read outside state. Without them, the function or class is pure."""
_READERS: tuple[Any, ...] = (
    builtins.open,
    builtins.eval,
    builtins.exec,
    builtins.globals,
    builtins.locals,
    builtins.input,
    builtins.__import__,
    importlib.import_module,
    io.open,
    os.getenv,
    os.environ,
    sys.modules,
    sys._getframe,
    inspect.currentframe,
    inspect.get_annotations,
    inspect.getsource,
    inspect.getsourcelines,
    inspect.stack,
    random.SystemRandom,
    typing.get_type_hints,
)
"""Functions and values that read outside state, such as a file or a name that is computed at run time."""
_READING_ATTRIBUTES = frozenset(
    {
        *("__annotate__", "__annotations__", "__globals__", "__orig_bases__", "__signature__"),
        *("__subclasses__", "__text_signature__", "__type_params__", "f_back", "f_globals", "f_locals"),
        *("from_file", "fromfile", "genfromtxt", "get_annotations", "get_original_bases"),
        *("get_protocol_members", "load_file", "loadtxt", "memmap", "read_bytes", "read_text"),
    }
)
"""Names of attributes that read outside state, on any object."""
_NAMING_ATTRIBUTES = frozenset({"__dict__", "__doc__", "__name__", "__qualname__", "co_name", "co_qualname"})
"""Attributes that expose names, docstrings and definition order, which digests otherwise leave out."""
_NAME_READERS = (builtins.dir, builtins.vars)
_FORMATTERS = (builtins.ascii, builtins.format, builtins.print, builtins.repr, builtins.str)
"""Functions that show the names of functions and classes in the text of some values."""
_FORMATTING = frozenset(
    {
        *("__format__", "__repr__", "__str__", "aRepr", "format", "format_map", "pformat", "repr"),
        *("safe_substitute", "saferepr", "substitute", "typename"),
    }
)
"""Names of attributes that do the same."""
_PLACEHOLDER = re.compile(r"%(?:\([^)]*\))?[-#0 +]*[\d*.]*[hlL]?[sra]")
"""A `%` placeholder in a text."""
_ATTRIBUTE_READERS = (
    *_NAME_READERS,
    builtins.getattr,
    builtins.hasattr,
    operator.attrgetter,
    operator.methodcaller,
)
_LONGEST_NAME = 1000
"""Characters; a longer text is no dotted name of an attribute."""


class Unknown(Exception):
    """The behaviour of a value cannot be determined; the message is a noun phrase that names the value."""


class Reads:
    """Everything that the code in one fingerprint reads."""

    def __init__(self, unknown: Callable[[str], Unknown]) -> None:
        """`unknown` returns the error for a value that it describes."""
        self._unknown = unknown
        self.attributes: set[str] = set()
        """Names of attributes that code reads, on any object."""
        self.functions: set[str] = set()
        """Names of known functions and classes that code reads as values, for example by an import."""
        self.owners: list[types.ModuleType | type] = []
        """Known modules and classes that code reads as values: it may read any of their attributes."""
        self.globals: list[str] = []
        """Names of globals that code reads, in order."""
        self.rebinds_globals = False
        """True if code rebinds globals: then the digest includes the names of the globals that it reads."""
        self.any_attribute = False
        """True if code reads attributes by names that it computes at run time."""
        self.reads_names = False
        """True if code reads names, docstrings or definition order."""
        self.formats_values = False
        """True if code formats values, so that it may read the names of functions and classes."""
        self._forbidden: dict[str, frozenset[str]] = {}
        """Name of an added function or class → attributes of it that code must not read."""

    def add_value(self, value: Any) -> None:
        """Record what a call of `value` reads; Unknown if it reads state that no cache key covers."""
        if any(value is reader for reader in _READERS):
            raise self._unknown("it reads state that no cache key covers")
        self.reads_names |= any(value is reader for reader in _NAME_READERS)
        self.formats_values |= any(value is formatter for formatter in _FORMATTERS)
        self.any_attribute |= any(value is reader for reader in _ATTRIBUTE_READERS)

    def add_attribute(self, name: Any, *, generated: bool = False) -> None:
        """Record that code reads an attribute; Unknown if it reads state that no cache key covers.

        `generated` says that the code is a `__repr__` that `dataclass` wrote: it reads names only if other
        code formats values.
        """
        if type(name) is not str:
            return
        self.attributes.add(name)
        if name in _FORMATTING:
            self.formats_values = True
        for kind, names in self._forbidden.items():
            if name in names:
                raise self._unknown(f"`{name}` of `{kind}`, which reads state that no cache key covers")
        if name in _NAMING_ATTRIBUTES:
            self.reads_names |= not generated
        elif name in _READING_ATTRIBUTES:
            raise self._unknown(f"`{name}`, which reads state that no cache key covers")

    def add_text(self, text: str) -> None:
        """Record a text, which may be a dotted name of attributes or a format string."""
        self.add_placeholders(text)
        if len(text) < _LONGEST_NAME:
            for name in text.split("."):
                self.add_attribute(name)

    def add_placeholders(self, text: str) -> None:
        """Record whether a text has placeholders."""
        self.formats_values |= _PLACEHOLDER.search(text) is not None

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


def is_pure(module: str, name: str) -> bool:
    """Return whether `name` of a module depends on its arguments alone; True outside the standard library."""
    package = module.partition(".")[0]
    if package not in sys.stdlib_module_names:
        return True
    package = package.lstrip("_")
    if package == "posixpath":
        package = "ntpath"
    return package in _PURE_MODULES or name.partition(".")[0] in _PURE_NAMES.get(package, frozenset())
