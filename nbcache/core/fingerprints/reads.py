"""Reads of code: names of attributes, known modules and classes, and what no value tells.

Parts of the standard library that read files, clocks or settings of the process make a value unknown. Those
that are not named here are taken for such parts.
"""

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

from nbcache.core.fingerprints.objects import Unknown

__all__ = ["TOGETHER", "Reads", "Unknown", "computes"]


def _split(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


_READS: tuple[Any, ...] = (
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
"""What reads something that no value tells: a file, a name that is made while it runs."""
_READING_ATTRIBUTES = frozenset(
    {
        *("__annotate__", "__annotations__", "__doc__", "__globals__", "__orig_bases__", "__signature__"),
        *("__subclasses__", "__text_signature__", "__type_params__", "f_back", "f_globals", "f_locals"),
        *("from_file", "fromfile", "genfromtxt", "get_annotations", "get_original_bases"),
        *("get_protocol_members", "load_file", "loadtxt", "memmap", "read_bytes", "read_text"),
    }
)
"""Attributes that read such things, whatever they are attributes of."""
_TELLING = (builtins.ascii, builtins.format, builtins.print, builtins.repr, builtins.str)
"""Functions that make texts of values."""
_FORMATTING = frozenset(
    {
        *("__format__", "__repr__", "__str__", "aRepr", "format", "format_map", "pformat", "repr"),
        *("safe_substitute", "saferepr", "substitute", "typename"),
    }
)
"""Attributes that do so."""
_FORMATS = re.compile(r"%(?:\([^)]*\))?[-#0 +]*[\d*.]*[hlL]?[sra]")
"""Where a text has a place for another one."""
_READ_ANY = (
    *(builtins.dir, builtins.vars, builtins.getattr, builtins.hasattr),
    *(operator.attrgetter, operator.methodcaller),
)
_LONGEST_NAME = 1000
"""Characters of a text that may be the name of an attribute, or of one within another."""


_MODULES = _split(
    "abc array base64 binascii bisect builtins cmath codecs collections contextlib copy copyreg dataclasses",
    "datetime enum fractions functools graphlib hashlib heapq html itertools json keyword math numbers",
    "opcode operator pprint random re reprlib sre statistics string struct textwrap types typing warnings",
    "weakref zlib",
)
"""Modules that compute, without the underscore of those that are written in C."""
_NAMES: Mapping[str, frozenset[str]] = {
    "argparse": _split("Namespace"),
    "inspect": _split("isbuiltin isclass iscoroutinefunction isfunction isgeneratorfunction ismethod"),
    "io": _split("BytesIO StringIO TextIOBase"),
    "ntpath": _split("basename commonprefix dirname isabs join normpath split splitext"),
    "os": _split("PathLike fspath"),
    "pathlib": _split("PurePath PurePosixPath PureWindowsPath"),
    "posix": _split("fspath"),
    "sys": _split("float_info hash_info int_info intern version_info"),
    "thread": _split("LockType RLock _local allocate_lock get_ident lock"),
    "threading": _split("Lock RLock _RLock get_ident local"),
}
"""Of other modules, what computes, or holds others off."""
TOGETHER: Mapping[str, frozenset[str]] = {
    "dataclasses.fields": _split("type"),
    "datetime.date": _split("today"),
    "datetime.datetime": _split("now today utcnow"),
    "logging.Logger": _split(
        "disabled filters getChild getEffectiveLevel handlers hasHandlers isEnabledFor level"
    ),
    "pathlib.Path": _split(
        "absolute cwd exists expanduser glob group home is_block_device is_char_device is_dir is_fifo",
        "is_file is_junction is_mount is_socket is_symlink iterdir lstat open owner readlink",
        "resolve rglob samefile stat walk",
    ),
}
"""What computes unless code reads one of these attributes of it."""


def computes(module: str, name: str) -> bool:
    """Tell whether what a module of the standard library calls `name` does nothing but compute.

    What is not of the standard library does, as far as it is known here.
    """
    package = module.partition(".")[0]
    if package not in sys.stdlib_module_names:
        return True
    package = package.lstrip("_")
    if package == "posixpath":
        package = "ntpath"
    return package in _MODULES or name.partition(".")[0] in _NAMES.get(package, frozenset())


class Reads:
    """What is read by all the code that was added to one fingerprint."""

    def __init__(self, unknown: Callable[[str], Unknown]) -> None:
        """`unknown` makes the error that names a value."""
        self._unknown = unknown
        self.attributes: set[str] = set()
        """Names of attributes that code reads, of whatever."""
        self.functions: set[str] = set()
        """Names of known functions and classes that are read as values, as where they were imported."""
        self.owners: list[types.ModuleType | type] = []
        """Known modules and classes that are read as values: code may read any attribute of theirs."""
        self.any = False
        """Whether code reads attributes by names that are made while it runs."""
        self.texts = False
        """Whether code makes texts of values."""
        self._together: dict[str, frozenset[str]] = {}
        """What was added that code may not read these attributes of, by name."""

    def value(self, value: Any) -> None:
        """Note what a value reads when it is called; Unknown where no key tells that."""
        if any(value is reads for reads in _READS):
            raise self._unknown("it reads what no key tells")
        self.texts |= any(value is telling for telling in _TELLING)
        self.any |= any(value is reads for reads in _READ_ANY)

    def name(self, name: Any) -> None:
        """Note what an attribute of this name reads; Unknown where no key tells that."""
        if type(name) is not str:
            return
        self.attributes.add(name)
        if name in _FORMATTING:
            self.texts = True
        for kind, names in self._together.items():
            if name in names:
                raise self._unknown(f"`{name}` of `{kind}`, which reads what no key tells")
        if name in _READING_ATTRIBUTES:
            raise self._unknown(f"`{name}`, which reads what no key tells")

    def text(self, text: str) -> None:
        """Note what is read by a text, which may be the name of an attribute, or has places for others."""
        self.texts |= _FORMATS.search(text) is not None
        if len(text) < _LONGEST_NAME:
            for name in text.split("."):
                self.name(name)

    def of_module(self, module: str, name: str) -> None:
        """Note what is read by what a module calls `name`; Unknown where no key tells that."""
        if not computes(module, name):
            raise self._unknown(f"`{module}{name and '.'}{name}`, which may read what no key tells")
        self.functions.add(name.rpartition(".")[2])
        self.together(f"{module}.{name}")

    def together(self, name: str) -> None:
        """Have it unknown what code does that reads certain attributes, now that there is what has them."""
        if name in TOGETHER and name not in self._together:
            self._together[name] = TOGETHER[name]
            for attribute in sorted(self.attributes & TOGETHER[name]):
                raise self._unknown(f"`{attribute}` of `{name}`, which reads what no key tells")
