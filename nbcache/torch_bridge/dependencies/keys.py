"""Adds what a graph depends on to torch's keys: notes it as it comes to be, and digests it for each graph."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter
from threading import local
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.fingerprints.digests import Fingerprint, Unknown
from nbcache.core.fingerprints.known_code import Known
from nbcache.core.log import logger
from nbcache.torch_bridge.dependencies.given import code_in_settings, compilers
from nbcache.torch_bridge.dependencies.graphs import (
    add_metadata,
    annotations_of,
    checkpointing_of,
    constants_of,
    fixes_numbers,
    frozen_of,
    intermediates_of,
    memory_of,
    methods_of,
    modules_of,
    operators_of,
    parts_of,
    shapes,
    training_of,
    within,
)
from nbcache.torch_bridge.dependencies.hits import choose_entries, guard_hits
from nbcache.torch_bridge.dependencies.in_force import add_graphs_autocast, add_run_into, flags, settings_in
from nbcache.torch_bridge.dependencies.operators import Registrations
from nbcache.torch_bridge.dependencies.originals import ABSENT, Originals, Replacements, may_be_set
from nbcache.torch_bridge.dependencies.patterns import Patterns
from nbcache.torch_bridge.dependencies.tables import (
    DEREGISTERED,
    OF_SHARDING,
    UNREACHED,
    all_tables,
    handed_over,
    is_generator,
    is_special,
    namespaces,
    subclasses,
    tables_of,
)
from nbcache.torch_bridge.dependencies.values import TorchValues
from nbcache.torch_bridge.patches import Intended

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.patches import Patches

__all__ = ["Dependencies"]

_ATTRIBUTE = "nbcache_dependencies"
"""What torch's keys call it; torch's own list of their parts shows the name."""
_IDS = frozenset({"_autograd_function_id"})
"""Attributes that number things in the order in which they were made."""


class Dependencies:
    """Adds to torch's keys what they leave out."""

    def __init__(self, torch: ModuleType, *, late: bool) -> None:
        """`late` says that torch was imported before: what was registered until now was not seen."""
        file = getattr(sys.modules.get("triton"), "__file__", None)
        triton = [os.path.dirname(file)] if file else []
        ours = os.path.dirname(os.path.abspath(str(sys.modules["nbcache"].__file__)))
        folder = os.path.dirname(os.path.abspath(str(torch.__file__)))
        beside = os.path.join(os.path.dirname(folder), "triton")
        self._torch = torch
        self._late = late
        extensions = sys.modules["typing_extensions"]  # which torch needs, and wraps functions with
        self._known = Known([folder, beside, ours, *triton, str(extensions.__file__)])
        self._registrations = Registrations(torch, self._known, late=late)
        self._patterns = Patterns(self._known)
        self._values = TorchValues(torch, self._known, self._registrations, self._patterns)
        self._originals = Originals(self._known.made)
        self._replacements = Replacements(self._known)
        self._ours = os.path.join(ours, "")
        self._read: list[Any] = [torch.Tensor, *namespaces(torch)]
        """Classes and modules of torch's that it reads while it traces a graph."""
        self._behind = torch.functional._VF
        """The module that functions in `torch.functional` call, where any attribute that is set is read."""
        self._given: Any = None
        """The decompositions that AOTAutograd was given last."""
        self._generators: list[type] = []
        """Classes of torch's that write code for operators."""
        self._empty = Fingerprint(self._known, [self._values], _IDS).digest
        self._here = local()
        """In `code` and `settings`, what counts for any graph, when this thread last asked for a key."""
        self._compiled_by: dict[str, tuple[str, str]] = {}
        """The same by key of AOTAutograd's."""

    # --- hooks ----------------------------------------------------------------------------------

    def follow_operators(self, torch: ModuleType, session: Session, patches: Patches) -> None:
        """Note what is registered for operators, from now on."""
        self._registrations.follow(torch, session, patches)

    def note_tables(self, module: ModuleType, session: Session, patches: Patches) -> None:
        """Note what the tables of a module hold that torch has just imported: torch has made all of it."""
        late = self._is_late(module)
        for _, table in tables_of(module):
            self._originals.note(table, late=late)

    def _is_late(self, module: ModuleType) -> bool:
        """Tell whether others than torch may have changed what a module holds already."""
        return self._late and not getattr(module.__spec__, "_initializing", False)

    def follow_attributes(self, torch: ModuleType, session: Session, patches: Patches) -> None:
        """Note what torch's classes and modules hold whose attributes code may read."""
        modules = {torch.nn.Module, *subclasses(torch.nn.Module)}
        for owner in (*self._read, self._behind, torch.autograd.Function, *filter(self._known.has, modules)):
            self._originals.note(owner, late=self._late)

    def follow_devices(self, common: ModuleType, session: Session, patches: Patches) -> None:
        """Note what torch registers for devices when it first compiles."""

        def register(original: Any, device: str, *args: Any, **kwargs: Any) -> Any:
            result = original(device, *args, **kwargs)
            if self._known.has_called(sys._getframe(), (self._ours, os.path.abspath(common.__file__ or ""))):
                for _, table in tables_of(common):
                    self._originals.note_entry(table, device)
            return result

        patches.hook(common, "register_backend_for_device", register, takes="device")
        patches.hook(common, "register_device_op_overrides", register, takes="device")

    def follow_fallbacks(self, graph: ModuleType, session: Session, patches: Patches) -> None:
        """Note the lowerings that torch makes while it compiles, for operators that have none."""

        def make_fallback(original: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            tables = [table for _, table in tables_of(sys.modules.get("torch._inductor.lowering"))]
            before = [table.get(op) for table in tables]
            result = original(op, *args, **kwargs)
            for table, there in zip(tables, before, strict=True):
                if table.get(op) is not there:
                    self._originals.note_entry(table, op)
            return result

        patches.hook(graph, "make_fallback", make_fallback, takes="op")

    def note_generators(self, module: ModuleType, session: Session, patches: Patches) -> None:
        """Note the classes that write code for operators, as torch has made them."""
        late = self._is_late(module)
        for kind in vars(module).values():
            if is_generator(kind):
                self._originals.note(kind, late=late)
                if not any(kind is each for each in self._generators):
                    self._generators.append(kind)

    def follow_patterns(self, pattern_matcher: ModuleType, session: Session, patches: Patches) -> None:
        """Note each pattern that others than torch register."""
        self._patterns.follow(pattern_matcher, patches, self._ours, late=self._late)

    def follow_keys(self, codecache: ModuleType, session: Session, patches: Patches) -> None:
        """Add to what keys are made of: `FxGraphHashDetails`, which AOTAutograd's extends."""

        class Undetermined(codecache.BypassFxGraphCache, Intended):  # type: ignore[name-defined]
            """It cannot be told what a graph depends on; torch bypasses its caches."""

        def complete(original: Any, details: Any, gm: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(details, gm, inputs, *args, **kwargs)
            try:
                self._here.settings = settings_in(details)
                found = self.of(gm, inputs, details)
            except Unknown as error:
                raise Undetermined(f"nbcache cannot tell what this graph depends on: {error}") from error
            except Exception as error:  # a fault of ours costs a hit, and never the cell
                logger.info("what a graph depends on could not be told", exc_info=error)
                session.notice(f"what a graph depends on could not be told, please report it: {error!r}")
                raise Undetermined(f"nbcache failed to tell what this graph depends on: {error!r}") from error
            self._here.found = found
            if found is not None:
                setattr(details, _ATTRIBUTE, found)
            return result

        patches.hook(codecache.FxGraphHashDetails, "__init__", complete, takes="self gm example_inputs")

    def follow_hits(self, results: ModuleType, session: Session, patches: Patches) -> None:
        """Have a hit guard what a compile would."""
        guard_hits(self._torch, results, patches)

    def follow_entries(self, cache: ModuleType, session: Session, patches: Patches) -> None:
        """Have no entry found that does not fit, nor kept whose backward was compiled otherwise.

        AOTAutograd makes the key for the forward, and compiles the backward when it is called.
        """
        choose_entries(self._torch, cache, patches)

        def autograd_cache_key(original: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            self._compiled_by[found[0]] = self._by()
            return found

        def save(original: Any, key: str, entry: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(entry, "compiled_bw", None) is not None and self._has_changed(key):
                session.notice("a graph is not kept: what torch compiles with changed before its backward")
                return None
            return original(key, entry, *args, **kwargs)

        patches.hook(cache, "autograd_cache_key", autograd_cache_key)
        patches.hook(cache.AOTAutogradCache, "save", save, takes="key entry")

    def _has_changed(self, key: str) -> bool:
        """Tell whether any graph would be compiled otherwise now than when this key was made."""
        try:
            self._here.code = self._for_any_graph()[0].digest
        except Unknown:
            return True
        return self._compiled_by.get(key) != self._by()

    def is_plain(self) -> bool:
        """Tell whether nobody has put code into torch, for any graph to run into."""
        try:
            return self._for_any_graph()[0].digest == self._empty
        except Unknown:
            return False

    def last_is_plain(self) -> bool:
        """Tell whether torch's key alone held all that the last graph on this thread depends on."""
        return getattr(self._here, "found", "") is None

    def _by(self) -> tuple[str, str]:
        """Return the code and the settings that this thread compiles with."""
        return getattr(self._here, "code", self._empty), getattr(self._here, "settings", "")

    # --- what a graph depends on ----------------------------------------------------------------

    def of(self, graph: Any, example_inputs: Sequence[Any], details: Any) -> str | None:
        """Return the digest of all that `graph` depends on beyond torch's key; None where there is nothing.

        `details` is what torch makes its key of. Unknown where it cannot be told.
        """
        aot_config = getattr(details, "aot_config", None)  # AOTAutograd's, for the graph that Dynamo made
        state, passes = self._for_any_graph()
        self._here.code = state.digest
        self._add_given(state, aot_config)
        self._add_called(state, methods_of(self._torch, graph))
        operators = operators_of(self._torch, graph)
        for operator in operators:
            if not self._registrations.made(operator):
                self._add_operator(state, operator)
        for held in modules_of(self._torch, graph):
            if not (self._known.made(held) and self._known.made(type(held))):
                state.add(held, "what a module that the graph calls is made of")
        for context in checkpointing_of(self._torch, graph):
            state.add(context, "what selective checkpointing keeps")
        for number, said in annotations_of(self._torch, graph):
            state.note(number)
            state.add(said, "an annotation of a node")
        told = [*flags(self._torch), *shapes(self._torch, graph), *frozen_of(self._torch, graph)]
        for name, value in told if aot_config else [*told, *training_of(self._torch, graph)]:
            state.note(name, value)
        if (dtype := self._torch.get_default_dtype()) is not self._torch.float32:
            state.note("default dtype", dtype)  # not in the keys of torch 2.11
        if aot_config is not None:
            if fixes_numbers(self._torch, graph):
                raise Unknown("torch may compile in a float that varies")
            add_graphs_autocast(self._torch, state, operators, details)
            self._add_inputs(state, graph, example_inputs)
            passes |= self._add_compilers(state)
        if state.digest != self._empty:
            add_run_into(self._torch, state, self._known, passes=passes)
            self._add_attributes(state)
            add_metadata(self._torch, state, graph, passes=passes)
        return None if state.digest == self._empty else state.digest

    def _for_any_graph(self) -> tuple[Fingerprint, bool]:
        """Return the fingerprint of the code that others have put into torch, for any graph to run into.

        With it comes whether some of that code is given graphs.
        """
        state = Fingerprint(self._known, [self._values], _IDS)
        self._registrations.add_replaced(state)
        for name, table in all_tables():
            self._add_table(state, name, table)
        self._patterns.add(state)
        settings = [*code_in_settings()]
        for name, value in settings:
            state.note(name)
            state.add(value, f"the setting {name}")
        self._add_replaced(state)
        return state, bool(settings or self._patterns)

    def _add_operator(self, state: Fingerprint, operator: Any) -> None:
        """Add what a graph calls, or what something is registered for: no kernel of it runs meanwhile."""
        if isinstance(operator, self._torch._ops.OpOverload):
            self._registrations.add(state, operator, called=False)
        else:
            state.add(operator)

    def _add_inputs(self, state: Fingerprint, graph: Any, example_inputs: Sequence[Any]) -> None:
        """Add what others have written of the classes of tensors, and which inputs share memory."""
        torch = self._torch
        kinds: dict[type, None] = {}
        for value, context in within(torch, [*example_inputs, *constants_of(torch, graph)]):
            kinds[type(value)] = None
            if self._known.made(type(value)):
                kinds |= dict.fromkeys(map(type, parts_of(context)))
            else:
                state.add(context, f"what {type(value).__qualname__} keeps beside its tensors")
        for value, context in within(torch, intermediates_of(torch, graph)):
            kinds |= dict.fromkeys(map(type, (value, *parts_of(context))))
        for kind in kinds:
            self._add_kind(state, kind)
        for told in memory_of(torch, example_inputs):
            state.note(*told)

    def _add_kind(self, state: Fingerprint, kind: type) -> None:
        """Add a class that is not torch's, or what others have put into one that is."""
        if not self._known.made(kind):
            state.add(kind, f"the class {kind.__qualname__}")
            return
        for owner in kind.__mro__:
            for name, value in () if self._originals.is_noted(owner) else self._others(state, owner):
                self._add_attribute(state, owner, name, value)

    def _add_given(self, state: Fingerprint, aot_config: Any) -> None:
        """Add what others have put into the decompositions that AOTAutograd was given."""
        given = getattr(aot_config, "decompositions", None)
        if given is not None:
            self._note_given(given)
            self._add_table(state, "decompositions that are given", given)

    def _add_table(self, state: Fingerprint, name: str, table: Any) -> None:
        """Add what others have put into one of torch's tables."""
        if not self._originals.is_noted(table):
            self._originals.note(table, late=True)
        for key, value, replaced in self._originals.changes(table):
            if not replaced and self._is_of_import(name, key, value):
                continue
            if value is ABSENT and name in DEREGISTERED:
                continue
            state.note(name)
            with state.within(f"an entry of torch's {name}"):
                self._add_operator(state, key)
                if value is not key:
                    state.add(value)

    def _is_of_import(self, table: str, key: Any, value: Any) -> bool:
        """Tell whether a module of torch's has brought an operator and what there is for it: one is new."""
        late = table in OF_SHARDING and getattr(key, "namespace", "") == "prims"  # of inductor's own
        if value is not key and not late and type(key).__module__ != getattr(value, "__module__", None):
            return False
        return self._known.made(type(key)) and self._known.made(value)

    def _note_given(self, given: Any) -> None:
        """Note which decompositions inductor gives; some depend on settings that torch's keys hold."""
        if self._originals.is_noted(given):
            return
        own: dict[Any, Any] = {}
        for name, table in tables_of(sys.modules.get("torch._inductor.decomposition")):
            torchs = self._originals.torchs(table)
            own |= {key: torchs[key] for key in torchs if name == "decompositions" or key in given}
        self._originals.forget(self._given)
        self._originals.note(given, late=False, torchs=own)
        self._given = given

    def _add_compilers(self, state: Fingerprint) -> bool:
        """Add what AOTAutograd was given to compile with, unless it is inductor's; tell if there was any."""
        given = compilers(sys._getframe())
        for name, code in given:
            state.note(name)
            state.add(code, f"what was given as {name}")
        return bool(given)

    def _add_replaced(self, state: Fingerprint) -> None:
        """Add what others have put in place of attributes of torch's that any graph may run into."""
        for owner in (*self._read, self._behind, *self._generators):
            for name, value, replaced in self._originals.changes(owner):
                if name not in UNREACHED and (replaced or owner not in self._read or is_special(name)):
                    self._add_attribute(state, owner, name, value)
        for place, function in self._replacements.found():
            state.note(place)
            state.add(function, f"`{place}`")

    def _add_called(self, state: Fingerprint, methods: Collection[str]) -> None:
        """Add what others have added to tensors, of these methods."""
        tensor = self._torch.Tensor
        for name, value, replaced in self._originals.changes(tensor) if methods else ():
            if name in methods and not (replaced or is_special(name)):
                self._add_attribute(state, tensor, name, value)

    def _add_attribute(self, state: Fingerprint, owner: Any, name: str, value: Any) -> None:
        name = f"{owner.__qualname__ if isinstance(owner, type) else owner.__name__}.{name}"
        state.note(name)
        state.add(value, f"`{name}`")

    def _add_attributes(self, state: Fingerprint) -> None:
        """Add what others have set in known classes and modules, where code that was added may read it."""
        added: set[tuple[int, str]] = set()
        always: list[Any] = [*self._read, self._torch.nn.Module, *handed_over()]
        while True:
            before = len(added)
            owners: dict[int, Any] = {}
            for each in (*always, *state.reads.owners):
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
        torch, names = self._torch, state.reads.attributes
        if isinstance(owner, (torch._ops._Ops, torch._ops._OpNamespace)):
            for name in [*vars(owner)] if state.reads.any else names & {*vars(owner)}:
                value = vars(owner)[name]
                if isinstance(value, ModuleType) or not self._registrations.made(value):
                    yield name, value
            return
        is_read = any(owner is each for each in state.reads.owners)
        if isinstance(owner, ModuleType) and is_read:
            for name in names & {*vars(owner)}:
                value = vars(owner)[name]
                others = callable(value) and not self._known.made(value)
                if others or isinstance(value, ModuleType) or may_be_set(owner, name, value):
                    yield name, value
            for name in names & {*vars(owner).get("_config", ())}:  # torch keeps settings apart
                yield name, getattr(owner, name)
        if self._originals.is_noted(owner):
            for name, value, replaced in self._originals.changes(owner):
                unread = name in UNREACHED or not (replaced or is_special(name))
                if state.reads.any or name in names or not unread:
                    yield name, value
        elif isinstance(owner, type) and self._known.has(owner):
            for name, value in vars(owner).items():
                code = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if isinstance(code, FunctionType):
                    if not self._known.writes(owner, code):
                        yield name, value
                elif is_read and name in names and may_be_set(owner, name, value):
                    yield name, value
