"""Adds a digest of a graph's dependencies to torch's keys."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from threading import local
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.log import logger
from nbcache.core.patches import Intended
from nbcache.keys import global_state, graphs
from nbcache.keys.fingerprints.known_code import KnownPackages
from nbcache.keys.fingerprints.objects import Unknown
from nbcache.keys.graph_fingerprint import GraphFingerprint, package_identity
from nbcache.keys.graphs import TracedGraph, inputs_sharing_memory, is_leaf
from nbcache.keys.monkeypatches import (
    ABSENT,
    EXPORT_TABLES,
    SHARDING_TABLES,
    UNREACHED,
    Originals,
    Replacements,
    all_tables,
    argument_classes,
    is_generator,
    is_special,
    may_be_set,
    namespaces,
    subclasses_of,
    tables_of,
)
from nbcache.keys.operators import Registrations, TorchValues
from nbcache.keys.user_passes import Patterns, code_in_settings, compilers

if TYPE_CHECKING:
    from nbcache.core.patches import Patches
    from nbcache.torch_bridge.hooks import Context


_ATTRIBUTE = "nbcache_dependencies"
"""Name of the digest in torch's keys; torch's own list of their parts shows it."""
GIVEN_DECOMPOSITIONS = "decompositions that are given"
"""Name of AOTAutograd's table of decompositions, which is part of digests."""


@dataclass(frozen=True)
class _GraphDigest:
    """The digest of a graph's dependencies; torch's list of key parts shows its `parts` as JSON."""

    digest: str
    parts: Mapping[str, str] = field(compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (self.digest,)  # torch's key is a hash of this

    def __str__(self) -> str:
        return json.dumps(self.parts)


class Dependencies:
    """Adds the dependencies that torch's keys leave out; records third-party code in torch."""

    SPARE = frozenset({"follow_devices", "follow_fallbacks"})
    """Hooks that recognize torch's own entries; without them keys cover torch's entries, too, and differ."""

    def __init__(
        self, torch: ModuleType, *, late: bool, on_fault: Callable[[Exception], object] = lambda error: None
    ) -> None:
        """`late`: torch was imported before nbcache was loaded; `on_fault` gets nbcache's first exception."""
        self.off = False
        """True after a fault of nbcache: torch's keys stay unchanged."""
        self._on_fault = on_fault
        nbcache_folder = os.path.dirname(os.path.abspath(str(sys.modules["nbcache"].__file__)))
        folder = os.path.dirname(os.path.abspath(str(torch.__file__)))
        places = [folder, os.path.join(os.path.dirname(folder), "triton"), nbcache_folder]
        places.append(str(sys.modules["typing_extensions"].__file__))  # torch wraps functions with it
        if file := getattr(sys.modules.get("triton"), "__file__", None):
            places.append(os.path.dirname(file))
        if not late:
            global_state.read_defaults(torch)
        self._torch = torch
        self._late = late
        self._known = KnownPackages(places)
        self._registrations = Registrations(torch, self._known, late=late, on_fault=self.fail)
        self._patterns = Patterns(self._known)
        self._values = TorchValues(torch, self._known, self._registrations, self._patterns)
        self._originals = Originals(self._known.is_library_code)
        self._replacements = Replacements(self._known)
        self._nbcache_folder = os.path.join(nbcache_folder, "")
        self._read_by_torch: list[Any] = [torch.Tensor, *namespaces(torch)]
        """torch's classes and modules whose attributes it reads while it traces a graph."""
        self._functional_backend = torch.functional._VF
        """The module behind `torch.functional`, which passes on every attribute that is set."""
        self._decompositions: Any = None
        self._generators: list[type] = []
        self._unfollowed: dict[int, Any] = {}
        """Id → code of packages that raised Unknown."""
        self._empty = self._new_state().digest
        self._thread = local()
        """Per thread: `code` and `settings` that apply to any graph at the last key, and `is_general`."""
        self._compiled_by: dict[str, tuple[str, str]] = {}
        """Key of AOTAutograd → code and settings at that key."""

    def fail(self, error: Exception) -> None:
        """Leave torch's keys unchanged from now on."""
        if not self.off:
            self.off = True
            logger.info("finding what a graph depends on failed", exc_info=error)
            self._on_fault(error)

    def follow_operators(self, torch: ModuleType, context: Context, patches: Patches) -> None:
        self._registrations.follow(torch, patches)

    def note_tables(self, module: ModuleType, context: Context, patches: Patches) -> None:
        """Record the tables of a module after its import, when all entries are torch's."""
        late = self._is_late(module)
        for _, table in tables_of(module):
            self._originals.record(table, late=late)

    def _is_late(self, module: ModuleType) -> bool:
        """Return whether third parties may already have changed a module."""
        return self._late and not getattr(module.__spec__, "_initializing", False)

    def follow_attributes(self, torch: ModuleType, context: Context, patches: Patches) -> None:
        modules = filter(self._known.defines, {torch.nn.Module, *subclasses_of(torch.nn.Module)})
        own = [torch.autograd.Function, *modules]
        for owner in (*self._read_by_torch, self._functional_backend, *own):
            self._originals.record(owner, late=self._late)

    def follow_devices(self, common: ModuleType, context: Context, patches: Patches) -> None:
        """Record the entries that torch adds for devices at its first compile."""
        through = (self._nbcache_folder, os.path.abspath(common.__file__ or ""))

        def register(original: Any, device: str, *args: Any, **kwargs: Any) -> Any:
            """Register a device, and record its entries as torch's own unless a third party adds them."""
            result = original(device, *args, **kwargs)
            if self._known.is_caller(sys._getframe(), through):
                for _, table in tables_of(common):
                    self._originals.record_entry(table, device)
            return result

        patches.hook(common, "register_backend_for_device", register)
        patches.hook(common, "register_device_op_overrides", register)

    def follow_fallbacks(self, graph: ModuleType, context: Context, patches: Patches) -> None:
        """Record the fallback lowerings that torch adds while it compiles."""

        def make_fallback(original: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            tables = [table for _, table in tables_of(sys.modules.get("torch._inductor.lowering"))]
            previous = [table.get(op) for table in tables]
            result = original(op, *args, **kwargs)
            for table, entry in zip(tables, previous, strict=True):
                if table.get(op) is not entry:
                    self._originals.record_entry(table, op)
            return result

        patches.hook(graph, "make_fallback", make_fallback)

    def note_generators(self, module: ModuleType, context: Context, patches: Patches) -> None:
        late = self._is_late(module)
        for kind in vars(module).values():
            if is_generator(kind):
                self._originals.record(kind, late=late)
                if not any(kind is generator for generator in self._generators):
                    self._generators.append(kind)

    def follow_patterns(self, pattern_matcher: ModuleType, context: Context, patches: Patches) -> None:
        self._patterns.follow(pattern_matcher, patches, self._nbcache_folder, late=self._late)

    def _new_state(self) -> GraphFingerprint:
        return GraphFingerprint(self._known, [self._values], self._unfollowed)

    def any_graph_digest(self) -> str:
        """Return the digest of packages' code in torch, or an empty text; Unknown for code of the user."""
        if self.off:
            raise Unknown("nbcache failed to find what graphs depend on")
        try:
            state = self._for_any_graph()
            if state.user_code:
                raise Unknown(f"code of yours is part of the compiler: {state.user_code}")
            if state.digest == self._empty:
                return ""
            self._add_reachable(state)
            return state.digest
        except Unknown:
            raise
        except Exception as error:
            self.fail(error)
            raise Unknown("nbcache failed to find what graphs depend on") from error

    def _for_any_graph(self) -> GraphFingerprint:
        """Return the fingerprint of third-party code in torch that any graph may reach."""
        state = self._new_state()
        self._registrations.add_overrides(state)
        for name, table in all_tables():
            self._add_table(state, name, table)
        self._patterns.add(state)
        settings = [*code_in_settings()]
        for name, value in settings:
            state.note(name)
            state.add(value, f"the setting {name}")
        self._add_replaced_attributes(state)
        state.has_graph_passes = bool(settings or self._patterns)
        if state.has_graph_passes and not state.user_code:
            state.user_code = f"the setting {settings[0][0]}" if settings else "a pattern"
        return state

    def _add_reachable(self, state: GraphFingerprint, decompositions: Any = None) -> None:
        """Add the state that added code may reach; other graphs call no third-party operators."""
        if state.has_code:
            for name, table in all_tables():
                self._add_table(state, name, table, of_operators=True)
            if decompositions is not None:
                self._add_table(state, GIVEN_DECOMPOSITIONS, decompositions, of_operators=True)
        global_state.add_ambient_state(self._torch, state, self._known, passes=state.has_graph_passes)
        self._add_attributes(state)

    def _code(self, any_graph: GraphFingerprint) -> str:
        """Return a text that changes, in this process, with the third-party code that any graph may reach."""
        state = self._new_state()
        try:
            for name, table in all_tables():
                self._add_table(state, name, table, of_operators=True)
        except Unknown:
            changes = [self._originals.changes(table) for _, table in all_tables()]
            ids = [(id(entry.key), id(entry.value)) for entries in changes for entry in entries]
            return f"{any_graph.digest}{ids}"
        return any_graph.digest + state.digest

    def _add_operator(self, state: GraphFingerprint, operator: Any) -> None:
        """Add an operator whose implementations do not run during compilation."""
        if isinstance(operator, self._torch._ops.OpOverload):
            self._registrations.add(state, operator, called=False)
        elif isinstance(operator, FunctionType):
            state.add_code(operator)
        else:
            state.add(operator)

    def _add_table(
        self, state: GraphFingerprint, name: str, table: Any, *, of_operators: bool = False
    ) -> None:
        """Add third-party entries of a torch table: those for third-party operators, or all other entries."""
        ops = self._torch._ops
        if not self._originals.is_recorded(table):
            self._originals.record(table, late=True)
        for key, value, replaced in self._originals.changes(table):
            if not replaced and self._is_torch_registration(name, key, value):
                continue
            if value is ABSENT and name in EXPORT_TABLES:
                continue
            is_operator = isinstance(key, (ops.OperatorBase, ops.OpOverloadPacket))
            if of_operators is not (is_operator and not self._registrations.is_torch_target(key)):
                continue
            state.note(name)
            with state.describing(f"an entry of torch's {name}"):
                self._add_operator(state, key)
                if value is not key:
                    state.add_code(value)

    def _is_torch_registration(self, table: str, key: Any, value: Any) -> bool:
        """Return whether torch itself registered both the new operator and its entry."""
        # torch adds sharding rules for inductor's operators when it compiles.
        late = table in SHARDING_TABLES and getattr(key, "namespace", "") == "prims"
        if value is not key and not late and type(key).__module__ != getattr(value, "__module__", None):
            return False
        return self._known.is_library_code(type(key)) and self._known.is_library_code(value)

    def _record_decompositions(self, decompositions: Any) -> None:
        """Record which decompositions are torch's; some of them depend on settings in torch's keys."""
        if self._originals.is_recorded(decompositions):
            return
        torch_entries: dict[Any, Any] = {}
        for name, table in tables_of(sys.modules.get("torch._inductor.decomposition")):
            entries = self._originals.torch_entries(table)
            is_main = name == "decompositions"
            torch_entries |= {key: entries[key] for key in entries if is_main or key in decompositions}
        self._originals.forget(self._decompositions)
        self._originals.record(decompositions, late=False, torch_entries=torch_entries)
        self._decompositions = decompositions

    def _add_replaced_attributes(self, state: GraphFingerprint) -> None:
        for owner in (*self._read_by_torch, self._functional_backend, *self._generators):
            is_read = owner in self._read_by_torch
            for name, value, replaced in self._originals.changes(owner):
                if name in UNREACHED or (is_read and not replaced and not is_special(name)):
                    continue
                if package := self._deferred_identity(owner, name, value):
                    state.note(name)
                    state.add_identity(package)
                else:
                    self._add_attribute(state, owner, name, value)
        for place, function in self._replacements.attributes():
            state.note(place)
            state.add_code(function, f"`{place}`")

    def _deferred_identity(self, owner: Any, name: str, value: Any) -> str:
        """Return the identity of a package's function if it is added only when a graph or code names it."""
        is_attribute = id(owner) in map(id, self._read_by_torch) and not is_special(name)
        return package_identity(self._known, value) if is_attribute else ""

    def _add_called_attributes(
        self, state: GraphFingerprint, methods: Collection[str], functions: Collection[str]
    ) -> None:
        """Add called methods and functions that third parties added to tensors, or that packages replaced."""
        tensor = self._torch.Tensor
        for owner in self._read_by_torch:
            for name, value, replaced in self._originals.changes(owner):
                is_new = name in methods and owner is tensor and not (replaced or is_special(name))
                is_called = name in methods or name in functions
                if is_new or (is_called and replaced and self._deferred_identity(owner, name, value)):
                    self._add_attribute(state, owner, name, value)

    def _add_attribute(self, state: GraphFingerprint, owner: Any, name: str, value: Any) -> None:
        name = f"{owner.__qualname__ if isinstance(owner, type) else owner.__name__}.{name}"
        state.note(name)
        state.add_code(value, f"`{name}`")

    def _add_attributes(self, state: GraphFingerprint) -> None:
        """Add third-party attributes of known classes and modules that added code may read."""
        added: set[tuple[int, str]] = set()
        always: list[Any] = [*self._read_by_torch, self._torch.nn.Module, *argument_classes()]
        while True:
            previous_count = len(added)
            owners: dict[int, Any] = {}
            for root in (*always, *state.reads.owners):
                for owner in root.__mro__ if isinstance(root, type) else (root,):
                    owners[id(owner)] = owner
            for owner in owners.values():
                for name, value in sorted(self._third_party_attributes(state, owner), key=itemgetter(0)):
                    if (id(owner), name) not in added:
                        added.add((id(owner), name))
                        self._add_attribute(state, owner, name, value)
            if len(added) == previous_count:
                return

    def _third_party_attributes(self, state: GraphFingerprint, owner: Any) -> Iterator[tuple[str, Any]]:
        torch, names = self._torch, state.reads.attributes
        if isinstance(owner, (torch._ops._Ops, torch._ops._OpNamespace)):
            for name in [*vars(owner)] if state.reads.any_attribute else names & {*vars(owner)}:
                value = vars(owner)[name]
                if isinstance(value, ModuleType) or not self._registrations.is_torch_target(value):
                    yield name, value
            return
        is_read = any(owner is read_owner for read_owner in state.reads.owners)
        if isinstance(owner, ModuleType) and is_read:
            for name in names & {*vars(owner)}:
                value = vars(owner)[name]
                is_third_party = callable(value) and not self._known.is_library_code(value)
                if is_third_party or isinstance(value, ModuleType) or may_be_set(owner, name, value):
                    yield name, value
            for name in names & {*vars(owner).get("_config", ())}:  # torch stores settings separately
                yield name, getattr(owner, name)
        if self._originals.is_recorded(owner):
            for name, value, replaced in self._originals.changes(owner):
                unread = name in UNREACHED or not (replaced or is_special(name))
                is_named = state.reads.any_attribute or name in names
                if is_named or not (unread or self._deferred_identity(owner, name, value)):
                    yield name, value
        elif isinstance(owner, type) and self._known.defines(owner):
            for name, value in vars(owner).items():
                code = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if isinstance(code, FunctionType):
                    if not self._known.is_library_method(owner, code):
                        yield name, value
                elif is_read and name in names and may_be_set(owner, name, value):
                    yield name, value

    # --- hooks ----------------------------------------------------------------------------------

    def follow_keys(self, codecache: ModuleType, context: Context, patches: Patches) -> None:
        """Add the digest to `FxGraphHashDetails`, which the details of AOTAutograd's keys extend."""

        class Undetermined(codecache.BypassFxGraphCache, Intended):  # type: ignore[name-defined]
            """The dependencies of a graph are unknown, so torch bypasses its caches."""

        def complete(original: Any, details: Any, gm: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(details, gm, inputs, *args, **kwargs)
            self._thread.is_general = False
            if self.off:
                return result
            try:
                self._thread.settings = global_state.settings_in(details)
                digest = self.of(gm, inputs, details)
            except Unknown as error:
                raise Undetermined(f"nbcache cannot tell what this graph depends on: {error}") from error
            except Exception as error:
                self.fail(error)
                return result
            if digest is not None:
                setattr(details, _ATTRIBUTE, digest)
            return result

        patches.hook(codecache.FxGraphHashDetails, "__init__", complete)

    def follow_hits(self, results: ModuleType, context: Context, patches: Patches) -> None:
        guard_hits(self._torch, results, patches)

    def follow_entries(self, cache: ModuleType, context: Context, patches: Patches) -> None:
        """Ignore entries that do not fit, and store none whose backward was compiled with other code.

        AOTAutograd makes one key, for the forward, and compiles the backward at its first call.
        """
        choose_entries(self._torch, cache, patches)

        def autograd_cache_key(original: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._compiled_by[result[0]] = self._current_code_and_settings()
            return result

        def save(original: Any, key: str, entry: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(entry, "compiled_bw", None) is not None and self._has_changed(key):
                words = "a graph is not stored: code that torch compiles with changed before its backward"
                context.session.notice(words, "not-stored")
                return None
            return original(key, entry, *args, **kwargs)

        patches.hook(cache, "autograd_cache_key", autograd_cache_key)
        patches.hook(cache.AOTAutogradCache, "save", save)

    def _has_changed(self, key: str) -> bool:
        """Return whether the compiler's code or settings have changed since this key was computed."""
        if self.off:
            return False
        try:
            self._thread.code = self._code(self._for_any_graph())
        except Unknown:
            return True
        return self._compiled_by.get(key) != self._current_code_and_settings()

    def last_is_general(self) -> bool:
        """Return whether `any_graph_digest` covers all that the last graph depends on beyond torch's key."""
        return not self.off and getattr(self._thread, "is_general", False)

    def _current_code_and_settings(self) -> tuple[str, str]:
        return getattr(self._thread, "code", self._empty), getattr(self._thread, "settings", "")

    # --- what a graph depends on ----------------------------------------------------------------

    def of(self, module: Any, example_inputs: Sequence[Any], details: Any) -> _GraphDigest | None:
        """Return the digest of what torch's key leaves out, or None; Unknown if a behaviour is unknown."""
        graph = TracedGraph(self._torch, module)
        aot_config = getattr(details, "aot_config", None)  # of AOTAutograd's key for Dynamo's graph
        state = self._for_any_graph()
        any_graphs = state.digest
        self._thread.code = self._code(state)
        if (decompositions := getattr(aot_config, "decompositions", None)) is not None:
            self._record_decompositions(decompositions)
            self._add_table(state, GIVEN_DECOMPOSITIONS, decompositions)
        operators = graph.operators()
        self._add_called_attributes(state, graph.methods(), graphs.names_of(operators))
        for operator in operators:
            if not self._registrations.is_torch_target(operator):
                self._add_operator(state, operator)
        for value in graph.parts_of_modules():
            if not (self._known.is_library_code(value) and self._known.is_library_code(type(value))):
                state.add(value, "a part of a module that the graph calls")
        for policy in graph.checkpoint_policies():
            state.add(policy, "the policy of selective checkpointing")
        for number, annotation in graph.annotations():
            state.note(number)
            state.add(annotation, "an annotation of a node")
        flags = [*global_state.flags(self._torch)]
        state.shown |= {f"the flag {name}": str(value) for name, value in flags}
        facts = [*flags, *graph.shapes(example_inputs), *graph.frozen_parameters()]
        for name, value in facts if aot_config else [*facts, *graph.training()]:
            state.note(name, value)
        if (dtype := self._torch.get_default_dtype()) is not self._torch.float32:
            state.note("default dtype", dtype)  # not in the keys of torch 2.11
        if aot_config is not None:
            if graph.fixes_numbers():
                raise Unknown("torch may compile a varying float into the graph")
            global_state.add_graph_autocast(self._torch, state, operators, details)
            self._add_inputs(state, graph, example_inputs)
            for name, code in compilers():
                state.has_graph_passes = True
                state.note(name)
                state.add(code, f"the argument {name}")
        has_users = bool(state.user_code) or state.has_graph_passes
        self._thread.is_general = state.digest == any_graphs and not has_users
        if state.digest != self._empty:
            self._add_reachable(state, decompositions)
            graph.add_metadata(state, passes=state.has_graph_passes)
        return None if state.digest == self._empty else _GraphDigest(state.digest, state.shown)

    def _add_inputs(self, state: GraphFingerprint, graph: TracedGraph, example_inputs: Sequence[Any]) -> None:
        torch = self._torch
        kinds: dict[type, None] = {}
        for value, context in graphs.unusual_values(torch, [*example_inputs, *graph.constants()]):
            kinds[type(value)] = None
            if self._known.is_library_code(type(value)):
                kinds |= dict.fromkeys(map(type, graphs.parts_of(context)))
            else:
                state.add(context, f"the __tensor_flatten__ context of {type(value).__qualname__}")
        for value, context in graphs.unusual_values(torch, graph.example_values()):
            kinds |= dict.fromkeys(map(type, (value, *graphs.parts_of(context))))
        for kind in kinds:
            self._add_kind(state, kind)
        for facts in graphs.memory_of(torch, example_inputs):
            state.note(*facts)

    def _add_kind(self, state: GraphFingerprint, kind: type) -> None:
        if not self._known.is_library_code(kind):
            state.add(kind, f"the class {kind.__qualname__}")
            return
        for owner in (owner for owner in kind.__mro__ if not self._originals.is_recorded(owner)):
            for name, value in self._third_party_attributes(state, owner):
                self._add_attribute(state, owner, name, value)


# --- conditions of a hit that no key covers: guards, leaf inputs, donated inputs of a backward -----


class _Unguarded(Intended):
    """A hit may lack a guard, so torch must compile."""


def guard_hits(torch: ModuleType, results: ModuleType, patches: Patches) -> None:
    """Add the guards of a compile to each hit, and let its backward run with `retain_graph=True`.

    If inputs of dynamic shapes share memory and one is mutated, AOTAutograd guards which of them overlap, and
    stores no such guard. If this check raises an error, torch compiles the graph.
    """
    from torch._functorch._aot_autograd.input_output_analysis import compute_overlapping_inputs
    from torch._inductor.output_code import CompiledFxGraph

    thread = local()

    def wrap_post_compile(
        original: Any, entry: Any, args: Any, aot_config: Any, *more: Any, **kwargs: Any
    ) -> Any:
        try:
            if any(info.mutates_data for info in entry.runtime_metadata.input_info):
                for numbers in inputs_sharing_memory(torch, args):
                    compute_overlapping_inputs(aot_config, list(args), numbers)
        except Exception as error:
            patches.fail(error)
            raise _Unguarded("nbcache failed to find which inputs overlap") from error
        metadata = entry.runtime_metadata
        thread.donated = None
        if metadata.bw_donated_idxs:
            metadata.bw_donated_idxs = thread.donated = _DonatedInputs(metadata.bw_donated_idxs)
        try:
            return original(entry, args, aot_config, *more, **kwargs)
        finally:
            thread.donated = None

    def post_compile(
        original: Any, graph: Any, inputs: Any, constants: Any, settings: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        result = original(graph, inputs, constants, settings, **kwargs)
        donated = getattr(thread, "donated", None)
        if donated is not None and settings["is_backward"]:
            policy = getattr(torch._inductor.config, "cudagraph_policy", None)
            if not (settings["cudagraphs"] or policy):  # a CUDA graph reads inputs where they were
                donated.backward = graph
        return result

    patches.hook(CompiledFxGraph, "post_compile", post_compile)
    result = results.GenericAOTAutogradResult
    patches.hook(result, "wrap_post_compile", wrap_post_compile)


class _DonatedInputs(list[int]):
    """The indexes of the inputs that a stored backward was compiled to overwrite.

    If a call retains the graph, a backward that is compiled then overwrites nothing; a stored one gets copies
    of these inputs. torch compares this list with an empty one in such calls only.
    """

    backward: Any = None
    """The `CompiledFxGraph`; without one, torch refuses to retain the graph."""

    copies = False

    def __ne__(self, other: object) -> bool:
        if self.backward is None:
            return super().__ne__(other)
        if not self.copies:
            self.backward.current_callable = self._with_copies(self.backward.current_callable)
            self.copies = True
        return False

    def _with_copies(self, call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        from torch._C._autograd import _get_current_graph_task_keep_graph as keeps_graph
        from torch._inductor.utils import clone_preserve_strides

        def run(inputs: list[Any]) -> Any:
            if keeps_graph():
                for number in self:
                    inputs[number] = clone_preserve_strides(inputs[number])
            return call(inputs)

        return run

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def choose_entries(torch: ModuleType, cache: ModuleType, patches: Patches) -> None:
    """Let AOTAutograd use only the entries of a key whose inputs agree in being leaves.

    It detaches inputs that require a gradient, are no leaves and have none. Its key leaves that out.
    """
    thread = local()

    def lookup(
        original: Any, key: str, disk: bool, remote: bool, args: Any, *more: Any, **kwargs: Any
    ) -> Any:
        thread.args = args
        try:
            return original(key, disk, remote, args, *more, **kwargs)
        finally:
            thread.args = None

    def candidates(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        inputs = getattr(thread, "args", None)
        for candidate in original(cls, *args, **kwargs):
            if inputs is not None and fits(candidate[0], inputs):
                yield candidate

    def fits(entry: Any, inputs: Sequence[Any]) -> bool:
        try:
            return _fits(torch, entry, inputs)
        except Exception as error:
            patches.fail(error)
            return False

    entries = cache.AOTAutogradCache
    patches.hook(entries, "_lookup", lookup)
    patches.hook(entries, "iterate_over_candidates", candidates)


def _fits(torch: ModuleType, entry: Any, args: Sequence[Any]) -> bool:
    """Return whether the same inputs are leaves as in the entry; keys cover it if inputs share memory."""
    if inputs_sharing_memory(torch, args):
        return True
    infos = entry.runtime_metadata.input_info
    if len(infos) != len(args):
        return False
    pairs = zip(infos, args, strict=True)
    return all(info.is_leaf == is_leaf(value) for info, value in pairs if isinstance(value, torch.Tensor))
