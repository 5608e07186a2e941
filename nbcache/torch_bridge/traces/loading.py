"""Loads the graph that an adopted trace runs, from AOTAutograd's cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbcache.torch_bridge.traces.values import Untold

__all__ = ["loaded"]


def loaded(options: Mapping[str, Any], key: str, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return what runs the graph of a key of AOTAutograd's, compiled with these options of inductor's."""
    import torch._dynamo as dynamo
    import torch._functorch._aot_autograd.autograd_cache as cache
    import torch._inductor.config as inductor_config
    from torch._dynamo.utils import CompileEventLogger, dynamo_timed
    from torch._guards import TracingContext, tracing
    from torch._inductor.cudagraph_utils import BoxedDeviceIndex
    from torch._inductor.utils import BoxedBool
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    info: dict[str, Any] = {}
    context = TracingContext(FakeTensorMode(shape_env=ShapeEnv()))
    with (
        dynamo_timed("backend_compile", log_pt2_compile_event=True),
        tracing(context),
        inductor_config.patch(dict(options)),
    ):
        found = cache.AOTAutogradCache._lookup(key, True, False, list(inputs), info, None)
        if found is None:
            raise Untold("the graph is not stored any more, or does not fit these inputs")
        entry = found[0]
        if entry.guards_expr:
            raise Untold("the graph has guards of its own")
        settings = {
            "cudagraphs": BoxedBool(inductor_config.triton.cudagraphs),
            "boxed_forward_device_index": BoxedDeviceIndex(None),
        }
        run = entry.wrap_post_compile(list(inputs), entry.sanitized_aot_config, settings)
        told = {
            "key": key,
            "forward_time_saved_ms": entry.forward_time_taken_ns // 1e6,
            "backward_time_saved_ms": entry.backward_time_taken_ns // 1e6,
        }
        CompileEventLogger.instant("autograd_cache_hit", metadata=told)

    def forward(*args: Any) -> Any:
        return run(list(args))

    run_only: Callable[..., Any] = dynamo.disable(forward, reason="do not trace Dynamo-compiled graph")
    return run_only
