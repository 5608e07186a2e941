"""What code reads: names of attributes, known modules and classes, and what no value tells."""

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
from collections.abc import Callable
from typing import Any

from nbcache.core.fingerprints.stdlib import TOGETHER, computes

__all__ = ["Reads", "Unknown"]

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
        *("__annotate__", "__annotations__", "__globals__", "__orig_bases__", "__signature__"),
        *("__subclasses__", "__text_signature__", "__type_params__", "f_back", "f_globals", "f_locals"),
        *("from_file", "fromfile", "genfromtxt", "get_annotations", "get_original_bases"),
        *("get_protocol_members", "load_file", "loadtxt", "memmap", "read_bytes", "read_text"),
    }
)
"""Attributes that read such things, whatever they are attributes of."""
_NAMING_ATTRIBUTES = frozenset({"__dict__", "__doc__", "__name__", "__qualname__", "co_name", "co_qualname"})
"""Attributes that tell names, texts and orders, which count in no other way."""
_NAMING = (builtins.dir, builtins.vars)
_TELLING = (builtins.ascii, builtins.format, builtins.print, builtins.repr, builtins.str)
"""What tells the names of functions and classes, of some values."""
_FORMATTING = frozenset(
    {
        *("__format__", "__repr__", "__str__", "aRepr", "format", "format_map", "pformat", "repr"),
        *("safe_substitute", "saferepr", "substitute", "typename"),
    }
)
"""Attributes that do so."""
_FORMATS = re.compile(r"%(?:\([^)]*\))?[-#0 +]*[\d*.]*[hlL]?[sra]")
"""Where a text has a place for another one."""
_READ_ANY = (*_NAMING, builtins.getattr, builtins.hasattr, operator.attrgetter, operator.methodcaller)
_LONGEST_NAME = 1000
"""Characters of a text that may be the name of an attribute, or of one within another."""


class Unknown(Exception):
    """It cannot be told what a value does; the message names it, in words that begin a clause."""


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
        self.globals: list[str] = []
        """Names of globals that code reads, in order."""
        self.rebinds = False
        """Whether code rebinds globals: then it counts under which names they are read."""
        self.any = False
        """Whether code reads attributes by names that are made while it runs."""
        self.names = False
        """Whether code reads names, texts and orders."""
        self.texts = False
        """Whether code makes texts of values, which hold the names of functions and classes."""
        self._together: dict[str, frozenset[str]] = {}
        """What was added that code may not read these attributes of, by name."""

    def value(self, value: Any) -> None:
        """Note what a value reads when it is called; Unknown where no key tells that."""
        if any(value is reads for reads in _READS):
            raise self._unknown("it reads what no key tells")
        self.names |= any(value is naming for naming in _NAMING)
        self.texts |= any(value is telling for telling in _TELLING)
        self.any |= any(value is reads for reads in _READ_ANY)

    def name(self, name: Any, *, generated: bool = False) -> None:
        """Note what an attribute of this name reads; Unknown where no key tells that.

        `generated` says that the code is the `__repr__` that `dataclass` writes: names count where other code
        makes texts.
        """
        if type(name) is not str:
            return
        self.attributes.add(name)
        if name in _FORMATTING:
            self.texts = True
        for kind, names in self._together.items():
            if name in names:
                raise self._unknown(f"`{name}` of `{kind}`, which reads what no key tells")
        if name in _NAMING_ATTRIBUTES:
            self.names |= not generated
        elif name in _READING_ATTRIBUTES:
            raise self._unknown(f"`{name}`, which reads what no key tells")

    def text(self, text: str) -> None:
        """Note what is read by a text, which may be the name of an attribute, or has places for others."""
        self.places_in(text)
        if len(text) < _LONGEST_NAME:
            for name in text.split("."):
                self.name(name)

    def places_in(self, text: str) -> None:
        """Note whether a text has places for others."""
        self.texts |= _FORMATS.search(text) is not None

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
