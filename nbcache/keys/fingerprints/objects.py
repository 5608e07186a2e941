"""Digests of objects by their own content, down to names and orders.

Equal fingerprints mean that code behaves equally; equal digests of `Objects` mean that no reader can
distinguish the objects, if two processes digest the same objects in the same order. An instance or a tensor
that an instance holds contributes its class alone: a caller that reads it must ask for its digest, too. A
function's digest excludes its globals' values. All exclude comments, annotations, docstrings, line numbers.

An object whose content cannot be read completely, such as an open file or an array, is *opaque*: its digest
covers its class alone. Code of the digested objects never runs.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import sys
import types
import typing
import weakref
from _abc import _get_dump  # type: ignore[import-not-found]
from abc import ABC, ABCMeta
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import product
from typing import Any, Protocol

from nbcache.keys.fingerprints.code import code_digest, exact, exact_int, hashed, value_digest, words
from nbcache.keys.fingerprints.known_code import CACHED, DESCRIPTORS

HEAP_TYPE = 1 << 9
"""Flag in `__flags__`: a heap type, such as every class that is written in Python."""
DESCRIPTIVE = words(
    "__annotate__ __annotations__ __annotations_cache__ __doc__ __firstlineno__ __static_attributes__",
    "_abc_impl",
)
"""Attributes of classes and functions that have no effect unless code reads them."""

protocol_attributes: Callable[[type], Iterable[str]] = getattr(typing, "_get_protocol_attrs", vars)
"""Returns the names of a protocol's methods and annotated attributes."""
_MOST_OBJECTS = 300_000
_LONGEST_TEXT = 200
"""Characters; a longer plain value is digested as its beginning and a hash."""
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented)})
_IMMUTABLE = 1 << 8
"""Flag in `__flags__`: a class with attributes that cannot be set."""
_MATCHED = 1 << 5 | 1 << 6
"""Flags in `__flags__`: patterns of sequences, or of mappings, match instances."""
_VALUES = frozenset(
    {frozenset, range, slice, tuple, types.CodeType, types.MethodType, types.MethodWrapperType}
)
"""Types whose instances have no relevant identity."""
_LISTS = (list, tuple, deque, set, frozenset)
_DICTS = (OrderedDict, defaultdict, dict)
_FIELD: type = type(vars(namedtuple("_", "a"))["a"])
_IGNORED_OF_CLASSES = DESCRIPTIVE | words("__annotate_func__ __dict__ __module__ __qualname__ __weakref__")
"""Attributes of classes that hold locations, or that the digest covers separately."""
_COMPLETE = (type, types.ModuleType)
"""Types that are digested completely, even inside an instance."""
_BUILTIN_TYPES: tuple[type, ...] = (
    *(*_LISTS, *_DICTS, types.MappingProxyType),
    *(types.FunctionType, types.MethodType, types.CodeType, types.CellType, *DESCRIPTORS),
    *(staticmethod, classmethod, property, functools.partial, CACHED, range, slice, weakref.ref, _FIELD),
)
_DEEP = (types.GenericAlias, types.MappingProxyType, types.UnionType, slice)
"""Types whose C code compares the complete content."""
_IGNORED_OF_FUNCTIONS = frozenset({"__annotate__", "__annotations__", "__type_params__"})


def is_constant(value: Any) -> bool:
    """Return whether a value is a number, a text or a Python constant, which have no identity."""
    return type(value) in _PLAIN


_EMPTY: dict[type, str] = {kind: f"{kind.__name__} 0 {hashed(())}" for kind in (OrderedDict, dict)}


class _TypeTraits:
    __slots__ = ("digest", "empty", "has_identity", "is_code", "is_deep", "type_alone")

    def __init__(self, kind: type, values: tuple[type, ...], digest: Any, *, is_deep: bool) -> None:
        self.digest: Callable[[Any], str] = digest
        self.has_identity = kind not in _VALUES
        """True if equal values are distinguished by identity."""
        self.is_code = issubclass(kind, _COMPLETE)
        self.type_alone = not self.is_code and not issubclass(kind, (*_BUILTIN_TYPES, *values))
        """True if a value inside an instance is digested as its type alone."""
        self.is_deep = is_deep or issubclass(kind, (Enum, *_DEEP)) or vars(kind).get("__module__") == "typing"
        """True if the digest covers nested values completely, since Python compares and prints them so."""
        self.empty = _EMPTY.get(kind)


class Unknown(Exception):
    """The behaviour of a value cannot be determined; the message is a noun phrase that names the value."""


class Objects:
    """Digests of objects that do not change meanwhile."""

    values: tuple[type, ...] = ()
    """Types whose instances are digested completely, even inside an instance."""
    ignored: frozenset[str] = frozenset()
    """Attributes of instances and functions that digests leave out."""

    def __init__(self, *, annotations: bool = False) -> None:
        """`annotations` says whether the digests of functions cover annotations."""
        self._annotations = annotations
        self._deeply = False
        self._in_instance = False
        """True while the visited value is inside an instance, a closure or a function's defaults."""
        self._ancestors: dict[tuple[int, bool, bool], int] = {}
        """Containers of the visited value → nesting depth; a key is (id, is in an instance, is deep)."""
        self._digests: dict[tuple[int, bool, bool], str] = {}
        self._alive: list[Any] = []
        self._opaque: set[int] = set()
        self._indexes: dict[int, int] = {}
        """Object id → index in order of first visit."""
        self._visits: list[int] = []
        self._traits: dict[type, _TypeTraits] = {}
        self.unordered: set[int] = set()
        """Ids of the sets whose order differs between processes."""

    def rule(self, value: Any) -> str | None:
        """Return the digest of a value of a special type, or "" for an opaque value; else None."""
        return None

    def is_deep(self, kind: type) -> bool:
        """Return whether digests of a type's instances cover nested values completely."""
        return False

    def counters(self, cls: type) -> frozenset[str]:
        """Return the attributes of a class that digests leave out."""
        return frozenset()

    def scope_name(self, scope: dict[str, Any]) -> str:
        return ""

    def covers(self, value: Any) -> bool:
        key = id(value)
        is_digested = any((key, *flags) in self._digests for flags in product((False, True), repeat=2))
        return is_constant(value) or (is_digested and key not in self._opaque)

    def classes(self) -> Iterator[type]:
        return (value for value in self._alive if issubclass(type(value), type))

    @property
    def identity(self) -> str:
        """The digest of which visits were of the same object."""
        visits = b"".join([b"%d " % index for index in self._visits])
        return hashlib.blake2b(visits, digest_size=16).hexdigest()

    @property
    def registrations(self) -> str:
        """The digest of the registrations of visited classes for visited abstract classes.

        Classes that digests of their instances leave out count as visited. Registrations of other classes are
        ignored, because any import may add them. Subclasses of an abstract class with a `__subclasshook__`
        are included: its code answers `isinstance`.
        """
        classes = {id(cls): cls for cls in self.classes()}
        pairs = set()
        for abstract in classes.values():
            if issubclass(type(abstract), ABCMeta):
                pairs |= {
                    f"{full_name(cls)} {full_name(abstract)}"
                    for cls in registered_classes(abstract)
                    if id(cls) in classes or is_left_out(cls)
                }
                pairs |= {f"{full_name(cls)} has a hook" for cls in classes_with_subclasshook(abstract)}
        return hashed(sorted(pairs))

    def _visit(self, value: Any) -> None:
        index = self._indexes.get(id(value))
        if index is None:
            self._indexes[id(value)] = index = len(self._indexes)
            self._alive.append(value)
        self._visits.append(index)

    def digest(self, value: Any) -> str:
        """Return the digest of a value, a text of one line; Unknown for a NaN or too many objects."""
        type_ = type(value)
        if type_ in _PLAIN:
            return _plain(type_, value)
        traits = self._traits.get(type_)
        if traits is None:
            digest = self._digest_function(type_)
            traits = _TypeTraits(type_, self.values, digest, is_deep=self.is_deep(type_))
            self._traits[type_] = traits
        if traits.has_identity:
            self._visit(value)
        in_instance, deeply = self._in_instance, self._deeply
        if traits.empty is not None and not value:  # the most frequent value in modules
            return self._digests.setdefault((id(value), in_instance, deeply), traits.empty)
        if traits.is_code:
            self._in_instance = False
        elif in_instance and traits.type_alone and not deeply:
            return self._join("one", self.digest(type_))
        self._deeply = deeply or traits.is_deep
        try:
            return self._cached_digest(value, traits)
        finally:
            self._in_instance, self._deeply = in_instance, deeply

    def _cached_digest(self, value: Any, traits: _TypeTraits) -> str:
        key = id(value), self._in_instance, self._deeply
        digest = self._digests.get(key)
        if digest is not None:
            return self.opaque(value) if self._deeply and key[0] in self._opaque else digest
        depth = self._ancestors.get(key)
        if depth is not None:
            return f"within {len(self._ancestors) - depth}"
        if len(self._digests) >= _MOST_OBJECTS:
            raise Unknown("more objects than nbcache follows")
        self._alive.append(value)
        self._ancestors[key] = len(self._ancestors)
        try:
            digest = self._digests[key] = self._make(value, traits)
        finally:
            del self._ancestors[key]
        return digest

    def opaque(self, value: Any) -> str:
        """Mark a value as opaque and return its digest, which covers its class alone."""
        self._opaque.add(id(value))
        self._opaque.update(key for key, _, deeply in self._ancestors if deeply)  # they cover nested values
        return self._join("opaque", self.digest(type(value)))

    def _join(self, kind: str, *parts: str) -> str:
        return f"{kind} {hashed(parts)}"

    def _make(self, value: Any, traits: _TypeTraits) -> str:
        digest = self.rule(value)
        return traits.digest(value) if digest is None else digest or self.opaque(value)

    def _digest_function(self, kind: type) -> Callable[[Any], str]:
        if kind is _FIELD:
            return lambda value: f"field {value.__reduce__()[1][0]}"
        if kind in (range, slice):
            return lambda value: self._parts(kind.__name__, value.start, value.stop, value.step)
        if kind is types.CellType:
            return lambda value: self._join("cell", *self._cell_content(value))
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
                lambda value: self._wrapper(value, "property", kind, value.fget, value.fset, value.fdel),
            ),
            (
                functools.partial,
                lambda value: self._wrapper(value, "partial", kind, value.func, value.args, value.keywords),
            ),
            (CACHED, lambda value: self._wrapper(value, "cached", value.__wrapped__)),
        )
        make = next((make for kinds, make in makers if issubclass(kind, kinds)), None)
        if make is not None:
            return make
        is_container = issubclass(kind, (*_LISTS, *_DICTS))
        return self._container_function(kind) if is_container else self._instance_function(kind)

    def _proxy(self, value: Any) -> str:
        (mapping,) = gc.get_referents(value)  # any other access runs methods of the mapping
        return self._join("proxy", *self._items(mapping)) if type(mapping) in _DICTS else self.opaque(value)

    def _parts(self, name: str, *parts: Any) -> str:
        return self._join(name, *map(self.digest, parts))

    def _wrapper(self, value: Any, name: str, *parts: Any) -> str:
        return self._join(name, *map(self.digest, parts), *self._attributes(value))

    def _module(self, module: types.ModuleType) -> str:
        name = str(module.__dict__.get("__name__"))
        return f"module {name}" if sys.modules.get(name) is module else self.opaque(module)

    def _function(self, function: types.FunctionType) -> str:
        scope = getattr(sys.modules.get(function.__module__ or ""), "__dict__", None)
        self._in_instance = True
        closure = [content for cell in function.__closure__ or () for content in self._cell_content(cell)]
        return self._join(
            f"function {function.__qualname__}",
            f"{function.__name__} {function.__module__} {function.__globals__ is scope}",
            f"{function.__globals__.get('__name__')} {self.scope_name(function.__globals__)}",
            code_digest(function.__code__),
            self.digest(function.__defaults__),
            self.digest(function.__kwdefaults__),
            *closure,
            self.digest(function.__annotations__ if self._annotations else None),
            *self._named_parts(vars(function), _IGNORED_OF_FUNCTIONS | self.ignored),
        )

    def _cell_content(self, cell: types.CellType) -> list[str]:
        """Return the digest of a closure cell's content, as a list."""
        self._visit(cell)
        try:
            content = cell.cell_contents
        except ValueError:
            return ["empty"]
        return [self.digest(content)]

    def _class(self, cls: type) -> str:
        name = f"class {full_name(cls)}"
        if not cls.__flags__ & HEAP_TYPE or cls.__flags__ & _IMMUTABLE:
            return name
        ignored = _IGNORED_OF_CLASSES | self.counters(cls)
        parts = [self.digest(type(cls)), *map(self.digest, cls.__bases__)]
        if type(cls).mro is not type.mro:  # user code determines the order of its bases
            parts += map(self.digest, cls.__mro__[1:])
        if vars(cls).get("_is_protocol"):  # `isinstance` checks annotated attributes, too
            parts += sorted(protocol_attributes(cls))
        parts.append(str(cls.__flags__ & _MATCHED))
        return self._join(name, cls.__name__, *parts, *self._named_parts(vars(cls), ignored))

    def _descriptor(self, value: Any) -> str:
        owner = getattr(value, "__objclass__", None)
        bound = getattr(value, "__self__", None)
        names = [getattr(value, "__module__", None), value.__qualname__, getattr(owner, "__qualname__", None)]
        if bound is None or isinstance(bound, (types.ModuleType, type)):
            return f"{type(value).__name__} {' '.join(map(str, names))}"
        return self._join(f"bound {value.__qualname__}", self.digest(bound))

    def _container_function(self, kind: type) -> Callable[[Any], str]:
        native = native_class(kind)
        base: Any = next((base for base in (*_LISTS, *_DICTS) if native is base), None)
        if base is None:
            return self.opaque

        def make(value: Any) -> str:
            parts = [] if kind is base else [self.digest(kind), *self._attributes(value)]
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
        """Return the elements of a list or set in an order that is the same in all processes, or None."""
        elements = [*base.__iter__(value)]
        if base in (set, frozenset):
            names = {id(element): _name(element) for element in elements}
            if None in names.values():
                return None
            if not all(type(element) in (int, bool) for element in elements):  # else the order is stable
                elements.sort(key=lambda element: str(names[id(element)]))
                if len(elements) > 1:
                    self.unordered.add(id(value))
        return elements

    def _items(self, value: dict[Any, Any]) -> list[str]:
        items = OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value)
        return [self.digest(part) for item in items for part in item]  # in the order of insertion

    def _attributes(self, value: Any) -> list[str]:
        self._in_instance = True
        return self._named_parts(instance_attributes(type(value), value), self.ignored)

    def _named_parts(self, values: Mapping[str, Any], ignored: frozenset[str]) -> list[str]:
        names = [name for name in values if name not in ignored]
        names.sort(key=str)
        return [part for name in names for part in (str(name), self.digest(values[name]))]

    def _instance_function(self, kind: type) -> Callable[[Any], str]:
        native = native_class(kind)
        if native in _PLAIN:
            text: Any = exact_int if native is int else native.__repr__  # the class may override it
            return lambda value: self._join("plain", self.digest(kind), text(value), *self._attributes(value))
        is_python = kind is object or is_python_class(kind)
        if native is types.SimpleNamespace or (native is object and is_python):
            return lambda value: self._join("instance", self.digest(kind), *self._attributes(value))
        if native is not object:
            return self.opaque

        def make(value: Any) -> str:
            if dictionary_of(value) is None:
                return self.opaque(value)
            return self._join("instance", self.digest(kind), *self._attributes(value))

        return make


def _plain(kind: type, value: Any) -> str:
    """Return the digest of a number, a text or a Python constant; Unknown for a NaN."""
    if value != value:
        raise Unknown("a NaN, which a list finds by its identity")
    text = f"{kind.__name__} {exact_int(value) if kind is int else repr(value)}"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}… {hashed([text])}"


def full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _name(value: Any) -> str | None:
    """Return a name for an element of a set that is the same in all processes; else None."""
    if is_constant(value):
        return f"{type(value).__name__} {exact(value)}"
    if issubclass(type(value), (type, types.FunctionType, *DESCRIPTORS)):
        return f"{getattr(value, '__module__', None)}.{value.__qualname__}"
    if type(value) in (tuple, frozenset):
        names = [_name(element) for element in value]
        return None if None in names else str(names if type(value) is tuple else sorted(map(str, names)))
    return None


# --- attributes of instances and classes, read without running code of their classes ---------------


def instance_attributes(kind: type, value: Any) -> dict[str, Any]:
    slots: dict[str, Any] = {}
    for base in kind.__mro__:
        for name, slot in vars(base).items() if "__slots__" in vars(base) else ():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    slots[name] = slot.__get__(value)
                except AttributeError:
                    pass
    attributes = dictionary_of(value)
    return slots if attributes is None else {**slots, **attributes}


def dictionary_of(value: Any) -> dict[str, Any] | None:
    read: Any = native_class(type(value)).__getattribute__
    try:
        attributes = read(value, "__dict__")
    except AttributeError:
        return None
    return attributes if isinstance(attributes, dict) else None


def native_class(kind: type) -> type:
    """Return the base class in C that stores the content of instances of `kind`; `object` stores none."""
    for base in kind.__mro__:
        new = vars(base).get("__new__")
        if isinstance(new, types.BuiltinFunctionType) and new.__self__ is base:
            return base
        if not base.__flags__ & HEAP_TYPE:
            return base
    return object


def is_python_class(cls: type) -> bool:
    members = vars(cls)
    return "__slots__" in members or any(
        isinstance(member, types.FunctionType) for member in members.values()
    )


def classes_with_subclasshook(abstract: type) -> Iterator[type]:
    """Yield subclasses that decide by code what their instances are; nobody asks `ABC` and `Protocol`."""
    if abstract is ABC or abstract is Protocol:
        return
    subclass: type
    for subclass in type.__subclasses__(abstract):
        if "__subclasshook__" in vars(subclass) or type(subclass) is not type(abstract):
            yield subclass
        yield from classes_with_subclasshook(subclass)


def is_of_torch(value: Any) -> bool:
    """Return whether a class or function belongs to torch, and not to a package such as torchao."""
    return str(value.__module__).partition(".")[0] == "torch"


def is_left_out(cls: type) -> bool:
    """Return whether digests of instances may leave out their class: it is written in C, or torch's."""
    return bool(cls.__flags__ & _IMMUTABLE) or is_of_torch(cls)


def registered_classes(cls: type) -> Iterator[type]:
    """Yield the classes that are registered for an abstract class or for its virtual subclasses."""
    for reference in _get_dump(cls)[0]:
        if (registered := reference()) is not None:
            yield registered
            if issubclass(type(registered), ABCMeta):
                yield from registered_classes(registered)
    subclass: type
    for subclass in type.__subclasses__(cls):
        if issubclass(type(subclass), ABCMeta):
            yield from registered_classes(subclass)
