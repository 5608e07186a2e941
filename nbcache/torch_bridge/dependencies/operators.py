"""What is registered for an operator: its schema, and the code that torch traces through or asks for shapes.

torch's keys name an operator and leave out what is registered for it. A kernel for a device is left out here
as well: the compiled graph calls the operator, and so whatever kernel there is.

torch's dispatcher tells that a kernel is there, and where its library was made, but not which function it is.
So `Registrations` notes the functions as they are registered. What was registered from Python before that
cannot be told, except for what torch itself keeps: `torch.library.custom_op` and `register_fake`.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbcache.core.errors import UnsupportedTorch
from nbcache.core.fingerprints.digests import Fingerprint, Unknown
from nbcache.core.fingerprints.known_code import KnownPackages, cell_contents
from nbcache.torch_bridge.dependencies.graph_fingerprint import State
from nbcache.torch_bridge.dependencies.graphs import parts_of

if TYPE_CHECKING:
    from nbcache.torch_bridge.patches import Patches

__all__ = ["Registrations", "add_python"]

_KERNEL = re.compile(
    r"(?P<key>\w+)(?:\[alias\])?(?P<inactive> \(inactive\))?: "
    r"(?:fallthrough )?registered (?:at (?P<file>.*):\d+|by RegisterOperators) :: ",
    re.ASCII,
)
"""A line of what the dispatcher prints of an operator; kernels that another one replaced are `(inactive)`.

`RegisterOperators` is a class of C++.
"""
_HEADER = re.compile(r"(name|schema|debug|alias analysis kind): |$")
"""The other lines."""
_DEFINED = re.compile(r"debug: registered at (?P<file>.*):\d+")
_COMPILED = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hip", ".hpp", ".inl", ".mm")
_DEVICES = frozenset({"CPU", "CUDA", "HIP", "HPU", "MPS", "MTIA", "PrivateUse1", "XPU"})
"""Keys of kernels that run when the graph runs."""
_SHAPES = frozenset({"CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "Meta"})
"""Keys of kernels that tell shapes; without any, torch may ask a device's kernel."""
_IMPLICIT = "CompositeImplicitAutograd"
"""The key of a kernel that is registered under none."""
_ANYWHERE = ("_library/custom_ops.py", "library.py")
"""Files of torch's that register what others have written."""
_KERNELS = ("_backend_fns", "_disabled_kernel", "_init_fn")
"""Attributes of what `custom_op` returns that hold kernels for devices."""
_TOLD = frozenset({*_KERNELS, "_lib", "_name", "_namespace", "_opoverload"})
"""Those, and attributes that tell what its schema tells, too."""
_LINKED = (b"libc10.so", b"libtorch.so", b"libtorch_cpu.so", b"libtorch_python.so")
"""Names that a shared library which registers operators holds: it is linked with one of them."""


class _Kernel(NamedTuple):
    key: str
    file: str


class Registrations:
    """Notes what is registered for operators, and adds it to fingerprints."""

    def __init__(
        self, torch: ModuleType, known: KnownPackages, *, late: bool, on_fault: Callable[[Exception], object]
    ) -> None:
        """`late` says that torch was imported before: what was registered until now was not seen.

        `on_fault` gets the error where a registration could not be noted.
        """
        self._torch = torch
        self._on_fault = on_fault
        self._known = known
        self._late = late
        self._folder = os.path.join(os.path.dirname(os.path.abspath(str(torch.__file__))), "")
        self._kernels: dict[tuple[str, str], list[tuple[Any, weakref.ref[Any]]]] = {}
        """By operator and dispatch key: each function, and the library that lends it."""
        self._through = (
            os.path.join(os.path.dirname(os.path.abspath(str(sys.modules["nbcache"].__file__))), ""),
            *(self._folder + each for each in ("_library/", "_ops.py", "library.py")),
        )
        """Files that register what others hand to them."""
        self._before: frozenset[str] = frozenset()
        """What was registered from Python before anything was noted; empty once it was looked at."""
        self._unseen: str | None = None
        """An operator of torch's that others had replaced by then."""
        self._replaced: list[tuple[str, Any, weakref.ref[Any]]] = []
        """What others have registered for all operators, or for one of torch's own."""
        self._torchs: dict[str, bool] = {}
        self._adding: set[tuple[int, str]] = set()
        """The operators whose registrations are being added, and to what."""

    def follow(self, torch: ModuleType, patches: Patches) -> None:
        """Note each registration from now on: `Library.impl`, `Library.fallback` and `py_impl`."""

        def impl(original: Any, lib: Any, op_name: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
            self._note(self._look_before)
            result = original(lib, op_name, fn, *args, **kwargs)
            self._note(lambda: self._note_kernel(lib, op_name, fn, _dispatch_key(lib, args, kwargs)))
            return result

        def fallback(original: Any, lib: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(lib, fn, *args, **kwargs)
            what = partial(_dispatch_key, lib, args, kwargs)
            self._note(lambda: self._note_replaced(f"fallback {what()}", fn, lib))
            return result

        def py_impl(original: Any, operator: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
            register = original(operator, key, *args, **kwargs)

            def inner(*functions: Any, **named: Any) -> Any:
                result = register(*functions, **named)
                for each in (*functions, *named.values()):
                    self._note(partial(self._note_py_impl, operator, key, each))
                return result

            return inner

        def _destroy(original: Any, lib: Any) -> Any:
            result = original(lib)
            self._note(partial(self._forget, lib))
            return result

        if self._late:
            self._before = frozenset(torch.library._impls)
        library = torch.library.Library
        patches.hook(library, "impl", impl)
        patches.hook(library, "_destroy", _destroy)
        patches.hook(library, "fallback", fallback)
        patches.hook(torch._ops.OperatorBase, "py_impl", py_impl)

    def _note(self, action: Callable[[], None]) -> None:
        """Note a registration; where that fails, the user's goes on."""
        try:
            action()
        except Exception as error:
            self._on_fault(error)

    def _note_kernel(self, library: Any, operator: Any, function: Any, dispatch_key: str) -> None:
        name = operator if isinstance(operator, str) else operator._name
        qualified = f"{library.ns}::{name.split('::')[-1]}"
        key = dispatch_key or _IMPLICIT
        before = self._kernels.get((qualified, key), ())
        lent = [each for each in before if each[1]() is not None]
        self._kernels[qualified, key] = [*lent, (function, weakref.ref(library))]
        if self.is_torchs(qualified):
            self._note_replaced(f"{qualified} {key}", function, library)

    def _note_py_impl(self, operator: Any, key: Any, function: Any) -> None:
        self._note_replaced(f"{operator.name()} {key}", function, operator)

    def _note_replaced(self, what: str, function: Any, owner: Any) -> None:
        name = what.partition(" ")[0]
        if name != "fallback" and not self.is_torchs(name):
            return
        if not (
            self._known.is_library_code(function) and self._known.is_caller(sys._getframe(), self._through)
        ):
            self._replaced.append((what, function, weakref.ref(owner)))

    def _forget(self, library: Any) -> None:
        """Forget what a library has registered: it was taken back."""
        for place, lent in list(self._kernels.items()):
            self._kernels[place] = [each for each in lent if each[1]() is not library]
        self._replaced = [each for each in self._replaced if each[2]() is not library]

    def _look_before(self) -> None:
        """Look at what was registered before anything was noted, once: what comes later may hide it."""
        if self._before:
            self._unseen, self._before = self._replaced_before(), frozenset()

    def add_replaced(self, state: State) -> None:
        """Add what others than torch have registered for operators of torch's: any graph may run into it."""
        self._look_before()
        if self._unseen is not None:
            raise Unknown(f"`{self._unseen}` is torch's and was replaced before nbcache was loaded")
        for what, function, reference in self._replaced:
            owner = reference()
            if owner is not None and self._is_registered(owner, function):
                state.note(what)
                state.add_code(function, f"what was registered for {what}")

    def _is_registered(self, owner: Any, function: Any) -> bool:
        """Tell whether a function is still registered by its library, or for an operator by `py_impl`."""
        if not isinstance(owner, self._torch._ops.OperatorBase):
            return True  # what a library has registered is forgotten when that is destroyed
        return any(function is each for table in _python_tables(owner) for each in table.values())

    def _replaced_before(self) -> str | None:
        """Return an operator of torch's that others had replaced from Python before anything was noted."""
        keys: dict[str, set[str]] = {}
        for entry in self._before:
            namespace, operator, key = entry.split("/")
            keys.setdefault(f"{namespace}::{operator}", set()).add(key)
        for name in sorted(keys):
            for kernel in _kernels(self._torch, name):
                if kernel.key not in keys[name]:
                    continue
                theirs = kernel.file.endswith(_COMPILED) or kernel.file.startswith(self._folder)
                anybodys = kernel.file.removeprefix(self._folder) in _ANYWHERE and name.startswith("aten::")
                if (anybodys or not theirs) and self.is_torchs(name):
                    return name
        return None

    def add(self, state: Fingerprint, operator: Any, *, called: bool) -> None:
        """Add an `OpOverload` with all that is registered for it; Unknown where that cannot be told.

        `called` says that code calls it which runs while torch compiles, and so may run its kernels. torch
        runs those of an operator tagged as pointwise itself, where all that it is given is constant.
        """
        name = operator._name
        state.note("operator", name)
        if (
            self.is_torchs(name) or (id(state), name) in self._adding
        ):  # what is registered for it leads back to it
            return
        runs = called or self._torch.Tag.pointwise in operator.tags
        state.note(operator._schema, *sorted(map(str, operator.tags)), runs)
        with state.describing(f"`{name}`"), self._added(state, name):
            definition = self._torch._library.custom_ops.OPDEFS.get(name)
            if definition is not None:
                state.add(_held(definition, _KERNELS if runs else ()))
            has_fake = self._add_rules(state, name)
            self._add_kernels(state, name, definition is not None, has_fake, runs)
            add_python(state, operator)

    @contextmanager
    def _added(self, state: Fingerprint, name: str) -> Iterator[None]:
        adding = (id(state), name)  # of one thread of several
        self._adding.add(adding)
        try:
            yield
        finally:
            self._adding.discard(adding)

    def _add_rules(self, state: Fingerprint, name: str) -> bool:
        """Add what torch keeps outside of its dispatcher; return whether it tells shapes."""
        entry = self._torch._library.simple_registry.singleton.find(name)  # where there is none, an empty one
        fake = entry.fake_impl.kernel
        state.add(None if fake is None else fake.func, "its fake implementation")
        rules = entry.torch_dispatch_rules._data
        for kind in sorted(rules, key=str):
            state.add((kind, rules[kind]), "a rule of its for torch_dispatch")
        state.note(getattr(entry.effect, "_effect", None))
        symmetric = getattr(entry, "symm_mem_args", None)
        state.note(None if symmetric is None else sorted(symmetric.get() or ()))
        return fake is not None

    def _add_kernels(self, state: Fingerprint, name: str, defined: bool, has_fake: bool, runs: bool) -> None:
        kernels = sorted(_kernels(self._torch, name))
        keys = {kernel.key for kernel in kernels}
        has_shapes = has_fake or defined or bool(keys & _SHAPES) or _IMPLICIT in keys
        compiled = False
        for key, file in kernels:
            if key in _DEVICES and has_shapes and not runs:
                continue
            if defined and file == self._folder + _ANYWHERE[0]:
                continue  # what `custom_op` registers calls what its definition holds
            seen = self._kernels.get((name, key), ())
            if functions := tuple(function for function, library in seen if library() is not None):
                state.note(key)
                state.add(functions, f"its kernel for {key}")
            elif file.endswith(_COMPILED):
                compiled = True
            elif not (has_fake and key == "Meta"):
                raise state.unknown(f"its kernel for {key} was registered before nbcache was loaded")
        if compiled:
            state.note(*_libraries(self._folder))

    def is_torchs(self, name: str) -> bool:
        """Tell whether torch itself defines the operator `name`."""
        found = self._torchs.get(name)
        if found is None and (found := self._defined_by_torch(name)) is not None:
            self._torchs[name] = found
        return bool(found)

    def made(self, target: Any) -> bool:
        """Tell whether torch alone has made what a node of a graph calls."""
        if isinstance(target, self._torch._ops.OpOverload):
            return self.is_torchs(target._name)
        if isinstance(target, self._torch._ops.OpOverloadPacket):
            return all(self.made(getattr(target, name)) for name in target.overloads())
        if isinstance(target, FunctionType) and target.__closure__:  # Dynamo puts constants there
            held = (type(part) for part in parts_of(cell_contents(target)))
            return self._known.is_library_code(target) and all(map(self._known.is_library_code, held))
        return self._known.is_library_code(target) and (
            callable(target) or self._known.is_library_code(type(target))
        )

    @cached_property
    def _definition_of_add(self) -> re.Match[str] | None:
        """Where one of torch's own operators in C++ is defined."""
        return _definition(self._torch, "aten::add.Tensor")

    def _defined_by_torch(self, name: str) -> bool | None:
        """Tell the same; None for an operator in Python whose definition torch is about to keep."""
        try:
            match, build = _definition(self._torch, name), self._definition_of_add
        except RuntimeError:  # a higher-order operator: it is a class of its own
            return name.startswith("higher_order::") or "::" not in name
        if match is None or build is None:
            return name.startswith("aten::")
        file = match["file"]
        if file.startswith(self._folder):
            if file.removeprefix(self._folder) not in _ANYWHERE:
                return True
            definition = self._torch._library.custom_ops.OPDEFS.get(name)
            return None if definition is None else self._known.is_library_code(definition._init_fn)
        root = build["file"].partition("build/aten/")[0]
        return file.startswith(root) if os.path.isabs(root) else name.startswith("aten::")


def add_python(state: Fingerprint, operator: Any) -> None:
    """Add what `py_impl` has registered for an operator."""
    for table in _python_tables(operator):
        for key in sorted(table, key=str):
            state.note(key)
            state.add(table[key])


def _python_tables(operator: Any) -> tuple[Mapping[Any, Any], ...]:
    """Return where an operator keeps what `py_impl` has registered for it."""
    return operator.py_kernels, operator.python_key_table, operator.functorch_table


def _dispatch_key(library: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the key that a kernel is registered under, by what was given after it; empty for none."""
    return str(kwargs.get("dispatch_key") or (args[0] if args else "") or library.dispatch_key)


def _held(definition: Any, more: Collection[str]) -> dict[str, Any]:
    """Return what a definition holds beside its kernels and what its schema tells, and `more`."""
    return {name: held for name, held in vars(definition).items() if name not in _TOLD or name in more}


def _definition(torch: ModuleType, name: str) -> re.Match[str] | None:
    """Return where an operator is defined; RuntimeError where the dispatcher has none of this name."""
    return _DEFINED.search(torch._C._dispatch_dump(name))


def _kernels(torch: ModuleType, name: str) -> Iterator[_Kernel]:
    """Return an operator's kernels in torch's dispatcher; UnsupportedTorch where its text is another."""
    for line in torch._C._dispatch_dump(name).splitlines():
        if _HEADER.match(line):
            continue
        if (match := _KERNEL.match(line)) is None:
            raise UnsupportedTorch(f"nbcache cannot read what torch's dispatcher prints of `{name}`")
        if not match["inactive"]:
            yield _Kernel(match["key"], match["file"] or _COMPILED[0])


def _libraries(folder: str) -> list[str]:
    """Return the digests of the shared libraries in this process that may register operators.

    Which of them registers a certain one is not told; so all count, but for torch's own.
    """
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "/" in line}
    except OSError as error:
        raise Unknown("operators that are written in C++") from error
    digests = set()
    for path in paths:
        if ".so" in os.path.basename(path) and not path.startswith(folder) and os.path.exists(path):
            status = os.stat(path)
            found = _library(path, status.st_mtime_ns, status.st_size, status.st_ino)
            if found is not None:
                digests.add(found)
    if not digests:
        raise Unknown("operators whose shared library is not found")
    return sorted(digests)


@lru_cache(maxsize=1024)
def _library(path: str, modified_ns: int, size: int, inode: int) -> str | None:
    """Return the SHA-256 of a shared library that is linked with torch; None of another one."""
    if not size:
        return None
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if all(content.find(name) < 0 for name in _LINKED):
            return None
        return hashlib.sha256(content).hexdigest()
