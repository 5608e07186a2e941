"""What a hit must have that no key tells: guards, inputs of the same kind, and values that are used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import local
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.torch_bridge.dependencies.graphs import is_leaf, sharing
from nbcache.torch_bridge.patches import Intended

if TYPE_CHECKING:
    from nbcache.torch_bridge.patches import Patches

__all__ = ["choose_entries", "guard_hits"]


class _Unguarded(Intended):
    """A hit may lack a guard; torch compiles instead."""


def guard_hits(torch: ModuleType, results: ModuleType, patches: Patches) -> None:
    """Have a hit guard what a compile would, and its backward run where the graph is kept.

    Where inputs of dynamic shapes share memory and one is written to, AOTAutograd adds a guard on which of
    them overlap. Nothing of it is stored. What fails in here makes torch compile this graph, as it may come
    from elsewhere.
    """
    from torch._functorch._aot_autograd.input_output_analysis import compute_overlapping_inputs
    from torch._inductor.output_code import CompiledFxGraph

    here = local()

    def guarded(original: Any, entry: Any, args: Any, aot_config: Any, *more: Any, **kwargs: Any) -> Any:
        try:
            if any(info.mutates_data for info in entry.runtime_metadata.input_info):
                for numbers in sharing(torch, args):
                    compute_overlapping_inputs(aot_config, list(args), numbers)
        except Exception as error:
            patches.fail(error)
            raise _Unguarded("nbcache failed to find which inputs overlap") from error
        metadata = entry.runtime_metadata
        here.donated = None
        if metadata.bw_donated_idxs:
            metadata.bw_donated_idxs = here.donated = _Donated(metadata.bw_donated_idxs)
        try:
            return original(entry, args, aot_config, *more, **kwargs)
        finally:
            here.donated = None

    def loaded(
        original: Any, graph: Any, inputs: Any, constants: Any, settings: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        done = original(graph, inputs, constants, settings, **kwargs)
        donated = getattr(here, "donated", None)
        if donated is not None and settings["is_backward"]:
            policy = getattr(torch._inductor.config, "cudagraph_policy", None)
            if not (settings["cudagraphs"] or policy):  # CUDA graphs tell inputs by their addresses
                donated.backward = graph
        return done

    patches.hook(CompiledFxGraph, "post_compile", loaded)
    result = results.GenericAOTAutogradResult
    patches.hook(result, "wrap_post_compile", guarded)


class _Donated(list[int]):
    """The numbers of the inputs that a stored backward was compiled to write to.

    A kernel that compiles the backward does so at its first call: where the graph is kept then, it writes to
    no input. A stored backward gets copies of these inputs where the graph is kept. torch compares this list
    to an empty one in such calls only, so that nothing of ours stands in others.
    """

    backward: Any = None
    """The `CompiledFxGraph`; without one, torch refuses to keep the graph."""

    copies = False
    """Whether the backward has been made to take copies."""

    def __ne__(self, none: object) -> bool:
        if self.backward is None:
            return super().__ne__(none)
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
    """Have AOTAutograd take what was stored for inputs of the same kind only, of all that lies under a key.

    It compiles for whether each input that requires a gradient is a leaf: others are detached where their
    gradient is None. Its key does not tell.
    """
    here = local()

    def lookup(
        original: Any, key: str, on_disk: bool, remote: bool, args: Any, *more: Any, **kwargs: Any
    ) -> Any:
        here.args = args
        try:
            return original(key, on_disk, remote, args, *more, **kwargs)
        finally:
            here.args = None

    def candidates(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        inputs = getattr(here, "args", None)
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
    """Return whether those of the inputs are leaves that were when this was stored.

    Where inputs share memory, the entry may tell one thing of several of them: there the key tells it of all.
    """
    if sharing(torch, args):
        return True
    infos = entry.runtime_metadata.input_info
    if len(infos) != len(args):
        return False
    pairs = zip(infos, args, strict=True)
    return all(info.is_leaf == is_leaf(value) for info, value in pairs if isinstance(value, torch.Tensor))
