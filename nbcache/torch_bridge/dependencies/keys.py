"""Adds what a graph depends on to torch's keys."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.fingerprints.digests import Fingerprint, Unknown
from nbcache.torch_bridge.dependencies.any_graph import GIVEN, AnyGraph
from nbcache.torch_bridge.dependencies.global_state import add_graphs_autocast, flags, settings_in
from nbcache.torch_bridge.dependencies.graph_fingerprint import State
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
    names_of,
    operators_of,
    parts_of,
    shapes,
    training_of,
    within,
)
from nbcache.torch_bridge.dependencies.hit_guards import choose_entries, guard_hits
from nbcache.torch_bridge.dependencies.user_passes import compilers
from nbcache.torch_bridge.patches import Intended

if TYPE_CHECKING:
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["Dependencies"]

_ATTRIBUTE = "nbcache_dependencies"
"""What torch's keys call it; torch's own list of their parts shows the name."""


class Dependencies(AnyGraph):
    """Adds to torch's keys what they leave out."""

    # --- hooks ----------------------------------------------------------------------------------

    def follow_keys(self, codecache: ModuleType, context: Context, patches: Patches) -> None:
        """Add to what keys are made of: `FxGraphHashDetails`, which AOTAutograd's extends."""

        class Undetermined(codecache.BypassFxGraphCache, Intended):  # type: ignore[name-defined]
            """It cannot be told what a graph depends on; torch bypasses its caches."""

        def complete(original: Any, details: Any, gm: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(details, gm, inputs, *args, **kwargs)
            self._here.is_plain = False
            if self.off:
                return result
            try:
                self._here.settings = settings_in(details)
                found = self.of(gm, inputs, details)
            except Unknown as error:
                raise Undetermined(f"nbcache cannot tell what this graph depends on: {error}") from error
            except Exception as error:
                self.fail(error)
                return result
            if found is not None:
                setattr(details, _ATTRIBUTE, found)
            return result

        patches.hook(codecache.FxGraphHashDetails, "__init__", complete)

    def follow_hits(self, results: ModuleType, context: Context, patches: Patches) -> None:
        """Have a hit guard what a compile would."""
        guard_hits(self._torch, results, patches)

    def follow_entries(self, cache: ModuleType, context: Context, patches: Patches) -> None:
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
                words = "a graph is not kept: what torch compiles with changed before its backward"
                context.session.notice(words)
                return None
            return original(key, entry, *args, **kwargs)

        patches.hook(cache, "autograd_cache_key", autograd_cache_key)
        patches.hook(cache.AOTAutogradCache, "save", save)

    def _has_changed(self, key: str) -> bool:
        """Tell whether any graph would be compiled otherwise now than when this key was made."""
        if self.off:
            return False
        try:
            self._here.code = self._code(self._for_any_graph())
        except Unknown:
            return True
        return self._compiled_by.get(key) != self._by()

    def last_is_plain(self) -> bool:
        """Return whether `of_any_graph` covers all that the last graph depends on beyond torch's key."""
        return not self.off and getattr(self._here, "is_plain", False)

    def _code(self, state: State) -> str:
        """Return a text that changes with the code that any graph may be compiled with."""
        return state.digest + self._of_operators()

    def _by(self) -> tuple[str, str]:
        """Return the code and the settings that this thread compiles with."""
        return getattr(self._here, "code", self._empty), getattr(self._here, "settings", "")

    # --- what a graph depends on ----------------------------------------------------------------

    def of(self, graph: Any, example_inputs: Sequence[Any], details: Any) -> str | None:
        """Return the digest of all that `graph` depends on beyond torch's key; None where there is nothing.

        `details` is what torch makes its key of. Unknown where it cannot be told.
        """
        aot_config = getattr(details, "aot_config", None)  # AOTAutograd's, for the graph that Dynamo made
        state = self._for_any_graph()
        any_graphs = state.digest
        self._here.code = self._code(state)
        decompositions = self._add_given(state, aot_config)
        operators = operators_of(self._torch, graph)
        self._add_called(state, methods_of(self._torch, graph), names_of(operators))
        for operator in operators:
            if not self._registrations.made(operator):
                self._add_operator(state, operator)
        for held in modules_of(self._torch, graph):
            if not (self._known.is_library_code(held) and self._known.is_library_code(type(held))):
                state.add(held, "what a module that the graph calls is made of")
        for context in checkpointing_of(self._torch, graph):
            state.add(context, "what selective checkpointing keeps")
        for number, said in annotations_of(self._torch, graph):
            state.note(number)
            state.add(said, "an annotation of a node")
        told = [
            *flags(self._torch),
            *shapes(self._torch, graph, example_inputs),
            *frozen_of(self._torch, graph),
        ]
        for name, value in told if aot_config else [*told, *training_of(self._torch, graph)]:
            state.note(name, value)
        if (dtype := self._torch.get_default_dtype()) is not self._torch.float32:
            state.note("default dtype", dtype)  # not in the keys of torch 2.11
        if aot_config is not None:
            if fixes_numbers(self._torch, graph):
                raise Unknown("torch may compile in a float that varies")
            add_graphs_autocast(self._torch, state, operators, details)
            self._add_inputs(state, graph, example_inputs)
            state.gets_graphs |= self._add_compilers(state)
        self._here.is_plain = state.digest == any_graphs and not (state.of_users or state.gets_graphs)
        if state.digest != self._empty:
            self._add_reachable(state, decompositions)
            add_metadata(self._torch, state, graph, passes=state.gets_graphs)
        return None if state.digest == self._empty else state.digest

    def _add_inputs(self, state: State, graph: Any, example_inputs: Sequence[Any]) -> None:
        """Add what others have written of the classes of tensors, and which inputs share memory."""
        torch = self._torch
        kinds: dict[type, None] = {}
        for value, context in within(torch, [*example_inputs, *constants_of(torch, graph)]):
            kinds[type(value)] = None
            if self._known.is_library_code(type(value)):
                kinds |= dict.fromkeys(map(type, parts_of(context)))
            else:
                state.add(context, f"what {type(value).__qualname__} keeps beside its tensors")
        for value, context in within(torch, intermediates_of(torch, graph)):
            kinds |= dict.fromkeys(map(type, (value, *parts_of(context))))
        for kind in kinds:
            self._add_kind(state, kind)
        for told in memory_of(torch, example_inputs):
            state.note(*told)

    def _add_kind(self, state: State, kind: type) -> None:
        """Add a class that is not torch's, or what others have put into one that is."""
        if not self._known.is_library_code(kind):
            state.add(kind, f"the class {kind.__qualname__}")
            return
        for owner in kind.__mro__:
            for name, value in () if self._originals.is_noted(owner) else self._others(state, owner):
                self._add_attribute(state, owner, name, value)

    def _add_given(self, state: State, aot_config: Any) -> Any:
        """Add what others have put into the decompositions that AOTAutograd was given, and return those."""
        given = getattr(aot_config, "decompositions", None)
        if given is not None:
            self._note_given(given)
            self._add_table(state, GIVEN, given)
        return given

    def _add_compilers(self, state: Fingerprint) -> bool:
        """Add what AOTAutograd was given to compile with, unless it is inductor's; tell if there was any."""
        given = compilers()
        for name, code in given:
            state.note(name)
            state.add(code, f"what was given as {name}")
        return bool(given)
