"""torch's values in fingerprints, above all operators: their schemas and registrations.

torch's keys leave an operator's registrations out. Implementations for devices are left out here, too: the
compiled graph calls the operator, and thus its current implementation. torch's dispatcher reports the file of
an implementation, but not its function. So `Registrations` records functions during registration. A function
registered before is unknown, unless torch itself stores it, as for `custom_op` and `register_fake`.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache, partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbcache.core.errors import UnsupportedTorch
from nbcache.keys.fingerprints.digests import Fingerprint
from nbcache.keys.fingerprints.known_code import KnownPackages, cell_contents
from nbcache.keys.fingerprints.objects import Unknown
from nbcache.keys.global_state import add_autocast
from nbcache.keys.graph_fingerprint import GraphFingerprint
from nbcache.keys.graphs import TracedGraph, parts_of
from nbcache.keys.monkeypatches import all_tables
from nbcache.keys.user_passes import Patterns

if TYPE_CHECKING:
    from nbcache.core.patches import Patches


_IMPLEMENTATION = re.compile(
    r"(?P<key>\w+)(?:\[alias\])?(?P<inactive> \(inactive\))?: "
    r"(?:fallthrough )?registered (?:at (?P<file>.*):\d+|by RegisterOperators) :: ",
    re.ASCII,
)
"""An implementation's line in the dispatcher's text about an operator; a replaced one is `(inactive)`."""
_HEADER = re.compile(r"(name|schema|debug|alias analysis kind): |$")
_DEFINED = re.compile(r"debug: registered at (?P<file>.*):\d+")
_COMPILED = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hip", ".hpp", ".inl", ".mm")
_DEVICES = frozenset({"CPU", "CUDA", "HIP", "HPU", "MPS", "MTIA", "PrivateUse1", "XPU"})
"""Dispatch keys of implementations that run when the graph runs."""
_SHAPES = frozenset({"CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "Meta"})
"""Dispatch keys of implementations that compute shapes; without one, torch may call a device's."""
_IMPLICIT = "CompositeImplicitAutograd"
"""The dispatch key of an implementation that is registered without one."""
_REGISTERING_FILES = ("_library/custom_ops.py", "library.py")
_DEVICE_ATTRIBUTES = frozenset({"_backend_fns", "_disabled_kernel", "_init_fn"})
"""Attributes of a `CustomOpDef` that hold implementations for devices."""
_IGNORED_ATTRIBUTES = _DEVICE_ATTRIBUTES | {"_lib", "_name", "_namespace", "_opoverload"}
_TORCH_LIBRARIES = (b"libc10.so", b"libtorch.so", b"libtorch_cpu.so", b"libtorch_python.so")
"""Libraries of torch; a shared library that registers operators is linked with one of them."""


class _Implementation(NamedTuple):
    key: str
    file: str


class Registrations:
    """Records registrations for operators and adds them to fingerprints."""

    def __init__(
        self, torch: ModuleType, known: KnownPackages, *, late: bool, on_fault: Callable[[Exception], object]
    ) -> None:
        """`late`: torch was imported before nbcache was loaded; `on_fault` gets errors of recording."""
        self._torch = torch
        self._on_fault = on_fault
        self._known = known
        self._late = late
        self._folder = os.path.join(os.path.dirname(os.path.abspath(str(torch.__file__))), "")
        self._functions: dict[tuple[str, str], list[tuple[Any, weakref.ref[Any]]]] = {}
        """(Operator, dispatch key) → registered functions, each with its library."""
        self._through = (
            os.path.join(os.path.dirname(os.path.abspath(str(sys.modules["nbcache"].__file__))), ""),
            *(self._folder + path for path in ("_library/", "_ops.py", "library.py")),
        )
        """Files that register functions of their callers."""
        self._earlier: frozenset[str] = frozenset()
        """Registrations from Python before the hooks were set; empty once they were examined."""
        self._replaced_earlier: str | None = None
        """A torch operator that a third party had replaced before the hooks were set."""
        self._overrides: list[tuple[str, Any, weakref.ref[Any]]] = []
        """Third-party registrations for all operators or a torch operator: description, function, owner."""
        self._is_torchs: dict[str, bool] = {}
        self._adding: set[tuple[int, str]] = set()
        """The operators that are being added, each with the id of the fingerprint."""

    def follow(self, torch: ModuleType, patches: Patches) -> None:
        """Record each call of `Library.impl`, `Library.fallback` and `py_impl` from now on."""

        def impl(original: Any, lib: Any, op_name: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
            self._note(self._examine_earlier)
            result = original(lib, op_name, fn, *args, **kwargs)
            self._note(lambda: self._note_function(lib, op_name, fn, _dispatch_key(lib, args, kwargs)))
            return result

        def fallback(original: Any, lib: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(lib, fn, *args, **kwargs)
            self._note(lambda: self._note_override(f"fallback {_dispatch_key(lib, args, kwargs)}", fn, lib))
            return result

        def note_override(operator: Any, key: Any, function: Any) -> None:
            self._note_override(f"{operator.name()} {key}", function, operator)

        def py_impl(original: Any, operator: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
            register = original(operator, key, *args, **kwargs)

            def inner(*functions: Any, **keywords: Any) -> Any:
                result = register(*functions, **keywords)
                for function in (*functions, *keywords.values()):
                    self._note(partial(note_override, operator, key, function))
                return result

            return inner

        def _destroy(original: Any, lib: Any) -> Any:
            result = original(lib)
            self._note(partial(self._forget, lib))
            return result

        if self._late:
            self._earlier = frozenset(torch.library._impls)
        library = torch.library.Library
        patches.hook(library, "impl", impl)
        patches.hook(library, "_destroy", _destroy)
        patches.hook(library, "fallback", fallback)
        patches.hook(torch._ops.OperatorBase, "py_impl", py_impl)

    def _note(self, action: Callable[[], None]) -> None:
        """Record a registration; a failure leaves the user's registration in place."""
        try:
            action()
        except Exception as error:
            self._on_fault(error)

    def _note_function(self, library: Any, operator: Any, function: Any, dispatch_key: str) -> None:
        """Record a function that `Library.impl` has registered, and drop those of destroyed libraries."""
        name = operator if isinstance(operator, str) else operator._name
        qualified = f"{library.ns}::{name.split('::')[-1]}"
        key = dispatch_key or _IMPLICIT
        previous = self._functions.get((qualified, key), ())
        alive = [entry for entry in previous if entry[1]() is not None]
        self._functions[qualified, key] = [*alive, (function, weakref.ref(library))]
        if self.is_torch_operator(qualified):
            self._note_override(f"{qualified} {key}", function, library)

    def _note_override(self, description: str, function: Any, owner: Any) -> None:
        """Record a registration that any graph may reach, unless torch or a known package makes it."""
        name = description.partition(" ")[0]
        if name != "fallback" and not self.is_torch_operator(name):
            return
        is_library = self._known.is_library_code(function)
        if not (is_library and self._known.is_caller(sys._getframe(), self._through)):
            self._overrides.append((description, function, weakref.ref(owner)))

    def _forget(self, library: Any) -> None:
        for place, entries in list(self._functions.items()):
            self._functions[place] = [entry for entry in entries if entry[1]() is not library]
        self._overrides = [entry for entry in self._overrides if entry[2]() is not library]

    def _examine_earlier(self) -> None:
        """Examine, once, the registrations from before the hooks were set: later ones may hide them."""
        if self._earlier:
            self._replaced_earlier, self._earlier = self._find_replaced_earlier(), frozenset()

    def add_overrides(self, state: GraphFingerprint) -> None:
        """Add third-party registrations for torch operators, which any graph may reach."""
        self._examine_earlier()
        if (name := self._replaced_earlier) is not None:
            raise Unknown(f"the torch operator `{name}` was replaced before nbcache was loaded")
        for description, function, reference in self._overrides:
            owner = reference()
            is_registered = owner is not None  # `_forget` discards registrations of destroyed libraries
            if isinstance(owner, self._torch._ops.OperatorBase):
                tables = _python_kernel_tables(owner)
                is_registered = any(function is entry for table in tables for entry in table.values())
            if is_registered:
                state.note(description)
                state.add_code(function, f"the registration for {description}")

    def _find_replaced_earlier(self) -> str | None:
        """Return a torch operator that a third party replaced from Python before the hooks were set."""
        keys: dict[str, set[str]] = {}
        for entry in self._earlier:
            namespace, operator, key = entry.split("/")
            keys.setdefault(f"{namespace}::{operator}", set()).add(key)
        for name in sorted(keys):
            for implementation in _implementations(self._torch, name):
                if implementation.key not in keys[name]:
                    continue
                file = implementation.file.removeprefix(self._folder)
                is_torch_file = file.endswith(_COMPILED) or file != implementation.file
                by_user = file in _REGISTERING_FILES and name.startswith("aten::")
                if (by_user or not is_torch_file) and self.is_torch_operator(name):
                    return name
        return None

    def add(self, state: Fingerprint, operator: Any, *, called: bool) -> None:
        """Add an `OpOverload` with all its registrations; Unknown if one of them was not recorded.

        `called` says that code which runs during compilation calls the operator, and so may run any of its
        implementations. torch itself runs an operator tagged as pointwise if all its arguments are constant.
        """
        name = operator._name
        state.note("operator", name)
        # A registration for an operator may refer to the operator.
        if self.is_torch_operator(name) or (id(state), name) in self._adding:
            return
        runs = called or self._torch.Tag.pointwise in operator.tags
        state.note(operator._schema, *sorted(map(str, operator.tags)), runs)
        ignored = _IGNORED_ATTRIBUTES - _DEVICE_ATTRIBUTES if runs else _IGNORED_ATTRIBUTES
        adding = (id(state), name)  # other threads add other fingerprints
        self._adding.add(adding)
        try:
            with state.describing(f"`{name}`"):
                definition = self._torch._library.custom_ops.OPDEFS.get(name)
                if definition is not None:
                    attributes = vars(definition).items()
                    state.add({key: value for key, value in attributes if key not in ignored})
                has_fake = self._add_rules(state, name)
                self._add_impls(state, name, definition is not None, has_fake, runs)
                add_python_kernels(state, operator)
        finally:
            self._adding.discard(adding)

    def _add_rules(self, state: Fingerprint, name: str) -> bool:
        """Add the registrations outside of the dispatcher; return whether there is a fake implementation."""
        entry = self._torch._library.simple_registry.singleton.find(name)  # it creates a missing entry
        fake = entry.fake_impl.kernel
        state.add(None if fake is None else fake.func, "its fake implementation")
        rules = entry.torch_dispatch_rules._data
        for kind in sorted(rules, key=str):
            state.add((kind, rules[kind]), "its torch_dispatch rule")
        state.note(getattr(entry.effect, "_effect", None))
        symmetric = getattr(entry, "symm_mem_args", None)
        state.note(None if symmetric is None else sorted(symmetric.get() or ()))
        return fake is not None

    def _add_impls(self, state: Fingerprint, name: str, defined: bool, has_fake: bool, runs: bool) -> None:
        implementations = sorted(_implementations(self._torch, name))
        keys = {implementation.key for implementation in implementations}
        has_shapes = has_fake or defined or bool(keys & _SHAPES) or _IMPLICIT in keys
        compiled = False
        for key, file in implementations:
            if key in _DEVICES and has_shapes and not runs:
                continue
            if defined and file == self._folder + _REGISTERING_FILES[0]:
                continue  # a wrapper by `custom_op` of functions in the definition
            entries = self._functions.get((name, key), ())
            if functions := tuple(function for function, library in entries if library() is not None):
                state.note(key)
                state.add(functions, f"its kernel for {key}")
            elif file.endswith(_COMPILED):
                compiled = True
            elif not (has_fake and key == "Meta"):
                raise state.unknown(f"its kernel for {key} was registered before nbcache was loaded")
        if compiled:
            state.note(*_library_digests(self._folder))

    def is_torch_operator(self, name: str) -> bool:
        is_torchs = self._is_torchs.get(name)
        if is_torchs is None and (is_torchs := self._is_defined_by_torch(name)) is not None:
            self._is_torchs[name] = is_torchs
        return bool(is_torchs)

    def is_torch_target(self, target: Any) -> bool:
        if isinstance(target, self._torch._ops.OpOverload):
            return self.is_torch_operator(target._name)
        if isinstance(target, self._torch._ops.OpOverloadPacket):
            return all(self.is_torch_target(getattr(target, name)) for name in target.overloads())
        if isinstance(target, FunctionType) and target.__closure__:  # Dynamo stores constants in it
            kinds = (type(part) for part in parts_of(cell_contents(target)))
            return self._known.is_library_code(target) and all(map(self._known.is_library_code, kinds))
        parts = (target,) if callable(target) else (target, type(target))
        return all(map(self._known.is_library_code, parts))

    @cached_property
    def _definition_of_add(self) -> re.Match[str] | None:
        return _definition(self._torch, "aten::add.Tensor")

    def _is_defined_by_torch(self, name: str) -> bool | None:
        """Return whether torch defines an operator; None while torch registers its definition in Python."""
        try:
            match, build = _definition(self._torch, name), self._definition_of_add
        except RuntimeError:  # a higher-order operator, which has its own class
            return name.startswith("higher_order::") or "::" not in name
        if match is None or build is None:
            return name.startswith("aten::")
        file = match["file"]
        if file.startswith(self._folder):
            if file.removeprefix(self._folder) not in _REGISTERING_FILES:
                return True
            definition = self._torch._library.custom_ops.OPDEFS.get(name)
            return None if definition is None else self._known.is_library_code(definition._init_fn)
        root = build["file"].partition("build/aten/")[0]
        return file.startswith(root) if os.path.isabs(root) else name.startswith("aten::")


def add_python_kernels(state: Fingerprint, operator: Any) -> None:
    """Add the Python kernels of an operator, each with its dispatch key."""
    for table in _python_kernel_tables(operator):
        for key in sorted(table, key=str):
            state.note(key)
            state.add(table[key])


def _python_kernel_tables(operator: Any) -> tuple[Mapping[Any, Any], ...]:
    return operator.py_kernels, operator.python_key_table, operator.functorch_table


def _dispatch_key(library: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return str(kwargs.get("dispatch_key") or (args[0] if args else "") or library.dispatch_key)


def _definition(torch: ModuleType, name: str) -> re.Match[str] | None:
    return _DEFINED.search(torch._C._dispatch_dump(name))


def _implementations(torch: ModuleType, name: str) -> Iterator[_Implementation]:
    """Yield an operator's implementations in torch's dispatcher; UnsupportedTorch for unreadable text."""
    for line in torch._C._dispatch_dump(name).splitlines():
        if _HEADER.match(line):
            continue
        if (match := _IMPLEMENTATION.match(line)) is None:
            raise UnsupportedTorch(f"nbcache cannot read what torch's dispatcher prints of `{name}`")
        if not match["inactive"]:
            yield _Implementation(match["key"], match["file"] or _COMPILED[0])


def _library_digests(folder: str) -> list[str]:
    """Return digests of all loaded libraries but torch's: torch does not report which registers what."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "/" in line}
    except OSError as error:
        raise Unknown("operators that are written in C++") from error
    digests = set()
    for path in paths:
        if ".so" in os.path.basename(path) and not path.startswith(folder) and os.path.exists(path):
            status = os.stat(path)
            digest = _library_digest(path, status.st_mtime_ns, status.st_size, status.st_ino)
            if digest is not None:
                digests.add(digest)
    if not digests:
        raise Unknown("operators whose shared library is not found")
    return sorted(digests)


@lru_cache(maxsize=1024)
def _library_digest(path: str, modified_ns: int, size: int, inode: int) -> str | None:
    """Return the SHA-256 of a shared library that is linked with torch; else None."""
    if not size:
        return None
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if all(content.find(name) < 0 for name in _TORCH_LIBRARIES):
            return None
        return hashlib.sha256(content).hexdigest()


# --- torch's and Triton's values -------------------------------------------------------------------

_KERNEL_SELECTORS = ("early_config_prune", "perf_model", "values")
_IGNORED_OF_GRAPHS = frozenset({"_code", "_graph", "_lineno_map", "_prologue_start", "meta", "shape_env"})
"""Attributes of a GraphModule that repeat its code or describe its origin."""
_MOST_BYTES = 1 << 20
_GETTER = re.compile(r"(are|get|is)_\w+|\w+_enabled|initial_seed|\w+_available")
_DEVICE_MODULES = ("torch.accelerator", "torch.cuda", "torch.mps", "torch.mtia", "torch.xpu")
"""Modules with getters that would initialize a device."""
_PROCESS_MODULES = ("torch.distributed", "torch.distributed.distributed_c10d")
"""Modules with getters for the rank of this process; getters of other submodules may open sockets."""


class TorchValues:
    """Adds torch's and Triton's values to fingerprints; a call returns False for any other value."""

    def __init__(
        self, torch: ModuleType, known: KnownPackages, registrations: Registrations, patterns: Patterns
    ) -> None:
        self._torch = torch
        self._known = known
        self._registrations = registrations
        self._patterns = patterns
        plain = (torch.device, torch.dtype, torch.layout, torch.memory_format)
        self._plain = (*plain, torch.Tag, torch._C.DispatchKey)
        self._readers = (torch.load, torch.from_file, torch.jit.load, torch.seed)

    def __call__(self, state: Fingerprint, value: Any) -> bool:
        torch, kind = self._torch, type(value)  # `isinstance` may run code of the value's class
        if issubclass(kind, type):
            self._add_pytree_functions(state, value)
            return False
        if self._is_getter(value):
            self._add_getter(state, value)
            return False
        if any(value is reader for reader in self._readers):
            raise state.unknown("it reads state that no cache key covers")
        if issubclass(kind, (dict, list, set)) and (
            name := next((name for name, table in all_tables() if table is value), "")
        ):
            state.note("table", name)  # third-party entries are added by themselves
        elif issubclass(kind, torch._ops.OpOverload):
            self._registrations.add(state, value, called=True)
        elif issubclass(kind, torch._ops.OpOverloadPacket):
            state.note("packet")
            for name in sorted(value.overloads()):
                state.add(getattr(value, name))
        elif issubclass(kind, torch._library.custom_ops.CustomOpDef):
            state.add(value._opoverload)
        elif issubclass(kind, torch._library.fake_impl.FakeImplHolder):
            state.add(value.kernel and value.kernel.func)
        elif issubclass(kind, torch._ops.HigherOrderOperator):
            state.note("higher-order operator", value.name())
            if not self._known.is_library_code(kind):
                state.add(kind)
                add_python_kernels(state, value)
        elif issubclass(kind, torch.fx.GraphModule):
            self._add_graph(state, value)
        elif issubclass(kind, torch.Tensor):
            self._add_tensor(state, value)
        elif issubclass(kind, self._plain):
            state.note(str(value))
        elif issubclass(kind, torch.library.Library):
            state.note("library", value.ns)
        elif issubclass(kind, (torch.TypedStorage, torch.UntypedStorage)):
            raise state.unknown("a tensor's storage")
        elif kind.__module__.startswith("triton.runtime") and self._known.defines(kind):
            state.note("kernel", getattr(value, "configs", None), getattr(value, "keys", None))
            state.add([value.fn, *(getattr(value, name, None) for name in _KERNEL_SELECTORS)])
        else:
            return self._patterns.add_pass(state, value)
        return True

    def _is_getter(self, value: Any) -> bool:
        if not isinstance(value, (FunctionType, BuiltinFunctionType)):
            return False
        module = value.__module__ or ""
        return (
            module.startswith("torch")
            and not module.startswith(_DEVICE_MODULES)
            and (not module.startswith("torch.distributed") or module in _PROCESS_MODULES)
            and _GETTER.fullmatch(value.__name__) is not None
            and self._known.is_library_code(value)
        )

    def _add_getter(self, state: Fingerprint, getter: Any) -> None:
        """Add the current result of a getter that needs no arguments; most others read only these."""
        if "autocast" in getter.__name__:
            add_autocast(self._torch, state)
        try:
            result = getter()
        except Exception as error:  # it needs arguments, or its subject does not exist
            if isinstance(error, TypeError) and getter.__module__.startswith("torch.distributed"):
                raise state.unknown("it reads the state of other processes") from error
            state.note(type(error).__qualname__)
        else:
            state.add(result)

    def _add_pytree_functions(self, state: Fingerprint, cls: type) -> None:
        nodes = self._torch.utils._pytree.SUPPORTED_NODES
        if cls in nodes and not self._known.defines(cls):
            node = nodes[cls]
            state.add((node.flatten_fn, node.unflatten_fn), "its pytree functions")

    def _add_graph(self, state: Fingerprint, module: Any) -> None:
        graph, kind = TracedGraph(self._torch, module), type(module)
        state.note("graph", module.code)
        state.add([*graph.operators()], "a graph")
        for name in sorted(graph.methods()):
            state.reads.add_attribute(name)
        for base in kind.__mro__[1:]:  # the first class exists for this instance only
            if not self._known.defines(base):
                state.add(base)
        state.add(
            {name: value for name, value in vars(module).items() if name not in _IGNORED_OF_GRAPHS},
            "its module",
        )

    def _add_tensor(self, state: Fingerprint, tensor: Any) -> None:
        """Add a tensor that code reads by its content, or by its shape if it has none."""
        torch = self._torch
        if tensor.is_nested:
            raise state.unknown("a nested tensor")
        state.note("tensor", type(tensor).__qualname__, tensor.dtype, tuple(tensor.shape), tensor.stride())
        state.note(tensor.device, tensor.requires_grad)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            if not isinstance(tensor, torch._subclasses.FakeTensor):
                raise state.unknown(f"a tensor of the class {type(tensor).__qualname__}")
            return
        state.add({name: value for name, value in vars(tensor).items() if not name.startswith("_dynamo")})
        state.note(tensor.is_conj(), tensor.is_neg())
        if tensor.is_leaf and tensor.grad is not None:
            state.add(tensor.grad, "its gradient")
        if tensor.device.type == "meta":
            return
        if tensor.is_quantized:
            raise state.unknown("a quantized tensor")
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise state.unknown(f"a tensor on {tensor.device}")
        if tensor.numel() * tensor.element_size() > _MOST_BYTES:
            raise state.unknown("a large tensor")
        content = tensor.detach().contiguous()
        state.note(ctypes.string_at(content.data_ptr(), content.numel() * content.element_size()))
