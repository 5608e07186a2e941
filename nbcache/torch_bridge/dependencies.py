"""What a graph depends on beyond torch's key, made a part of that key.

torch's keys hold a graph, its inputs and torch's settings, and leave out code that torch runs while it
compiles: what is registered for operators that are not torch's own, the methods of tensor subclasses,
lowerings, decompositions, patterns and passes that others have added to the compiler, and which inputs share
memory. Older versions leave out dtypes that are in force around the graph, too. Where one of these changes,
torch hits what was compiled before.

So a digest of all this becomes one more attribute of `FxGraphHashDetails`, of which both keys are made, the
AOTAutograd cache's as well: what is recorded, restored, shared and taken into snapshots, and what torch finds
in its own folder, goes by it. A graph without any of this has the key that torch gives it. Where it cannot be
told what code does, the graph bypasses the caches, with the reason.

Upstream: pytorch issues 144344, 160472, 187319.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.fingerprints.digests import Fingerprint, Unknown
from nbcache.core.fingerprints.known_code import Known
from nbcache.torch_bridge.operators import Registrations, add_python
from nbcache.torch_bridge.patches import Intended

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.patches import Patches

__all__ = ["TABLES", "Dependencies"]

_ATTRIBUTE = "nbcache_dependencies"
"""What torch's keys call it; torch's own list of their parts shows the name."""
TABLES: Mapping[str, tuple[str, ...]] = {
    "torch._decomp": ("global_decomposition_table",),
    "torch._higher_order_ops.utils": ("registered_hop_fake_fns",),
    "torch._inductor.codegen.common": ("device_codegens", "device_op_overrides_dict"),
    "torch._inductor.decomposition": ("decompositions", "extra_random_decomps"),
    "torch._inductor.fx_passes.group_batch_fusion": ("POST_GRAD_FUSIONS", "PRE_GRAD_FUSIONS"),
    "torch._inductor.fx_passes.post_grad": ("noop_registry",),
    "torch._inductor.fx_passes.reinplace": ("inplaceable_ops",),
    "torch._inductor.lowering": ("_maybe_layout_constraints", "lowerings", "user_lowerings"),
    "torch._subclasses.fake_impls": ("op_implementations_checks", "op_implementations_dict"),
}
"""Where torch looks up code for operators and devices, and others may add to, by module."""
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "torch._functorch.config": (
        "activation_memory_budget_runtime_estimator",
        "activation_memory_budget_solver",
        "joint_custom_pass",
    ),
    "torch._inductor.config": (
        "_fuse_ddp_communication_passes",
        "_post_fusion_custom_pass",
        "_pre_fusion_custom_pass",
        "aten_distributed_optimizations.custom_runtime_estimation",
        "bucket_all_gathers_fx_bucket_size_determinator",
        "bucket_all_reduces_fx_bucket_size_determinator",
        "bucket_reduce_scatters_fx_bucket_size_determinator",
        "custom_partitioner_fn",
        "external_matmul",
        "inductor_choices_class",
        "joint_custom_post_pass",
        "joint_custom_pre_pass",
        "post_grad_custom_post_pass",
        "post_grad_custom_pre_pass",
        "pre_grad_custom_pass",
        "reorder_for_compute_comm_overlap_passes",
    ),
}
"""Settings that hold code of the user's, by module.

torch's keys hold the names of some, of others what their `uuid()` says, and nothing of `joint_custom_pass`.
"""
_OF_KERNELS = ("early_config_prune", "perf_model", "values")
"""Attributes of Triton's kernels that choose among configurations, beside their code."""
_CONTENT_BYTES = 1 << 20
_IDS = frozenset({"_autograd_function_id"})
"""Attributes that number things in the order in which they were made."""


class _Unguarded(Intended):
    """A hit would lack a guard; torch compiles instead."""


class Dependencies:
    """Adds to torch's keys what they leave out."""

    def __init__(self, torch: ModuleType, *, late: bool) -> None:
        """`late` says that torch was imported before: what was registered until now was not seen."""
        file = getattr(sys.modules.get("triton"), "__file__", None)
        triton = [os.path.dirname(file)] if file else []
        ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        folder = os.path.dirname(os.path.abspath(str(torch.__file__)))
        beside = os.path.join(os.path.dirname(folder), "triton")
        self._torch = torch
        self._late = late
        self._known = Known([folder, beside, ours, *triton])
        self._registrations = Registrations(torch, self._known, late=late)
        plain = (torch.device, torch.dtype, torch.layout, torch.memory_format)
        self._plain = (*plain, torch.Tag, torch._C.DispatchKey)
        self._made_by_torch: dict[int, Any] = {}
        """Entries of tables that are torch's, by their ids."""
        self._patterns: list[Any] = []
        """Entries of the pattern matcher that are not torch's."""

    # --- hooks ----------------------------------------------------------------------------------

    def follow_operators(self, torch: ModuleType, session: Session, patches: Patches) -> None:
        """Note what is registered for operators, from now on."""
        self._registrations.follow(torch, session, patches)

    def note_tables(self, module: ModuleType, session: Session, patches: Patches) -> None:
        """Note what the tables of a module hold that torch has just imported: torch has made all of it.

        Where it was imported before nbcache was loaded, each entry is looked at once, for the first key.
        """
        if not self._late or getattr(module.__spec__, "_initializing", False):
            for _, table in _tables(module):
                self._made_by_torch.update((id(value), value) for value in _entries(table).values())

    def follow_patterns(self, pattern_matcher: ModuleType, session: Session, patches: Patches) -> None:
        """Note each pattern that others than torch register: `PatternEntry.register`."""

        def register(original: Any, entry: Any, *args: Any, **kwargs: Any) -> Any:
            self._note_pattern(entry)
            return original(entry, *args, **kwargs)

        patches.hook(pattern_matcher.PatternEntry, "register", register, takes="self")
        for entry in _patterns_of(pattern_matcher):
            self._note_pattern(entry)

    def follow_keys(self, codecache: ModuleType, session: Session, patches: Patches) -> None:
        """Add to what keys are made of: `FxGraphHashDetails`, which AOTAutograd's extends."""

        class Undetermined(codecache.BypassFxGraphCache, Intended):  # type: ignore[name-defined]
            """It cannot be told what a graph depends on; torch bypasses its caches."""

        def complete(original: Any, details: Any, gm: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(details, gm, inputs, *args, **kwargs)
            try:
                found = self.of(gm, inputs, getattr(details, "aot_config", None))
            except Unknown as error:
                raise Undetermined(f"nbcache cannot tell what this graph depends on: {error}") from error
            except Exception as error:  # a fault of ours costs a hit, and never the cell
                session.notice(f"what a graph depends on could not be told, please report it: {error!r}")
                raise Undetermined(f"nbcache failed to tell what this graph depends on: {error!r}") from error
            if found is not None:
                setattr(details, _ATTRIBUTE, found)
            return result

        patches.hook(codecache.FxGraphHashDetails, "__init__", complete, takes="self gm example_inputs")

    def follow_hits(self, results: ModuleType, session: Session, patches: Patches) -> None:
        """Have a hit guard what a compile would: `GenericAOTAutogradResult.wrap_post_compile`.

        Where inputs of dynamic shapes share memory and one is written to, AOTAutograd adds a guard on which
        of them overlap. Nothing of it is stored. What fails in here makes torch compile.
        """
        from torch._functorch._aot_autograd.input_output_analysis import compute_overlapping_inputs

        def guarded(original: Any, entry: Any, args: Any, aot_config: Any, *more: Any, **kwargs: Any) -> Any:
            try:
                if any(info.mutates_data for info in entry.runtime_metadata.input_info):
                    for numbers in _sharing(self._torch, args):
                        compute_overlapping_inputs(aot_config, list(args), numbers)
            except Exception as error:
                raise _Unguarded("a guard on inputs that share memory could not be made") from error
            return original(entry, args, aot_config, *more, **kwargs)

        result = results.GenericAOTAutogradResult
        patches.hook(result, "wrap_post_compile", guarded, takes="self args aot_config")

    # --- what a graph depends on ----------------------------------------------------------------

    def of(self, graph: Any, example_inputs: Sequence[Any], aot_config: Any = None) -> str | None:
        """Return the digest of all that `graph` depends on beyond torch's key; None where there is nothing.

        `aot_config` is AOTAutograd's, for the graph that Dynamo made. Unknown where it cannot be told.
        """
        state = Fingerprint(self._known, [self._rule], _IDS)
        empty = state.digest
        self._registrations.add_replaced(state)
        for name, key, value in self._foreign_entries(aot_config):
            state.note(name)
            state.add((key, value), f"an entry of torch's {name}")
        for entry in self._patterns:
            state.add(entry, "a pattern")
        for name, value in _set_code():
            code = type(value) if hasattr(value, "uuid") else value  # `uuid` tells an instance's state
            if not self._known.made(code):
                state.note(name)
                state.add(code, f"the setting {name}")
        operators = _operators(self._torch, graph)
        for operator in operators:
            if not self._is_torchs(operator):
                state.add(operator)
        if (dtype := self._torch.get_default_dtype()) is not self._torch.float32:
            state.note("default dtype", dtype)  # not in the keys of torch 2.11
        if aot_config is not None:
            self._add_autocast(state, operators)
            self._add_inputs(state, graph, example_inputs)
            for code in self._known.foreign(_inner_compile(sys._getframe())):
                state.add(code, "what compile_fx was given as inner_compile")
        if state.digest != empty:
            self._add_methods(state)
        return None if state.digest == empty else state.digest

    def _is_torchs(self, target: Any) -> bool:
        if isinstance(target, self._torch._ops.OpOverload):
            return self._registrations.is_torchs(target._name)
        if isinstance(target, self._torch._ops.OpOverloadPacket):
            return all(self._is_torchs(getattr(target, name)) for name in target.overloads())
        return self._known.made(target)

    def _add_autocast(self, state: Fingerprint, operators: Collection[Any]) -> None:
        """Add autocast's state where a graph runs under it, or enters it without a dtype of its own.

        torch 2.11's key leaves the dtype out, and until 2.14 where autocast is off around the graph.
        """
        torch = self._torch
        enter = torch.amp.autocast_mode._enter_autocast
        if torch._C._is_any_autocast_enabled() or any(each is enter for each in operators):
            for device in torch._C._autocast_supported_devices():
                state.note("autocast", device, torch.is_autocast_enabled(device))
                state.note(torch.get_autocast_dtype(device))

    def _add_inputs(self, state: Fingerprint, graph: Any, example_inputs: Sequence[Any]) -> None:
        """Add the classes of inputs and constants that are not torch's, and which inputs share memory."""
        kinds = dict.fromkeys(type(value) for value in _values(self._torch, graph, example_inputs))
        for kind in kinds:
            if not self._known.made(kind):
                state.add(kind, f"the class {kind.__qualname__}")
        if shared := _sharing(self._torch, example_inputs):
            state.note("inputs that share memory", shared)
            for number in (number for numbers in shared for number in numbers):
                value = example_inputs[number]
                for each in (value, value._base):  # AOTAutograd compiles for the base of views
                    state.note(None if each is None else _geometry(each))

    def _add_methods(self, state: Fingerprint) -> None:
        """Add what others have set as attributes of torch's classes, where code that was added reads it."""
        added = {}
        for kind in (self._torch.Tensor, self._torch.nn.Module):
            for name, value in vars(kind).items():
                code = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if id(value) in self._made_by_torch:
                    continue
                if self._known.made(code):
                    self._made_by_torch[id(value)] = value
                else:
                    added[f"{kind.__name__}.{name}"] = (name, value)
        while names := [
            key for key, (name, _) in sorted(added.items()) if name in state.attributes or name.endswith("__")
        ]:
            for key in names:
                state.note(key)
                state.add(added.pop(key)[1], f"`{key}`")

    def _foreign_entries(self, aot_config: Any) -> Iterator[tuple[str, Any, Any]]:
        """Return the entries of torch's tables that others have made."""
        tables = [*_all_tables()]
        tables.append(("decompositions", getattr(aot_config, "decompositions", None) or {}))
        known = self._made_by_torch
        for name, table in tables:
            entries = _entries(table)
            if known.keys() >= {*map(id, entries.values())}:
                continue
            for key, value in list(entries.items()):
                if id(value) in known:
                    continue
                if self._known.made(value):
                    known[id(value)] = value
                else:
                    yield name, key, value

    def _note_pattern(self, entry: Any) -> None:
        if all(entry is not each for each in self._patterns) and not all(
            self._known.made(value) for value in vars(entry).values() if callable(value)
        ):
            self._patterns.append(entry)

    # --- torch's types --------------------------------------------------------------------------

    def _rule(self, state: Fingerprint, value: Any) -> bool:
        """Add a value of one of torch's types, or Triton's."""
        torch, kind = self._torch, type(value)  # `isinstance` may run code of the value's class
        if issubclass(kind, (dict, list)) and any(value is table for _, table in _all_tables()):
            state.note("table")  # what others have entered counts by itself
        elif issubclass(kind, torch._ops.OpOverload):
            self._registrations.add(state, value)
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
            if not self._known.made(kind):
                state.add(kind)
                add_python(state, value)
        elif issubclass(kind, torch.Tensor):
            self._add_tensor(state, value)
        elif issubclass(kind, self._plain):
            state.note(str(value))
        elif issubclass(kind, torch.library.Library):
            state.note("library", value.ns)
        elif kind.__module__.startswith("triton.runtime"):
            state.note("kernel", getattr(value, "configs", None), getattr(value, "keys", None))
            state.add([value.fn, *(getattr(value, name, None) for name in _OF_KERNELS)])
        elif kind.__name__ == "PatternMatcherPass":
            state.note("patterns")  # those that others have registered count by themselves
        else:
            return False
        return True

    def _add_tensor(self, state: Fingerprint, tensor: Any) -> None:
        """Add a tensor that code reads, by what it holds; one that holds nothing, by its form."""
        torch = self._torch
        state.note("tensor", type(tensor).__qualname__, tensor.dtype, tuple(tensor.shape), tensor.stride())
        state.note(tensor.device, tensor.requires_grad)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            if not isinstance(tensor, torch._subclasses.FakeTensor):
                raise state.unknown(f"a tensor of the class {type(tensor).__qualname__}")
            return
        state.add({name: held for name, held in vars(tensor).items() if not name.startswith("_")})
        if tensor.device.type == "meta":
            return
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise state.unknown(f"a tensor on {tensor.device}")
        if tensor.numel() * tensor.element_size() > _CONTENT_BYTES:
            raise state.unknown("a large tensor")
        content = tensor.detach().contiguous()
        state.note(ctypes.string_at(content.data_ptr(), content.numel() * content.element_size()))


def _inner_compile(frame: FrameType | None) -> Any:
    """Return what inductor was given to compile graphs with, up the stack; None outside of inductor."""
    while frame is not None:
        inductors = frame.f_globals.get("__name__") == "torch._inductor.compile_fx"
        if inductors and (found := frame.f_locals.get("inner_compile")) is not None:
            return found
        frame = frame.f_back
    return None


def _geometry(tensor: Any) -> tuple[str, ...]:
    """Return where in its memory a tensor lies."""
    place = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes())
    return (str(tensor.dtype), *map(str, place))


def _sharing(torch: ModuleType, inputs: Sequence[Any]) -> list[list[int]]:
    """Return the numbers of those inputs that share memory with another, one list for each memory.

    AOTAutograd compiles for it where one of them is written to, and torch's key does not tell it.
    """
    by_storage: dict[int, list[int]] = {}
    for number, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            try:
                storage = value.untyped_storage()._cdata
            except (NotImplementedError, RuntimeError):  # a subclass that has none: its class tells
                continue
            by_storage.setdefault(storage, []).append(number)
    return [numbers for numbers in by_storage.values() if len(numbers) > 1]


def _tables(module: ModuleType | None) -> list[tuple[str, Any]]:
    """Return the tables of one of the modules `TABLES` that this torch has, with their names."""
    found = []
    for name in TABLES.get(getattr(module, "__name__", ""), ()):
        table: Any = getattr(module, name, None)
        if name == "global_decomposition_table":
            found += [(f"{kind} decompositions", each) for kind, each in (table or {}).items()]
        elif table is not None:
            found.append((name, table))
    return found


def _all_tables() -> Iterator[tuple[str, Any]]:
    for module in TABLES:
        yield from _tables(sys.modules.get(module))


def _entries(table: Any) -> Mapping[Any, Any]:
    return dict(enumerate(table)) if isinstance(table, (list, tuple)) else table


def _set_code() -> Iterator[tuple[str, Any]]:
    """Return the code that settings hold, by the names of the settings."""
    for module, names in _SETTINGS.items():
        config = sys.modules.get(module)
        for name in names:
            value = getattr(config, name, None)
            for each in value if isinstance(value, (list, tuple)) else [value]:
                if each is not None and not isinstance(each, str):
                    yield name, each
    common = sys.modules.get("torch._inductor.codegen.common")
    for device, value in getattr(common, "custom_backend_passes", {}).items():
        if value is not None:
            yield f"custom pass for {device}", value


def _graphs(torch: ModuleType, graph: Any) -> Iterator[Any]:
    if isinstance(graph, torch.nn.Module):
        for module in graph.modules():
            if isinstance(module, torch.fx.GraphModule):
                yield module


def _operators(torch: ModuleType, graph: Any) -> Collection[Any]:
    """Return what the graph calls, and the functions and classes that it hands to higher-order operators."""
    found: dict[int, Any] = {}
    for module in _graphs(torch, graph):
        for node in module.graph.nodes:
            if node.op == "call_function":
                found[id(node.target)] = node.target
                if isinstance(node.target, torch._ops.HigherOrderOperator):
                    for value in torch.utils._pytree.tree_leaves((node.args, node.kwargs)):
                        if callable(value) and not isinstance(value, torch.fx.Node):
                            found[id(value)] = value
    return found.values()


def _values(torch: ModuleType, graph: Any, example_inputs: Sequence[Any]) -> Iterator[Any]:
    """Return the inputs, the constants and the intermediate values of a graph, and what those hold."""
    stack = list(example_inputs)
    for module in _graphs(torch, graph):
        for node in module.graph.nodes:
            if "example_value" in node.meta:
                stack.append(node.meta["example_value"])
        attributes = (vars(module), module._buffers, module._parameters)
        stack += [value for held in attributes for value in held.values() if isinstance(value, torch.Tensor)]
    plain = (torch._subclasses.FakeTensor, torch.Tensor, torch.nn.Parameter)
    while stack:
        value = stack.pop()
        if type(value) in plain or value is None:
            continue
        if isinstance(value, (list, tuple)):
            stack += value
            continue
        yield value
        if isinstance(value, torch.Tensor) and hasattr(type(value), "__tensor_flatten__"):
            names, context = value.__tensor_flatten__()
            stack += [getattr(value, name) for name in names]
            if context is not None:
                yield context


def _patterns_of(pattern_matcher: ModuleType) -> Iterator[Any]:
    """Return the entries of all the passes that torch's own modules hold."""
    kind = pattern_matcher.PatternMatcherPass
    for name, module in list(sys.modules.items()):
        if not name.startswith("torch._inductor"):
            continue
        stack = list(vars(module).values())
        while stack:
            value = stack.pop()
            if isinstance(value, kind):
                for entries in list(value.patterns.values()):
                    yield from list(entries)
            elif type(value) in (list, tuple) and len(value) < 100:
                stack += value
            elif type(value) is dict and len(value) < 100:
                stack += value.values()
