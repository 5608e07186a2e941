"""Code that others have put into torch, for any graph to run into: noted as it comes to be, and digested."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from operator import itemgetter
from threading import local
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.fingerprints.digests import Unknown
from nbcache.core.fingerprints.known_code import KnownPackages
from nbcache.core.log import logger
from nbcache.torch_bridge.dependencies.global_state import add_run_into, read_defaults
from nbcache.torch_bridge.dependencies.graph_fingerprint import State, identity
from nbcache.torch_bridge.dependencies.monkeypatches import ABSENT, Originals, Replacements, may_be_set
from nbcache.torch_bridge.dependencies.operators import Registrations
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
from nbcache.torch_bridge.dependencies.torch_values import TorchValues
from nbcache.torch_bridge.dependencies.user_passes import code_in_settings

if TYPE_CHECKING:
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["GIVEN", "AnyGraph"]

GIVEN = "decompositions that are given"


class AnyGraph:
    """Notes the code that others put into torch, and adds it to fingerprints."""

    SPARE = frozenset({"follow_devices", "follow_fallbacks"})
    """Hooks that tell torch's own entries from others': without them torch's count, too, and keys differ."""

    def __init__(
        self, torch: ModuleType, *, late: bool, on_fault: Callable[[Exception], object] = lambda error: None
    ) -> None:
        """`late` says that torch was imported before: what was registered until now was not seen.

        `on_fault` gets the first exception that nbcache itself raises.
        """
        self.off = False
        """True where torch's keys stay as torch makes them, because nbcache has failed."""
        self._on_fault = on_fault
        file = getattr(sys.modules.get("triton"), "__file__", None)
        triton = [os.path.dirname(file)] if file else []
        ours = os.path.dirname(os.path.abspath(str(sys.modules["nbcache"].__file__)))
        folder = os.path.dirname(os.path.abspath(str(torch.__file__)))
        beside = os.path.join(os.path.dirname(folder), "triton")
        if not late:
            read_defaults(torch)
        self._torch = torch
        self._late = late
        extensions = sys.modules["typing_extensions"]  # which torch needs, and wraps functions with
        self._known = KnownPackages([folder, beside, ours, *triton, str(extensions.__file__)])
        self._registrations = Registrations(torch, self._known, late=late, on_fault=self.fail)
        self._patterns = Patterns(self._known)
        self._values = TorchValues(torch, self._known, self._registrations, self._patterns)
        self._originals = Originals(self._known.is_library_code)
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
        self._unfollowed: dict[int, Any] = {}
        """Code of packages that could not be followed, by id."""
        self._empty = self._new_state().digest
        self._here = local()
        """In `code` and `settings`, what counts for any graph, when this thread last asked for a key."""
        self._compiled_by: dict[str, tuple[str, str]] = {}
        """The same by key of AOTAutograd's."""

    def fail(self, error: Exception) -> None:
        """Leave torch's keys alone from now on: what graphs depend on cannot be found."""
        if not self.off:
            self.off = True
            logger.info("finding what a graph depends on failed", exc_info=error)
            self._on_fault(error)

    def follow_operators(self, torch: ModuleType, context: Context, patches: Patches) -> None:
        """Note what is registered for operators, from now on."""
        self._registrations.follow(torch, patches)

    def note_tables(self, module: ModuleType, context: Context, patches: Patches) -> None:
        """Note what the tables of a module hold that torch has just imported: torch has made all of it."""
        late = self._is_late(module)
        for _, table in tables_of(module):
            self._originals.note(table, late=late)

    def _is_late(self, module: ModuleType) -> bool:
        """Tell whether others than torch may have changed what a module holds already."""
        return self._late and not getattr(module.__spec__, "_initializing", False)

    def follow_attributes(self, torch: ModuleType, context: Context, patches: Patches) -> None:
        """Note what torch's classes and modules hold whose attributes code may read."""
        modules = {torch.nn.Module, *subclasses(torch.nn.Module)}
        for owner in (
            *self._read,
            self._behind,
            torch.autograd.Function,
            *filter(self._known.defines, modules),
        ):
            self._originals.note(owner, late=self._late)

    def follow_devices(self, common: ModuleType, context: Context, patches: Patches) -> None:
        """Note what torch registers for devices when it first compiles."""

        def register(original: Any, device: str, *args: Any, **kwargs: Any) -> Any:
            result = original(device, *args, **kwargs)
            if self._known.is_caller(sys._getframe(), (self._ours, os.path.abspath(common.__file__ or ""))):
                for _, table in tables_of(common):
                    self._originals.note_entry(table, device)
            return result

        patches.hook(common, "register_backend_for_device", register)
        patches.hook(common, "register_device_op_overrides", register)

    def follow_fallbacks(self, graph: ModuleType, context: Context, patches: Patches) -> None:
        """Note the lowerings that torch makes while it compiles, for operators that have none."""

        def make_fallback(original: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            tables = [table for _, table in tables_of(sys.modules.get("torch._inductor.lowering"))]
            before = [table.get(op) for table in tables]
            result = original(op, *args, **kwargs)
            for table, there in zip(tables, before, strict=True):
                if table.get(op) is not there:
                    self._originals.note_entry(table, op)
            return result

        patches.hook(graph, "make_fallback", make_fallback)

    def note_generators(self, module: ModuleType, context: Context, patches: Patches) -> None:
        """Note the classes that write code for operators, as torch has made them."""
        late = self._is_late(module)
        for kind in vars(module).values():
            if is_generator(kind):
                self._originals.note(kind, late=late)
                if not any(kind is each for each in self._generators):
                    self._generators.append(kind)

    def follow_patterns(self, pattern_matcher: ModuleType, context: Context, patches: Patches) -> None:
        """Note each pattern that others than torch register."""
        self._patterns.follow(pattern_matcher, patches, self._ours, late=self._late)

    def _new_state(self) -> State:
        return State(self._known, [self._values], self._unfollowed)

    def of_any_graph(self) -> str | None:
        """Return the digest of what installed packages have put into torch; empty where nothing is there.

        None where code of the user is there, too, or cannot be followed.
        """
        try:
            state = None if self.off else self._for_any_graph()
            if state is None or state.of_users or state.gets_graphs:
                return None
            if state.digest == self._empty:
                return ""
            self._add_reachable(state)
            return state.digest
        except Exception as error:
            if not isinstance(error, Unknown):
                self.fail(error)
            return None

    def _for_any_graph(self) -> State:
        """Return the fingerprint of the code that others have put into torch, for any graph to run into."""
        state = self._new_state()
        self._registrations.add_replaced(state)
        for name, table in all_tables():
            self._add_table(state, name, table)
        self._patterns.add(state)
        settings = [*code_in_settings()]
        for name, value in settings:
            state.note(name)
            state.add(value, f"the setting {name}")
        self._add_replaced(state)
        state.gets_graphs = bool(settings or self._patterns)
        state.of_users |= state.gets_graphs
        return state

    def _add_reachable(self, state: State, decompositions: Any = None) -> None:
        """Add what the code that was added may reach, with AOTAutograd's `decompositions`.

        A graph that runs no code of others calls none of their operators.
        """
        if state.has_code:
            tables = [*all_tables(), *([] if decompositions is None else [(GIVEN, decompositions)])]
            for name, table in tables:
                self._add_table(state, name, table, of_operators=True)
        add_run_into(self._torch, state, self._known, passes=state.gets_graphs)
        self._add_attributes(state)

    def _of_operators(self) -> str:
        """Return a text that changes, in this process, with entries of tables for operators of others."""
        state = self._new_state()
        try:
            for name, table in all_tables():
                self._add_table(state, name, table, of_operators=True)
        except Unknown:
            changes = [self._originals.changes(table) for _, table in all_tables()]
            return str([(id(entry.key), id(entry.value)) for entries in changes for entry in entries])
        return state.digest

    def _add_operator(self, state: State, operator: Any) -> None:
        """Add what a graph calls, or what something is registered for: no kernel of it runs meanwhile."""
        if isinstance(operator, self._torch._ops.OpOverload):
            self._registrations.add(state, operator, called=False)
        elif isinstance(operator, FunctionType):
            state.add_code(operator)
        else:
            state.add(operator)

    def _add_table(self, state: State, name: str, table: Any, *, of_operators: bool = False) -> None:
        """Add entries of others in a torch table, for their own operators or for torch operators."""
        if not self._originals.is_noted(table):
            self._originals.note(table, late=True)
        for key, value, replaced in self._originals.changes(table):
            if not replaced and self._is_of_import(name, key, value):
                continue
            if value is ABSENT and name in DEREGISTERED:
                continue
            if of_operators is not self._is_others_operator(key):
                continue
            state.note(name)
            with state.describing(f"an entry of torch's {name}"):
                self._add_operator(state, key)
                if value is not key:
                    state.add_code(value)

    def _is_others_operator(self, key: Any) -> bool:
        kinds = self._torch._ops.OperatorBase, self._torch._ops.OpOverloadPacket
        return isinstance(key, kinds) and not self._registrations.made(key)

    def _is_of_import(self, table: str, key: Any, value: Any) -> bool:
        """Tell whether a module of torch's has brought an operator and what there is for it: one is new."""
        late = table in OF_SHARDING and getattr(key, "namespace", "") == "prims"  # of inductor's own
        if value is not key and not late and type(key).__module__ != getattr(value, "__module__", None):
            return False
        return self._known.is_library_code(type(key)) and self._known.is_library_code(value)

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

    def _add_replaced(self, state: State) -> None:
        """Add what others have put in place of attributes of torch's that any graph may run into."""
        for owner in (*self._read, self._behind, *self._generators):
            for name, value, replaced in self._originals.changes(owner):
                if name in UNREACHED or not (replaced or owner not in self._read or is_special(name)):
                    continue
                if package := self._of_package(owner, name, value):
                    state.note(name)
                    state.add_identity(package)
                else:
                    self._add_attribute(state, owner, name, value)
        for place, function in self._replacements.found():
            state.note(place)
            state.add_code(function, f"`{place}`")

    def _of_package(self, owner: Any, name: str, value: Any) -> str:
        """Return the identity of a package's function that is followed only where something names it."""
        is_attribute = id(owner) in map(id, self._read) and not is_special(name)
        return identity(self._known, value) if is_attribute else ""

    def _add_called(self, state: State, methods: Collection[str], functions: Collection[str]) -> None:
        """Add these methods and functions: what others have added to tensors, and packages have replaced."""
        tensor = self._torch.Tensor
        for owner in self._read:
            for name, value, replaced in self._originals.changes(owner):
                is_new = name in methods and owner is tensor and not (replaced or is_special(name))
                is_called = name in methods or name in functions
                if is_new or (is_called and replaced and self._of_package(owner, name, value)):
                    self._add_attribute(state, owner, name, value)

    def _add_attribute(self, state: State, owner: Any, name: str, value: Any) -> None:
        name = f"{owner.__qualname__ if isinstance(owner, type) else owner.__name__}.{name}"
        state.note(name)
        state.add_code(value, f"`{name}`")

    def _add_attributes(self, state: State) -> None:
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

    def _others(self, state: State, owner: Any) -> Iterator[tuple[str, Any]]:
        """Return what others have set in a class or module, and code that was added may read."""
        torch, names = self._torch, state.reads.attributes
        if isinstance(owner, (torch._ops._Ops, torch._ops._OpNamespace)):
            for name in [*vars(owner)] if state.reads.any_attribute else names & {*vars(owner)}:
                value = vars(owner)[name]
                if isinstance(value, ModuleType) or not self._registrations.made(value):
                    yield name, value
            return
        is_read = any(owner is each for each in state.reads.owners)
        if isinstance(owner, ModuleType) and is_read:
            for name in names & {*vars(owner)}:
                value = vars(owner)[name]
                others = callable(value) and not self._known.is_library_code(value)
                if others or isinstance(value, ModuleType) or may_be_set(owner, name, value):
                    yield name, value
            for name in names & {*vars(owner).get("_config", ())}:  # torch keeps settings apart
                yield name, getattr(owner, name)
        if self._originals.is_noted(owner):
            for name, value, replaced in self._originals.changes(owner):
                unread = name in UNREACHED or not (replaced or is_special(name))
                if (
                    state.reads.any_attribute
                    or name in names
                    or not (unread or self._of_package(owner, name, value))
                ):
                    yield name, value
        elif isinstance(owner, type) and self._known.defines(owner):
            for name, value in vars(owner).items():
                code = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if isinstance(code, FunctionType):
                    if not self._known.is_library_method(owner, code):
                        yield name, value
                elif is_read and name in names and may_be_set(owner, name, value):
                    yield name, value
