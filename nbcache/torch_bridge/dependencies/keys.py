"""Adds a digest of a graph's dependencies to torch's keys."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.fingerprints.digests import Fingerprint, Unknown
from nbcache.torch_bridge.dependencies.any_graph import GIVEN_DECOMPOSITIONS, AnyGraph
from nbcache.torch_bridge.dependencies.global_state import add_graph_autocast, flags, settings_in
from nbcache.torch_bridge.dependencies.graph_fingerprint import GraphFingerprint
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
    unusual_values,
)
from nbcache.torch_bridge.dependencies.hit_guards import choose_entries, guard_hits
from nbcache.torch_bridge.dependencies.user_passes import compilers
from nbcache.torch_bridge.patches import Intended

if TYPE_CHECKING:
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["Dependencies"]

_ATTRIBUTE = "nbcache_dependencies"
"""Name of the digest in torch's keys; torch's own list of their parts shows it."""


class Dependencies(AnyGraph):
    """Adds the dependencies that torch's keys leave out."""

    # --- hooks ----------------------------------------------------------------------------------

    def follow_keys(self, codecache: ModuleType, context: Context, patches: Patches) -> None:
        """Add the digest to `FxGraphHashDetails`, which the details of AOTAutograd's keys extend."""

        class Undetermined(codecache.BypassFxGraphCache, Intended):  # type: ignore[name-defined]
            """The dependencies of a graph are unknown, so torch bypasses its caches."""

        def complete(original: Any, details: Any, gm: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(details, gm, inputs, *args, **kwargs)
            self._thread.is_plain = False
            if self.off:
                return result
            try:
                self._thread.settings = settings_in(details)
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
        """Add the guards of a compile to each hit."""
        guard_hits(self._torch, results, patches)

    def follow_entries(self, cache: ModuleType, context: Context, patches: Patches) -> None:
        """Ignore entries that do not fit, and store none whose backward was compiled with other code.

        AOTAutograd computes the key for the forward, and compiles the backward at its first call.
        """
        choose_entries(self._torch, cache, patches)

        def autograd_cache_key(original: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._compiled_by[result[0]] = self._current_code_and_settings()
            return result

        def save(original: Any, key: str, entry: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(entry, "compiled_bw", None) is not None and self._has_changed(key):
                words = "a graph is not stored: code that torch compiles with changed before its backward"
                context.session.notice(words)
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

    def last_is_plain(self) -> bool:
        """Return whether `of_any_graph` covers all that the last graph depends on beyond torch's key."""
        return not self.off and getattr(self._thread, "is_plain", False)

    def _code(self, state: GraphFingerprint) -> str:
        """Return a text that changes with the third-party code that any graph may be compiled with."""
        return state.digest + self._digest_of_operators()

    def _current_code_and_settings(self) -> tuple[str, str]:
        """Return the code and the settings that this thread compiles with."""
        return getattr(self._thread, "code", self._empty), getattr(self._thread, "settings", "")

    # --- what a graph depends on ----------------------------------------------------------------

    def of(self, graph: Any, example_inputs: Sequence[Any], details: Any) -> str | None:
        """Return the digest of the dependencies of `graph` that torch's key leaves out, or None without any.

        torch computes its key from `details`. Unknown is raised if the behaviour of a dependency is unknown.
        """
        aot_config = getattr(details, "aot_config", None)  # of AOTAutograd's key for Dynamo's graph
        state = self._for_any_graph()
        any_graphs = state.digest
        self._thread.code = self._code(state)
        decompositions = self._add_decompositions(state, aot_config)
        operators = operators_of(self._torch, graph)
        self._add_called_attributes(state, methods_of(self._torch, graph), names_of(operators))
        for operator in operators:
            if not self._registrations.is_torch_target(operator):
                self._add_operator(state, operator)
        for value in modules_of(self._torch, graph):
            if not (self._known.is_library_code(value) and self._known.is_library_code(type(value))):
                state.add(value, "a part of a module that the graph calls")
        for context in checkpointing_of(self._torch, graph):
            state.add(context, "the policy of selective checkpointing")
        for number, annotation in annotations_of(self._torch, graph):
            state.note(number)
            state.add(annotation, "an annotation of a node")
        facts = [
            *flags(self._torch),
            *shapes(self._torch, graph, example_inputs),
            *frozen_of(self._torch, graph),
        ]
        for name, value in facts if aot_config else [*facts, *training_of(self._torch, graph)]:
            state.note(name, value)
        if (dtype := self._torch.get_default_dtype()) is not self._torch.float32:
            state.note("default dtype", dtype)  # not in the keys of torch 2.11
        if aot_config is not None:
            if fixes_numbers(self._torch, graph):
                raise Unknown("torch may compile a varying float into the graph")
            add_graph_autocast(self._torch, state, operators, details)
            self._add_inputs(state, graph, example_inputs)
            state.has_graph_passes |= self._add_compilers(state)
        self._thread.is_plain = state.digest == any_graphs and not (
            state.has_user_code or state.has_graph_passes
        )
        if state.digest != self._empty:
            self._add_reachable(state, decompositions)
            add_metadata(self._torch, state, graph, passes=state.has_graph_passes)
        return None if state.digest == self._empty else state.digest

    def _add_inputs(self, state: GraphFingerprint, graph: Any, example_inputs: Sequence[Any]) -> None:
        """Add third-party code in the classes of tensors, and the inputs that share memory."""
        torch = self._torch
        kinds: dict[type, None] = {}
        for value, context in unusual_values(torch, [*example_inputs, *constants_of(torch, graph)]):
            kinds[type(value)] = None
            if self._known.is_library_code(type(value)):
                kinds |= dict.fromkeys(map(type, parts_of(context)))
            else:
                state.add(context, f"the __tensor_flatten__ context of {type(value).__qualname__}")
        for value, context in unusual_values(torch, intermediates_of(torch, graph)):
            kinds |= dict.fromkeys(map(type, (value, *parts_of(context))))
        for kind in kinds:
            self._add_kind(state, kind)
        for facts in memory_of(torch, example_inputs):
            state.note(*facts)

    def _add_kind(self, state: GraphFingerprint, kind: type) -> None:
        """Add a third-party class, or the third-party attributes of a torch class."""
        if not self._known.is_library_code(kind):
            state.add(kind, f"the class {kind.__qualname__}")
            return
        for owner in kind.__mro__:
            for name, value in (
                () if self._originals.is_recorded(owner) else self._third_party_attributes(state, owner)
            ):
                self._add_attribute(state, owner, name, value)

    def _add_decompositions(self, state: GraphFingerprint, aot_config: Any) -> Any:
        """Add third-party entries of AOTAutograd's decompositions, and return the decompositions."""
        decompositions = getattr(aot_config, "decompositions", None)
        if decompositions is not None:
            self._record_decompositions(decompositions)
            self._add_table(state, GIVEN_DECOMPOSITIONS, decompositions)
        return decompositions

    def _add_compilers(self, state: Fingerprint) -> bool:
        """Add AOTAutograd's third-party compiler functions; return whether there are any."""
        functions = compilers()
        for name, code in functions:
            state.note(name)
            state.add(code, f"the argument {name}")
        return bool(functions)
