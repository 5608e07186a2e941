"""Conditions of a hit that no key covers: guards, leaf inputs, and donated inputs of a backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import local
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.torch_bridge.dependencies.graphs import inputs_sharing_memory, is_leaf
from nbcache.torch_bridge.patches import Intended

if TYPE_CHECKING:
    from nbcache.torch_bridge.patches import Patches


class _Unguarded(Intended):
    """A hit may lack a guard, so torch must compile."""


def guard_hits(torch: ModuleType, results: ModuleType, patches: Patches) -> None:
    """Add the guards of a compile to each hit, and let its backward run with `retain_graph=True`.

    If inputs of dynamic shapes share memory and one is mutated, AOTAutograd adds a guard on which of them
    overlap, and stores no such guard. If this check raises an error, torch compiles the graph.
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
            if not (settings["cudagraphs"] or policy):  # CUDA graphs identify inputs by address
                donated.backward = graph
        return result

    patches.hook(CompiledFxGraph, "post_compile", post_compile)
    result = results.GenericAOTAutogradResult
    patches.hook(result, "wrap_post_compile", wrap_post_compile)


class _DonatedInputs(list[int]):
    """The indexes of the inputs that a stored backward was compiled to overwrite.

    A kernel that compiles the backward at its first call overwrites no input if that call retains the graph.
    A stored backward gets copies of these inputs instead. torch compares this list with an empty one in calls
    that retain the graph only, so other calls run without nbcache.
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

    AOTAutograd compiles for which inputs that require a gradient are leaves: it detaches the others if their
    gradient is None. Its key leaves that out.
    """
    thread = local()

    def lookup(
        original: Any, key: str, on_disk: bool, remote: bool, args: Any, *more: Any, **kwargs: Any
    ) -> Any:
        thread.args = args
        try:
            return original(key, on_disk, remote, args, *more, **kwargs)
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
    """Return whether the same inputs are leaves as when the entry was stored.

    If inputs share memory, one record of the entry may describe several; then the key covers leaves.
    """
    if inputs_sharing_memory(torch, args):
        return True
    infos = entry.runtime_metadata.input_info
    if len(infos) != len(args):
        return False
    pairs = zip(infos, args, strict=True)
    return all(info.is_leaf == is_leaf(value) for info, value in pairs if isinstance(value, torch.Tensor))
