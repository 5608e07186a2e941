"""Adds what a graph depends on to torch's keys: notes it as it comes to be, and digests it for each graph."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.fingerprints.digests import Fingerprint, Unknown
from nbcache.core.fingerprints.known_code import Known
from nbcache.core.log import logger
from nbcache.torch_bridge.dependencies.given import code_in_settings, compilers, stored_by
from nbcache.torch_bridge.dependencies.graphs import (
    constants_of,
    geometry,
    intermediates_of,
    metadata_of,
    methods_of,
    operators_of,
    sharing,
    within,
)
from nbcache.torch_bridge.dependencies.in_force import add_autocast, add_run_into, flags
from nbcache.torch_bridge.dependencies.operators import Registrations
from nbcache.torch_bridge.dependencies.originals import ABSENT, Originals, Replacements, may_be_set
from nbcache.torch_bridge.dependencies.tables import (
    DEREGISTERED,
    UNREACHED,
    all_tables,
    handed_over,
    is_generator,
    namespaces,
    passes,
    patterns_of,
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


class _Unguarded(Intended):
    """A hit would lack a guard; torch compiles instead."""


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
        self._values = TorchValues(torch, self._known, self._registrations)
        self._originals = Originals(self._known.made)
        self._replacements = Replacements(self._known)
        self._ours = os.path.join(ours, "")
        self._patterns: list[tuple[Any, Any, bool]] = []
        """Entries of the pattern matcher that others have made, where they are, and whether first there."""
        self._places: dict[int, str] = {}
        """Where torch keeps those passes, of several places the first."""
        self._read: list[Any] = [torch.Tensor, *namespaces(torch)]
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
        for _, table in tables_of(module):
            self._originals.note(table, late=late)

    def _is_late(self, module: ModuleType) -> bool:
        """Tell whether others than torch may have changed what a module holds already."""
        return self._late and not getattr(module.__spec__, "_initializing", False)

    def follow_attributes(self, torch: ModuleType, session: Session, patches: Patches) -> None:
        """Note what torch's classes and modules hold whose attributes code may read."""
        modules = {torch.nn.Module, *subclasses(torch.nn.Module)}
        for owner in (*self._read, torch.autograd.Function, *filter(self._known.has, modules)):
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
            for entry, pass_dict in patterns_of(pattern_matcher):
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
                logger.info("what a graph depends on could not be told", exc_info=error)
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
                    for numbers in sharing(self._torch, args):
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
        state = Fingerprint(self._known, [self._values], _IDS)
        empty = state.digest
        self._registrations.add_replaced(state)
        self._add_tables(state, aot_config)
        self._add_patterns(state)
        settings = [*code_in_settings()]
        for name, value in settings:
            state.note(name)
            self._add_setting(state, name, value)
        self._add_replaced(state, methods_of(self._torch, graph))
        operators = operators_of(self._torch, graph)
        for operator in operators:
            if not self._is_torchs(operator):
                self._add_operator(state, operator)
        for name, value in flags(self._torch):
            state.note(name, value)
        if (dtype := self._torch.get_default_dtype()) is not self._torch.float32:
            state.note("default dtype", dtype)  # not in the keys of torch 2.11
        if aot_config is not None:
            self._add_autocast(state, operators)
            self._add_inputs(state, graph, example_inputs)
            self._add_compilers(state)
        if state.digest != empty:
            passes = bool(settings or self._patterns)
            add_run_into(self._torch, state, self._known, passes=passes)
            self._add_attributes(state)
            self._add_metadata(state, graph)
        return None if state.digest == empty else state.digest

    def _add_setting(self, state: Fingerprint, name: str, value: Any) -> None:
        """Add what a setting holds; where `uuid` tells an instance's state, only what else can be told of it.

        What it stores itself while it runs does not count: a pass does not run for graphs that are hit.
        """
        if hasattr(value, "uuid"):
            state.add(type(value), f"the setting {name}")
            own = Fingerprint(self._known, [self._values], _IDS | stored_by(type(value)))
            with suppress(Unknown):
                own.add(value)
                state.note(own.digest)
                state.reads.attributes |= own.reads.attributes
                state.reads.functions |= own.reads.functions
        else:
            state.add(value, f"the setting {name}")

    def _add_operator(self, state: Fingerprint, operator: Any) -> None:
        """Add what a graph calls, or what something is registered for: no kernel of it runs meanwhile."""
        if isinstance(operator, self._torch._ops.OpOverload):
            self._registrations.add(state, operator, called=False)
        else:
            state.add(operator)

    def _add_metadata(self, state: Fingerprint, graph: Any) -> None:
        """Add what nodes of the graph hold beside their operators, where code that was added reads it."""
        names = state.reads.attributes
        if "meta" in names:
            for name, text in metadata_of(self._torch, graph, names):
                state.note(name, text)

    def _is_torchs(self, target: Any) -> bool:
        if isinstance(target, self._torch._ops.OpOverload):
            return self._registrations.is_torchs(target._name)
        if isinstance(target, self._torch._ops.OpOverloadPacket):
            return all(self._is_torchs(getattr(target, name)) for name in target.overloads())
        return self._known.made(target) and (callable(target) or self._known.made(type(target)))

    def _add_autocast(self, state: Fingerprint, operators: Collection[Any]) -> None:
        """Add autocast's state where a graph runs under it, or enters it without a dtype of its own.

        torch 2.11's key leaves the dtype out, and until 2.14 where autocast is off around the graph.
        """
        enter = self._torch.amp.autocast_mode._enter_autocast
        if self._torch._C._is_any_autocast_enabled() or any(each is enter for each in operators):
            add_autocast(self._torch, state)

    def _add_inputs(self, state: Fingerprint, graph: Any, example_inputs: Sequence[Any]) -> None:
        """Add the classes of inputs and constants that are not torch's, and which inputs share memory."""
        torch = self._torch
        kinds: dict[type, None] = {}
        for value, context in within(torch, [*example_inputs, *constants_of(torch, graph)]):
            kinds[type(value)] = None
            if self._known.made(type(value)):
                kinds[type(context)] = None
            else:
                state.add(context, f"what {type(value).__qualname__} keeps beside its tensors")
        kinds |= dict.fromkeys(type(value) for value, _ in within(torch, intermediates_of(torch, graph)))
        for kind in kinds:
            if not self._known.made(kind):
                state.add(kind, f"the class {kind.__qualname__}")
        if shared := sharing(self._torch, example_inputs):
            state.note("inputs that share memory", shared)
            for number in (number for numbers in shared for number in numbers):
                value = example_inputs[number]
                for each in (value, value._base):  # AOTAutograd compiles for the base of views
                    state.note(None if each is None else geometry(each))

    def _add_tables(self, state: Fingerprint, aot_config: Any) -> None:
        """Add what others have put in torch's tables, and in the decompositions given to AOTAutograd."""
        tables = [*all_tables()]
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
                if value is ABSENT and name in DEREGISTERED:
                    continue
                state.note(name)
                with state.within(f"an entry of torch's {name}"):
                    self._add_operator(state, key)
                    if value is not key:
                        state.add(value)

    def _is_of_import(self, key: Any, value: Any) -> bool:
        """Tell whether a module of torch's has brought an operator and what there is for it: one is new."""
        if value is not key and type(key).__module__ != getattr(value, "__module__", None):
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

    def _add_patterns(self, state: Fingerprint) -> None:
        if self._patterns:
            matcher = sys.modules["torch._inductor.pattern_matcher"]
            if any(id(pass_dict) not in self._places for _, pass_dict, _ in self._patterns):
                for place, found in passes(matcher):
                    self._places[id(found)] = min(place, self._places.get(id(found), place))
            for entry, pass_dict, first in self._patterns:
                state.note("pattern", self._places.setdefault(id(pass_dict), ""), first)
                state.add(entry, "a pattern")

    def _add_compilers(self, state: Fingerprint) -> None:
        """Add what AOTAutograd was given to compile with, unless it is all inductor's."""
        for name, code in compilers(sys._getframe()):
            state.note(name)
            state.add(code, f"what was given as {name}")

    def _add_replaced(self, state: Fingerprint, methods: Collection[str]) -> None:
        """Add what others have put in place of attributes of torch's that any graph may run into.

        `methods` are those of tensors that this graph calls.
        """
        for owner in (*self._read, *self._generators):
            called = methods if owner is self._torch.Tensor else ()
            for name, value, replaced in self._originals.changes(owner):
                if name not in UNREACHED and (
                    replaced or owner not in self._read or _is_special(name) or name in called
                ):
                    self._add_attribute(state, owner, name, value)
        for place, function in self._replacements.found():
            state.note(place)
            state.add(function, f"`{place}`")

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
                if isinstance(value, ModuleType) or not self._is_torchs(value):
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
                unread = name in UNREACHED or not (replaced or _is_special(name))
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


def _made(known: Known, pattern: Any) -> bool:
    return all(known.made(value) for value in vars(pattern).values() if callable(value))


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
