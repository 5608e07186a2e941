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
import inspect
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.fingerprints.digests import Fingerprint, Unknown
from nbcache.core.fingerprints.known_code import Known, contents
from nbcache.torch_bridge.operators import Registrations, add_python
from nbcache.torch_bridge.originals import Originals
from nbcache.torch_bridge.patches import Intended

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.patches import Patches

__all__ = ["GENERATORS", "TABLES", "Dependencies"]

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
_GENERATORS = ("Overrides", "OpsMixin")
"""What the names of classes end with that write code for operators."""
GENERATORS = tuple(f"torch._inductor.codegen.{name}" for name in ("common", "cpp", "triton"))
"""The modules of those classes."""
_AOT_AUTOGRAD = "torch._functorch.aot_autograd"
_INDUCTORS = "torch._inductor.compile_fx"
_ADDED = frozenset({"compile_region_name", "get_decomp_fn"})
"""What compile_fx itself hands to `inner_compile`: a name, and the decompositions given to AOTAutograd."""
_COMPILERS = ("bw_compiler", "fw_compiler", "inference_compiler", "partition_fn")
"""What AOTAutograd is given to compile with."""
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
        typing = sys.modules["typing_extensions"]  # which torch needs, and wraps functions with
        self._known = Known([folder, beside, ours, *triton, str(typing.__file__)])
        self._registrations = Registrations(torch, self._known, late=late)
        plain = (torch.device, torch.dtype, torch.layout, torch.memory_format)
        self._plain = (*plain, torch.Tag, torch._C.DispatchKey)
        self._originals = Originals(self._known.made)
        self._ours = os.path.join(ours, "")
        self._patterns: list[tuple[Any, Any, bool]] = []
        """Entries of the pattern matcher that others have made, where they are, and whether first there."""
        self._read: list[Any] = [torch.Tensor, *_namespaces(torch)]
        """Classes and modules of torch's that it reads while it traces a graph."""
        self._given: Any = None
        """The decompositions that AOTAutograd was given last."""
        self._generators: list[type] = []
        """Classes of torch's that write code for operators."""

    # --- hooks ----------------------------------------------------------------------------------

    def follow_operators(self, torch: ModuleType, session: Session, patches: Patches) -> None:
        """Note what is registered for operators, from now on."""
        self._registrations.follow(torch, session, patches)

    def note_tables(self, module: ModuleType, session: Session, patches: Patches) -> None:
        """Note what the tables of a module hold that torch has just imported: torch has made all of it."""
        late = self._is_late(module)
        for _, table in _tables(module):
            self._originals.note(table, late=late)

    def _is_late(self, module: ModuleType) -> bool:
        """Tell whether others than torch may have changed what a module holds already."""
        return self._late and not getattr(module.__spec__, "_initializing", False)

    def follow_attributes(self, torch: ModuleType, session: Session, patches: Patches) -> None:
        """Note what torch's classes and modules hold whose attributes code may read."""
        modules = {torch.nn.Module, *_subclasses(torch.nn.Module)}
        for owner in (*self._read, torch.autograd.Function, *filter(self._known.has, modules)):
            self._originals.note(owner, late=self._late)

    def follow_devices(self, common: ModuleType, session: Session, patches: Patches) -> None:
        """Note what torch registers for devices when it first compiles."""

        def register(original: Any, device: str, *args: Any, **kwargs: Any) -> Any:
            result = original(device, *args, **kwargs)
            if self._known.has_called(sys._getframe(), (self._ours, os.path.abspath(common.__file__ or ""))):
                for _, table in _tables(common):
                    self._originals.note_entry(table, device)
            return result

        patches.hook(common, "register_backend_for_device", register, takes="device")
        patches.hook(common, "register_device_op_overrides", register, takes="device")

    def follow_fallbacks(self, graph: ModuleType, session: Session, patches: Patches) -> None:
        """Note the lowerings that torch makes while it compiles, for operators that have none."""

        def make_fallback(original: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(op, *args, **kwargs)
            for _, table in _tables(sys.modules.get("torch._inductor.lowering")):
                self._originals.note_entry(table, op)
            return result

        patches.hook(graph, "make_fallback", make_fallback, takes="op")

    def note_generators(self, module: ModuleType, session: Session, patches: Patches) -> None:
        """Note the classes that write code for operators, as torch has made them."""
        late = self._is_late(module)
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__name__.endswith(_GENERATORS):
                self._originals.note(kind, late=late)
                if not any(kind is each for each in self._generators):
                    self._generators.append(kind)

    def follow_patterns(self, pattern_matcher: ModuleType, session: Session, patches: Patches) -> None:
        """Note each pattern that others than torch register: `PatternEntry.register`."""
        through = (self._ours, os.path.abspath(pattern_matcher.__file__ or ""))

        def register(original: Any, entry: Any, pass_dicts: Any, *args: Any, **kwargs: Any) -> Any:
            given = dict(zip(("target", "prepend"), args, strict=False)) | kwargs
            if given.get("target") is None or isinstance(pass_dicts, (list, tuple)):
                pass  # it calls itself, for each of them
            elif not (_made(self._known, entry) and self._known.has_called(sys._getframe(), through)):
                self._patterns.append((entry, pass_dicts, bool(given.get("prepend"))))
            return original(entry, pass_dicts, *args, **kwargs)

        patches.hook(
            pattern_matcher.PatternEntry, "register", register, takes="self pass_dicts target prepend"
        )
        if self._late:
            for entry, pass_dict in _patterns_of(pattern_matcher):
                if not _made(self._known, entry):
                    self._patterns.append((entry, pass_dict, False))

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
        self._add_tables(state, aot_config)
        self._add_patterns(state)
        for name, value in _set_code():
            state.note(name)  # `uuid` tells an instance's state
            state.add(type(value) if hasattr(value, "uuid") else value, f"the setting {name}")
        self._add_replaced(state)
        operators = _operators(self._torch, graph)
        for operator in operators:
            if not self._is_torchs(operator):
                state.add(operator)
        if (dtype := self._torch.get_default_dtype()) is not self._torch.float32:
            state.note("default dtype", dtype)  # not in the keys of torch 2.11
        if aot_config is not None:
            self._add_autocast(state, operators)
            self._add_inputs(state, graph, example_inputs)
            self._add_compilers(state)
        if state.digest != empty:
            self._add_attributes(state)
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

    def _add_tables(self, state: Fingerprint, aot_config: Any) -> None:
        """Add what others have put in torch's tables, and in the decompositions given to AOTAutograd."""
        tables = [*_all_tables()]
        given = getattr(aot_config, "decompositions", None)
        if given is not None:
            self._note_given(given)
            tables.append(("decompositions that are given", given))
        for name, table in tables:
            if not self._originals.is_noted(table):
                self._originals.note(table, late=True)
            for key, value, replaced in self._originals.changes(table):
                if not replaced and self._is_of_import(key, value):
                    continue
                state.note(name)
                state.add((key, value), f"an entry of torch's {name}")

    def _is_of_import(self, key: Any, value: Any) -> bool:
        """Tell whether a module of torch's has brought an operator and what there is for it: one is new."""
        if type(key).__module__ != getattr(value, "__module__", None):
            return False
        return self._known.made(type(key)) and self._known.made(value)

    def _note_given(self, given: Any) -> None:
        """Note which decompositions inductor gives; some depend on settings that torch's keys hold."""
        if self._originals.is_noted(given):
            return
        own: dict[Any, Any] = {}
        for name, table in _tables(sys.modules.get("torch._inductor.decomposition")):
            torchs = self._originals.torchs(table)
            own |= {key: torchs[key] for key in torchs if name == "decompositions" or key in given}
        self._originals.forget(self._given)
        self._originals.note(given, late=False, torchs=own)
        self._given = given

    def _add_patterns(self, state: Fingerprint) -> None:
        if self._patterns:
            matcher = sys.modules["torch._inductor.pattern_matcher"]
            places = {id(found): place for place, found in _passes(matcher)}
            for entry, pass_dict, first in self._patterns:
                state.note("pattern", places.get(id(pass_dict)), first)
                state.add(entry, "a pattern")

    def _add_compilers(self, state: Fingerprint) -> None:
        """Add what AOTAutograd was given to compile with, unless it is all inductor's."""
        for name, code in _compilers(sys._getframe()):
            state.note(name)
            state.add(code, f"what was given as {name}")

    def _add_replaced(self, state: Fingerprint) -> None:
        """Add what others have put in place of attributes of torch's that any graph may run into."""
        for owner in (*self._read, *self._generators):
            for name, value, replaced in self._originals.changes(owner):
                if replaced or owner not in self._read or _is_special(name):
                    self._add_attribute(state, owner, name, value)

    def _add_attribute(self, state: Fingerprint, owner: Any, name: str, value: Any) -> None:
        name = f"{owner.__qualname__ if isinstance(owner, type) else owner.__name__}.{name}"
        state.note(name)
        state.add(value, f"`{name}`")

    def _add_attributes(self, state: Fingerprint) -> None:
        """Add what others have set in known classes and modules, where code that was added may read it."""
        added: set[tuple[int, str]] = set()
        while True:
            before = len(added)
            owners: dict[int, Any] = {}
            each: Any
            for each in (*self._read, self._torch.nn.Module, *state.owners):
                for owner in each.__mro__ if isinstance(each, type) else (each,):
                    owners[id(owner)] = owner
            for owner in owners.values():
                for name, value in sorted(self._others(state, owner), key=itemgetter(0)):
                    if (id(owner), name) not in added:
                        added.add((id(owner), name))
                        self._add_attribute(state, owner, name, value)
            if len(added) == before:
                return

    def _others(self, state: Fingerprint, owner: Any) -> Iterator[tuple[str, Any]]:
        """Return what others have set in a class or module, and code that was added may read."""
        torch, names = self._torch, state.attributes
        if isinstance(owner, (torch._ops._Ops, torch._ops._OpNamespace)):
            for name in [*vars(owner)] if state.reads_any else names & {*vars(owner)}:
                value = vars(owner)[name]
                if isinstance(value, ModuleType) or not self._is_torchs(value):
                    yield name, value
            return
        if isinstance(owner, ModuleType) and any(owner is each for each in state.owners):
            for name in names & {*vars(owner)}:
                value = vars(owner)[name]
                if isinstance(value, ModuleType) or (callable(value) and not self._known.made(value)):
                    yield name, value
        if self._originals.is_noted(owner):
            for name, value, replaced in self._originals.changes(owner):
                if replaced or state.reads_any or name in names or _is_special(name):
                    yield name, value
        elif isinstance(owner, type) and self._known.has(owner):
            for name, value in vars(owner).items():
                code = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if isinstance(code, FunctionType) and not self._known.writes(owner, code):
                    yield name, value

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


def _compilers(frame: FrameType | None) -> list[tuple[str, Any]]:
    """Return what compile_fx and AOTAutograd, up the stack, were given to compile with and is not inductor's.

    Within itself, compile_fx wraps what it was given in settings that are in force around all of it.
    """
    inner: list[Any] = []
    given: list[tuple[str, Any]] = []
    while frame is not None:
        module, names = frame.f_globals.get("__name__"), frame.f_code.co_varnames
        if module == _INDUCTORS and "inner_compile" in names:
            code = frame.f_locals.get("inner_compile")
            if isinstance(code, partial) and not code.args and {*code.keywords} <= _ADDED:
                code = code.func  # compile_fx has made it
            inner.append(code)
        elif module == _AOT_AUTOGRAD and not given and "fw_compiler" in names:
            given = [(name, frame.f_locals.get(name)) for name in _COMPILERS]
        frame = frame.f_back
    compile_fx = sys.modules.get(_INDUCTORS)
    own: list[Any] = []
    if compile_fx is not None:
        own = [None, compile_fx.compile_fx_inner, *(inspect.unwrap(compile_fx.compile_fx).__defaults__ or ())]
    file = getattr(compile_fx, "__file__", None)
    return [
        *(("inner_compile", code) for code in inner if not _is_inductors(code, own, inner)),
        *((name, code) for name, code in given if code is not None and _file_of(code) != file),
    ]


def _is_inductors(code: Any, own: Sequence[Any], given: Sequence[Any]) -> bool:
    """Tell whether it is one of inductor's `own`, or what inductor has wrapped around one of `given`."""
    around = getattr(code, "__wrapped__", None) if isinstance(code, FunctionType) else None
    return any(code is each for each in own) or (around is not None and any(around is each for each in given))


def _file_of(code: Any) -> str | None:
    """Return the file of the function that a compiler is, or is made of."""
    for name in ("compiler_fn", "func", "__func__"):
        code = inspect.unwrap(getattr(code, name, code))
        if isinstance(code, FunctionType) and code.__name__ == "_wrapped_bw_compiler":  # Dynamo's
            code = inspect.unwrap(contents(code)[0])
    return code.__code__.co_filename if isinstance(code, FunctionType) else None


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
    """Return the code that settings hold and torch has not put there, by the names of the settings."""
    for module, names in _SETTINGS.items():
        config = sys.modules.get(module)
        for name in names:
            value = getattr(config, name, None)
            if value is None or value is (default := _default(config, name)):
                continue
            torchs = [*map(id, default)] if isinstance(default, (list, tuple)) else []
            for each in value if isinstance(value, (list, tuple)) else [value]:
                if each is not None and not isinstance(each, str) and id(each) not in torchs:
                    yield name, each
    common = sys.modules.get("torch._inductor.codegen.common")
    for device, value in getattr(common, "custom_backend_passes", {}).items():
        if value is not None:
            yield f"custom pass for {device}", value


def _default(config: Any, name: str) -> Any:
    return getattr(config._config.get(name), "default", None)


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


def _passes(pattern_matcher: ModuleType) -> Iterator[tuple[str, Any]]:
    """Return all the passes that torch's own modules hold, and where."""
    kind = pattern_matcher.PatternMatcherPass
    for name, module in list(sys.modules.items()):
        if not name.startswith("torch._inductor"):
            continue
        stack = [(f"{name}.{each}", value) for each, value in vars(module).items()]
        while stack:
            place, value = stack.pop()
            if isinstance(value, kind):
                yield place, value
            elif type(value) in (list, tuple) and len(value) < 100:
                stack += [(f"{place}[{number}]", each) for number, each in enumerate(value)]
            elif type(value) is dict and len(value) < 100:
                stack += [(f"{place}[{key}]", each) for key, each in value.items()]


def _patterns_of(pattern_matcher: ModuleType) -> Iterator[tuple[Any, Any]]:
    """Return the entries of all the passes that torch's own modules hold, with the passes."""
    for _, found in _passes(pattern_matcher):
        for entries in list(found.patterns.values()):
            for entry in list(entries):
                yield entry, found


def _made(known: Known, pattern: Any) -> bool:
    return all(known.made(value) for value in vars(pattern).values() if callable(value))


def _namespaces(torch: ModuleType) -> list[ModuleType]:
    """Return the modules whose functions graphs call, and those call in turn."""
    functional = torch.nn.functional
    return [torch, functional, torch.functional, torch._C._nn, torch.fft, torch.linalg, torch.special]


def _subclasses(kind: type) -> Iterator[type]:
    below: list[type] = kind.__subclasses__()
    for each in below:
        yield each
        yield from _subclasses(each)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
