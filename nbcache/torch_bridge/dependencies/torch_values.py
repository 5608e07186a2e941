"""Adds torch's and Triton's values to fingerprints."""

from __future__ import annotations

import ctypes
import re
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from nbcache.core.fingerprints.digests import Fingerprint
from nbcache.core.fingerprints.known_code import KnownPackages
from nbcache.torch_bridge.dependencies.global_state import add_autocast
from nbcache.torch_bridge.dependencies.graphs import TracedGraph
from nbcache.torch_bridge.dependencies.monkeypatches import all_tables
from nbcache.torch_bridge.dependencies.operators import Registrations, add_python
from nbcache.torch_bridge.dependencies.user_passes import Patterns

_KERNEL_SELECTORS = ("early_config_prune", "perf_model", "values")
"""Attributes of Triton kernels that select configurations."""
_IGNORED_OF_GRAPHS = frozenset({"_code", "_graph", "_lineno_map", "_prologue_start", "meta", "shape_env"})
"""Attributes of a GraphModule that repeat its code or describe its origin."""
_MOST_BYTES = 1 << 20
_GETTER = re.compile(r"(are|get|is)_\w+|\w+_enabled|initial_seed|\w+_available")
_DEVICE_MODULES = ("torch.accelerator", "torch.cuda", "torch.mps", "torch.mtia", "torch.xpu")
"""Modules with getters that would initialize a device."""
_PROCESS_MODULES = ("torch.distributed", "torch.distributed.distributed_c10d")
"""Modules with getters for the rank of this process; getters of other submodules may open sockets."""


class TorchValues:
    """The rule that adds values of torch and Triton types to fingerprints."""

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
        """Add a value of a torch or Triton type; return whether it was one."""
        torch, kind = self._torch, type(value)  # `isinstance` may run code of the value's class
        if issubclass(kind, type):
            self._add_pytree_functions(state, value)
            return False
        if self._is_getter(value):
            self._add_getter(state, value)
            return False
        if any(value is reader for reader in self._readers):
            raise state.unknown("it reads state that no cache key covers")
        if issubclass(kind, (dict, list, set)) and (name := _table_name(value)):
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
                add_python(state, value)
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
        """Return whether this torch function looks like a getter, judging by its name."""
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
        """Add the current result of a getter that needs no arguments.

        Most getters that need arguments read nothing but these. torch's keys cover some of the results, too.
        """
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
        """Add the pytree functions that third parties have registered for a class."""
        nodes = self._torch.utils._pytree.SUPPORTED_NODES
        if cls in nodes and not self._known.defines(cls):
            node = nodes[cls]
            state.add((node.flatten_fn, node.unflatten_fn), "its pytree functions")

    def _add_graph(self, state: Fingerprint, module: Any) -> None:
        """Add a graph that code holds, and the attributes of its module."""
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


def _table_name(value: Any) -> str:
    """Return the name of a torch table, or an empty text for another value."""
    return next((name for name, table in all_tables() if table is value), "")
