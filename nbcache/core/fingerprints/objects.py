"""Digests of objects by all that they themselves hold, whoever looks at it and in whatever way.

`Fingerprint` tells whether code does the same; `Objects` tells whether an object is the same to those who
look at it, down to names and orders. Two processes find the same digests where they ask for the same objects
in the same order. An instance counts by its class and its attributes; of an instance or a tensor that it
holds, the class counts alone: who looks at that one as well asks for its digest, too. Containers count with
what they contain, classes with all their attributes, and functions by instructions, defaults, closure and
attributes, and not by the values of the globals that they name. Comments, annotations, docstrings and places
in files do not count.

What is not known to be told whole, such as an open file or an array, is *opaque*: its class counts alone.
Nothing of an object's own code runs.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import sys
import types
import weakref
from abc import ABCMeta
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

from nbcache.core.fingerprints.abstract import deciding, registered
from nbcache.core.fingerprints.code_digest import code_digest, hashed, value_digest
from nbcache.core.fingerprints.digests import Unknown, exact, exact_int
from nbcache.core.fingerprints.instances import (
    has_dictionary,
    has_python,
    held,
    native_class,
    protocol_attributes,
)
from nbcache.core.fingerprints.known_code import CACHED, DESCRIPTORS

__all__ = ["Objects", "Rule", "full_name", "is_plain"]

Rule = Callable[["Objects", Any], str | None]
"""Returns the digest of a value of a type of its own, empty for an opaque one; None of any other value."""

_MOST_OBJECTS = 300_000
_LONGEST_TEXT = 200
"""Characters that a digest shows of a plain value; of a longer one it shows a hash."""
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented)})
_HEAP = 1 << 9
"""Of `__flags__`: a class that was made while the process ran."""
_IMMUTABLE = 1 << 8
"""Of `__flags__`: a class whose attributes cannot be set."""
_VALUES = frozenset(
    {frozenset, range, slice, tuple, types.CodeType, types.MethodType, types.MethodWrapperType}
)
"""Types of which it does not matter whether two are the very same object."""
_LISTS = (list, tuple, deque, set, frozenset)
_DICTS = (OrderedDict, defaultdict, dict)
_FIELD: type = type(vars(namedtuple("_", "a"))["a"])
"""Of the attributes of named tuples."""
_OF_CLASSES = frozenset(
    {
        *("__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__dict__"),
        *("__doc__", "__firstlineno__", "__module__", "__qualname__", "__static_attributes__"),
        *("__weakref__", "_abc_impl"),
    }
)
"""Attributes of classes that tell places, or what is told apart from them."""
_CODE = (type, types.ModuleType)
"""Types of what counts whole, whoever holds it."""
_NO_INSTANCES: tuple[type, ...] = (
    *(*_LISTS, *_DICTS, types.MappingProxyType),
    *(types.FunctionType, types.MethodType, types.CodeType, types.CellType, *DESCRIPTORS),
    *(staticmethod, classmethod, property, functools.partial, CACHED, range, slice, weakref.ref, _FIELD),
)
"""Types of containers, of code, and of what wraps them."""
_DEEP = (types.GenericAlias, types.MappingProxyType, types.UnionType, slice)
"""Types that C compares with all that they hold."""
_OF_FUNCTIONS = frozenset({"__annotate__", "__annotations__", "__type_params__"})


def is_plain(value: Any) -> bool:
    """Tell whether a value is a number, a text or a constant of Python's own: it has no identity."""
    return type(value) in _PLAIN


_EMPTY: dict[type, str] = {kind: f"{kind.__name__} 0 {hashed(())}" for kind in (OrderedDict, dict)}
"""The digests of empty dictionaries."""


class _Kind:
    """What all values of a type have in common."""

    __slots__ = ("empty", "has_identity", "is_apart", "is_code", "is_deep", "make")

    def __init__(
        self, kind: type, values: tuple[type, ...], make: Callable[[Any], str], *, is_deep: bool
    ) -> None:
        self.make = make
        """Makes the digest of a value."""
        self.has_identity = kind not in _VALUES
        """Whether it matters which of two that are equal it is."""
        self.is_code = issubclass(kind, _CODE)
        """Whether a value counts whole, whoever holds it."""
        self.is_apart = not self.is_code and not issubclass(kind, (*_NO_INSTANCES, *values))
        """Whether a value counts by its type alone where an instance holds it."""
        self.is_deep = is_deep or issubclass(kind, (Enum, *_DEEP)) or vars(kind).get("__module__") == "typing"
        """Whether a value counts with all that it holds, since Python compares and prints it so."""
        self.empty = _EMPTY.get(kind)
        """The digest of one that holds nothing; None where that depends on more."""


class Objects:
    """The digests that are asked for while objects stay as they are."""

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        ignored: frozenset[str] = frozenset(),
        values: tuple[type, ...] = (),
        *,
        annotations: bool = False,
        counters: Mapping[type, frozenset[str]] = {},
        most: int = _MOST_OBJECTS,
        are_deep: Callable[[type], bool] = lambda kind: False,
        scope_name: Callable[[dict[str, Any]], str] = lambda scope: "",
    ) -> None:
        """`rules` come before everything else; attributes that are `ignored` don't count.

        Instances of `values` count whole, whoever holds them; `annotations` of functions count if asked for.
        `counters` are attributes of classes that don't count. Of more than `most` objects there is no digest.
        `are_deep` returns whether instances of a type count with all that they hold.
        `scope_name` returns the name by which a function's globals are found; empty where they are not.
        """
        self._scope_name = scope_name
        self._are_deep = are_deep
        self._most = most
        self._deeply = False
        self._annotations = annotations
        self._counters = counters
        self._rules = tuple(rules)
        self._values = values
        self._ignored = ignored
        self._held_by_instance = False
        """Whether what is looked at now is held by an instance, a closure or a function's defaults."""
        self._begun: dict[tuple[int, bool, bool], int] = {}
        """Ids of the objects within which the one is that is looked at now, whether they were held so, and
        counted deeply; and how deep they are.
        """
        self._found: dict[tuple[int, bool, bool], str] = {}
        self._alive: list[Any] = []
        self._opaque: set[int] = set()
        self._numbers: dict[int, int] = {}
        """By id, objects that were come to: the how manieth each was."""
        self._met: list[int] = []
        """The number of each object that was come to, each time."""
        self._kinds: dict[type, _Kind] = {}
        self._ones: dict[str, str] = {}
        """By the digest of a type: that of a value of which the type counts alone."""
        self.unordered: set[int] = set()
        """Ids of sets whose order differs between processes."""

    def covers(self, value: Any) -> bool:
        """Tell whether some digest so far tells all that `value` holds."""
        key = id(value)
        found = any((key, held, deep) in self._found for held in (False, True) for deep in (False, True))
        return is_plain(value) or (found and key not in self._opaque)

    def classes(self) -> Iterator[type]:
        """Return the classes that were come to so far."""
        return (value for value in self._alive if issubclass(type(value), type))

    @property
    def identity(self) -> str:
        """The digest of which of the objects so far were the very same."""
        return hashlib.blake2b(b"".join([b"%d " % each for each in self._met]), digest_size=16).hexdigest()

    @property
    def registrations(self) -> str:
        """The digest of which of the classes so far are registered for which abstract ones of them.

        Others don't count, as imports register more of them, but for classes that inherit from an abstract
        one and decide themselves what is an instance of theirs.
        """
        classes = {id(each): each for each in self.classes()}
        told = set()
        for abstract in classes.values():
            if issubclass(type(abstract), ABCMeta):
                known = (each for each in registered(abstract) if id(each) in classes)
                told |= {f"{full_name(each)} {full_name(abstract)}" for each in known}
                told |= {f"{full_name(each)} decides" for each in deciding(abstract)}
        return hashed(sorted(told))

    def _meet(self, value: Any) -> None:
        """Note that an object is come to: where it is met again, it is the same."""
        number = self._numbers.get(id(value))
        if number is None:
            self._numbers[id(value)] = number = len(self._numbers)
            self._alive.append(value)
        self._met.append(number)

    def digest(self, value: Any) -> str:
        """Return the digest of a value, a text of one line; Unknown of a NaN, and where there is too much."""
        type_ = type(value)
        if type_ in _PLAIN:
            return _plain(type_, value)
        kind = self._kinds.get(type_) or self._kind(type_)
        if kind.has_identity:
            self._meet(value)
        before, deeply = self._held_by_instance, self._deeply
        if kind.empty is not None and not value:  # most of what modules hold
            return self._found.setdefault((id(value), before, deeply), kind.empty)
        if kind.is_code:
            self._held_by_instance = False
        elif before and kind.is_apart and not deeply:
            of_type = self.digest(type_)
            found = self._ones.get(of_type)
            if found is None:
                found = self._ones[of_type] = self._join("one", of_type)
            return found
        self._deeply = deeply or kind.is_deep
        try:
            return self._counted(value, kind)
        finally:
            self._held_by_instance, self._deeply = before, deeply

    def _kind(self, type_: type) -> _Kind:
        made = _Kind(type_, self._values, self._maker(type_), is_deep=self._are_deep(type_))
        return self._kinds.setdefault(type_, made)

    def _counted(self, value: Any, kind: _Kind) -> str:
        key = id(value), self._held_by_instance, self._deeply
        found = self._found.get(key)
        if found is not None:
            return self.opaque(value) if self._deeply and key[0] in self._opaque else found
        depth = self._begun.get(key)
        if depth is not None:
            return f"within {len(self._begun) - depth}"
        if len(self._found) >= self._most:
            raise Unknown("more objects than nbcache looks at")
        self._alive.append(value)
        self._begun[key] = len(self._begun)
        try:
            found = self._found[key] = self._make(value, kind)
        finally:
            del self._begun[key]
        return found

    def opaque(self, value: Any) -> str:
        """Note that a value cannot be told whole, and return what can be told."""
        self._opaque.add(id(value))
        self._opaque.update(key for key, _, deeply in self._begun if deeply)  # of those, all of it counts
        return self._join("opaque", self.digest(type(value)))

    def _join(self, kind: str, *parts: str) -> str:
        return f"{kind} {hashed(parts)}"

    def _make(self, value: Any, kind: _Kind) -> str:
        for rule in self._rules:
            found = rule(self, value)
            if found is not None:
                return found or self.opaque(value)
        return kind.make(value)

    def _maker(self, kind: type) -> Callable[[Any], str]:
        """Return what makes the digests of values of this type."""
        if kind is _FIELD:
            return lambda value: f"field {value.__reduce__()[1][0]}"
        if kind in (range, slice):
            return lambda value: self._parts(kind.__name__, value.start, value.stop, value.step)
        if kind is types.CellType:
            return lambda value: self._join("cell", *self._contents(value))
        if kind is types.MappingProxyType:
            return self._proxy
        makers: tuple[tuple[Any, Callable[[Any], str]], ...] = (
            (types.FunctionType, self._function),
            (type, self._class),
            (types.ModuleType, self._module),
            (types.CodeType, value_digest),
            (types.GenericAlias, lambda value: self._parts("alias", value.__origin__, value.__args__)),
            (types.UnionType, lambda value: self._parts("union", value.__args__)),
            (types.MethodType, lambda value: self._parts("method", value.__func__, value.__self__)),
            (DESCRIPTORS, self._descriptor),
            (weakref.ref, lambda value: self._parts("reference", kind, weakref.ref.__call__(value))),
            ((staticmethod, classmethod), lambda value: self._parts(kind.__qualname__, value.__func__)),
            (
                property,
                lambda value: self._holding(value, "property", kind, value.fget, value.fset, value.fdel),
            ),
            (
                functools.partial,
                lambda value: self._holding(value, "partial", kind, value.func, value.args, value.keywords),
            ),
            (CACHED, lambda value: self._holding(value, "cached", value.__wrapped__)),
        )
        make = next((make for kinds, make in makers if issubclass(kind, kinds)), None)
        if make is not None:
            return make
        return (
            self._container_maker(kind)
            if issubclass(kind, (*_LISTS, *_DICTS))
            else self._instance_maker(kind)
        )

    def _proxy(self, value: Any) -> str:
        (behind,) = gc.get_referents(value)  # any other way runs its methods
        return self._join("proxy", *self._items(behind)) if type(behind) in _DICTS else self.opaque(value)

    def _parts(self, name: str, *parts: Any) -> str:
        return self._join(name, *map(self.digest, parts))

    def _holding(self, value: Any, name: str, *parts: Any) -> str:
        """Return the digest of a value of these parts, which may have attributes."""
        return self._join(name, *map(self.digest, parts), *self._held(value))

    def _module(self, module: types.ModuleType) -> str:
        name = str(module.__dict__.get("__name__"))
        return f"module {name}" if sys.modules.get(name) is module else self.opaque(module)

    def _function(self, function: types.FunctionType) -> str:
        scope = getattr(sys.modules.get(function.__module__ or ""), "__dict__", None)
        self._held_by_instance = True
        cells = [content for cell in function.__closure__ or () for content in self._contents(cell)]
        return self._join(
            f"function {function.__qualname__}",
            f"{function.__name__} {function.__module__} {function.__globals__ is scope}",
            f"{function.__globals__.get('__name__')} {self._scope_name(function.__globals__)}",
            code_digest(function.__code__),
            self.digest(function.__defaults__),
            self.digest(function.__kwdefaults__),
            *cells,
            self.digest(function.__annotations__ if self._annotations else None),
            *self._named(vars(function), _OF_FUNCTIONS | self._ignored),
        )

    def _contents(self, cell: types.CellType) -> list[str]:
        self._meet(cell)
        try:
            content = cell.cell_contents
        except ValueError:
            return ["empty"]
        return [self.digest(content)]

    def _class(self, cls: type) -> str:
        name = f"class {full_name(cls)}"
        if not cls.__flags__ & _HEAP or cls.__flags__ & _IMMUTABLE:
            return name
        ignored = _OF_CLASSES | self._counters.get(cls, frozenset())
        parts = [self.digest(type(cls)), *map(self.digest, cls.__bases__)]
        if type(cls).mro is not type.mro:  # the order of its bases is made by code
            parts += map(self.digest, cls.__mro__[1:])
        if vars(cls).get("_is_protocol"):  # `isinstance` asks for what has an annotation alone
            parts += sorted(protocol_attributes(cls))
        return self._join(name, cls.__name__, *parts, *self._named(vars(cls), ignored))

    def _descriptor(self, value: Any) -> str:
        owner = getattr(value, "__objclass__", None)
        bound = getattr(value, "__self__", None)
        names = [getattr(value, "__module__", None), value.__qualname__, getattr(owner, "__qualname__", None)]
        if bound is None or isinstance(bound, (types.ModuleType, type)):
            return f"{type(value).__name__} {' '.join(map(str, names))}"
        return self._join(f"bound {value.__qualname__}", self.digest(bound))

    def _container_maker(self, kind: type) -> Callable[[Any], str]:
        native = native_class(kind)
        base: Any = next((each for each in (*_LISTS, *_DICTS) if native is each), None)
        if base is None:
            return self.opaque

        def make(value: Any) -> str:
            parts = [] if kind is base else [self.digest(kind), *self._held(value)]
            if issubclass(base, (defaultdict, deque)):
                parts.append(self.digest(value.default_factory if base is defaultdict else value.maxlen))
            if issubclass(base, dict):
                return self._join(f"{base.__name__} {dict.__len__(value)}", *parts, *self._items(value))
            elements = self._elements(value, base)
            if elements is None:
                return self.opaque(value)
            return self._join(f"{base.__name__} {len(elements)}", *parts, *map(self.digest, elements))

        return make

    def _elements(self, value: Any, base: Any) -> list[Any] | None:
        """Return what a list or set holds, in an order that all processes find; None where there is none."""
        elements = [*base.__iter__(value)]
        if base in (set, frozenset):
            names = {id(each): _name(each) for each in elements}
            if None in names.values():
                return None
            if not all(type(each) in (int, bool) for each in elements):  # else the order is told as it is
                elements.sort(key=lambda each: str(names[id(each)]))
                if len(elements) > 1:
                    self.unordered.add(id(value))
        return elements

    def _items(self, value: dict[Any, Any]) -> list[str]:
        items = OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value)
        return [self.digest(each) for item in items for each in item]  # in its own order

    def _held(self, value: Any) -> list[str]:
        self._held_by_instance = True
        return self._named(held(type(value), value), self._ignored)

    def _named(self, values: Mapping[str, Any], ignored: frozenset[str]) -> list[str]:
        names = [name for name in values if name not in ignored]
        names.sort(key=str)
        return [part for name in names for part in (str(name), self.digest(values[name]))]

    def _instance_maker(self, kind: type) -> Callable[[Any], str]:
        native = native_class(kind)
        if native in _PLAIN:
            text: Any = exact_int if native is int else native.__repr__  # not what the class tells
            return lambda value: self._join("plain", self.digest(kind), text(value), *self._held(value))
        if native is types.SimpleNamespace or (native is object and (kind is object or has_python(kind))):
            return lambda value: self._join("instance", self.digest(kind), *self._held(value))
        if native is not object:
            return self.opaque

        def make(value: Any) -> str:
            if not has_dictionary(value):
                return self.opaque(value)
            return self._join("instance", self.digest(kind), *self._held(value))

        return make


def _plain(kind: type, value: Any) -> str:
    """Return the digest of a number, a text or a constant of Python's own; Unknown of a NaN."""
    if value != value:
        raise Unknown("it holds a NaN, which lists find by its identity")
    text = f"{kind.__name__} {exact_int(value) if kind is int else repr(value)}"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}… {hashed([text])}"


def full_name(cls: type) -> str:
    """Return what a class is called, with its module."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _name(value: Any) -> str | None:
    """Return what tells an element of a set from others in each process; None where nothing does."""
    if is_plain(value):
        return f"{type(value).__name__} {exact(value)}"
    if issubclass(type(value), (type, types.FunctionType, *DESCRIPTORS)):
        return f"{getattr(value, '__module__', None)}.{value.__qualname__}"
    if type(value) in (tuple, frozenset):
        names = [_name(each) for each in value]
        return None if None in names else str(names if type(value) is tuple else sorted(map(str, names)))
    return None
