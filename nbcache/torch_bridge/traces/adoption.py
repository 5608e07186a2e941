"""Adopt a trace that fits: torch builds its guards, and its graph is loaded from AOTAutograd's cache."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from nbcache.artifacts.traces import RESUME_KINDS, code_from, value_from
from nbcache.core.canonical_json import corrupt
from nbcache.torch_bridge.patches import Patches
from nbcache.torch_bridge.traces.fact_checks import note_sizes
from nbcache.torch_bridge.traces.facts import (
    ABSENT,
    RUNS,
    Frame,
    NoTrace,
    builtins_of,
    constant_from,
    object_at,
)
from nbcache.torch_bridge.traces.trace_rows import ReadTrace, restored_code, with_global_names


@dataclass
class Adoption:
    """Replaces Dynamo's output: code, guards, and the globals that were set for the code."""

    scope: dict[str, Any]
    imported: list[str]
    """Names of the globals that were set to modules."""
    cleanups: list[Any] = field(default_factory=list)
    """torch's cleanups of the other globals."""
    output: Any = None

    def take_back(self) -> None:
        """Remove the globals that were set, because the code won't run."""
        for cleanup in self.cleanups:
            if cleanup.name in cleanup.scope:
                cleanup()
        for name in self.imported:
            self.scope.pop(name, None)
        self.cleanups.clear()


def adopt(
    torch: ModuleType,
    read: ReadTrace,
    source_values: Sequence[Any],
    frame: Frame,
    hooks: Any,
    cache_entries: Any,
    load: Callable[[str, Sequence[Any]], Callable[..., Any]],
    patches: Patches,
) -> Adoption:
    """Return an Adoption for a frame, with guards that torch has built and that pass.

    `load(key, inputs)` returns the compiled graph with an AOTAutograd key, and raises NoTrace if it is not
    stored. The hook on torch's guard builder belongs to `patches`.
    """
    import torch._dynamo.convert_frame as convert_frame
    import torch._dynamo.guards as guards
    import torch._dynamo.utils as utils

    trace, names, code = read.trace, read.names, read.code
    values = dict(zip(read.sources, source_values, strict=True))
    inputs = [source_values[index] for index in trace.inputs]
    _check_overlap(torch, inputs)
    result = Adoption(frame.scope, [name for name in trace.imports if name not in frame.scope])
    no_shapes = guards._ShapeGuardsHelper([])

    def global_value(kind: str, place: str) -> Any:
        if kind in RESUME_KINDS:
            return _resume_function(kind, place, read, frame)
        if kind == "graph":
            return load(trace.autograd_key, inputs)
        if kind == "builtins":
            return builtins_of(frame.scope)
        if kind == "module" and place in sys.modules:
            return sys.modules[place]
        if kind == "object":
            return object_at(*place.split(" ", 1))
        raise corrupt("a trace sets a global of an unknown kind")

    def start_with_values(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.src_get_value_cache.update(
            {source: value for source, value in values.items() if value is not ABSENT and value is not RUNS}
        )

    try:
        for name in result.imported:
            frame.scope[name] = sys.modules[trace.imports[name]]
        for name, kind, place in trace.installed:
            value = global_value(kind, place)
            result.cleanups.append(utils.CleanupHook.create(frame.scope, names[name], value))
        graph = _output_graph(torch, read, frame, values)
        graph.cleanups = result.cleanups
        shapes = guards.ShapeCodeParts(no_shapes, no_shapes, None, True, [])
        fail_hook = hooks.guard_fail_fn if hooks else None
        builder_patches = patches.within()
        try:
            builder_patches.hook(guards.GuardBuilder, "__init__", start_with_values)
            manager = guards.CheckFunctionManager(
                frame.code, graph, cache_entries, fail_hook, None, shape_code_parts=shapes
            )
        finally:
            builder_patches.restore()
        if not manager.guard_manager.check(frame.values):
            raise NoTrace("torch's guards do not hold")
        tracer = SimpleNamespace(
            error_on_graph_break=False,
            is_tracing_resume_prologue=False,
            closure=None,
            output_graph=graph,
            output_graph_for_cleanup=graph,
            f_globals=frame.scope,
            _cleanup_output_graph=lambda: None,
        )
        result.output = convert_frame.DynamoOutput(
            tracer_output=tracer,
            bytecode=restored_code(code, frame.code),
            pycode=[],
            last_attempt_start_time=None,
        )
        result.output.__dict__["build_guards"] = lambda *args, **kwargs: manager
        note_sizes(torch, read, source_values, frame)
        return result
    except BaseException:
        result.take_back()
        raise


def _resume_function(kind: str, place: str, read: ReadTrace, frame: Frame) -> Any:
    """Return the function that resumes after a graph break, or its factory if it has a closure."""
    try:
        stored = code_from(json.loads(place), constant_from)
    except ValueError as error:
        raise corrupt("a resuming function of a trace has no code") from error
    line = frame.code.co_firstlineno + stored.co_firstlineno - read.code.co_firstlineno
    code = restored_code(with_global_names(stored, read.names), frame.code)
    code = code.replace(co_firstlineno=max(0, line))
    if kind == RESUME_KINDS[0]:
        return FunctionType(code, frame.scope, code.co_name)

    def make_function(closure: tuple[CellType, ...]) -> FunctionType:
        return FunctionType(code, frame.scope, code.co_name, None, closure)

    return make_function


def _check_overlap(torch: ModuleType, inputs: Sequence[Any]) -> None:
    """Raise NoTrace if two inputs share memory: AOTAutograd compiles graphs for the inputs that do."""
    addresses = [value.untyped_storage().data_ptr() for value in inputs if isinstance(value, torch.Tensor)]
    allocated = [address for address in addresses if address]
    if len({*allocated}) != len(allocated):
        raise NoTrace("some of its inputs share memory")


def _output_graph(torch: ModuleType, read: ReadTrace, frame: Frame, values: Mapping[Any, Any]) -> Any:
    """Return an object with those parts of a Dynamo graph that torch reads after tracing."""
    import torch._dynamo.output_graph as output_graph
    from torch._guards import GuardsSet, TracingContext
    from torch.utils._ordered_set import OrderedSet

    trace, names, sources = read.trace, read.names, read.sources
    state = torch._C._dynamo.guards.GlobalStateGuard()
    state.__setstate__(trace.state)
    builtins = next((names[name] for name, kind, _ in trace.installed if kind == "builtins"), None)
    guards_state = output_graph.OutputGraphGuardsState(
        local_scope=frame.values,
        global_scope=frame.scope,
        torch_function_mode_stack=[],
        guard_on_key_order={sources[index] for index in trace.key_order},
        input_source_to_sizes_strides={
            sources[index]: {"size": value_from(size), "stride": value_from(stride)}
            for index, size, stride in trace.shapes
        },
        dual_level=-1,
        functorch_layers=[],
        current_device=None,
        global_state_guard=state,
        _guards=GuardsSet(OrderedSet(read.guards(values))),
        _aotautograd_guards=[],
        skip_guards_check=True,
        name_of_builtins_dict_key_in_fglobals=builtins,
    )

    class Graph(output_graph.OutputGraphCommon):
        root_tx = None
        package = None
        placeholders: tuple[Any, ...] = ()
        non_compliant_ops: frozenset[Any] = frozenset()
        compliant_custom_ops: frozenset[Any] = frozenset()

        def __init__(self) -> None:
            super().__init__(guards_state, dict(trace.imports))
            self.graph = torch.fx.Graph()
            self.tracing_context = TracingContext(None)
            self.output_instructions: list[Any] = []
            self.tracked_fakes: list[Any] = []

        def get_replayed_side_effect_source_refs(self, **kwargs: Any) -> list[str]:
            return list(trace.replayed)

        def is_empty_graph(self) -> bool:
            return not trace.autograd_key

        def has_outputs(self) -> bool:
            return bool(trace.has_outputs)

        def count_calls(self) -> int:
            return trace.operators

        def get_graph_sizes_structured(self) -> dict[str, Any]:
            return {}

    return Graph()


def load_graph(options: Mapping[str, Any], key: str, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return the compiled graph with this AOTAutograd key, for these inductor options."""
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
        match = cache.AOTAutogradCache._lookup(key, True, False, list(inputs), info, None)
        if match is None:
            raise NoTrace("its graph is no longer stored, or does not fit these inputs")
        entry = match[0]
        if entry.guards_expr:
            raise NoTrace("its graph has guards")
        settings = {
            "cudagraphs": BoxedBool(inductor_config.triton.cudagraphs),
            "boxed_forward_device_index": BoxedDeviceIndex(None),
        }
        run = entry.wrap_post_compile(list(inputs), entry.sanitized_aot_config, settings)
        times = {
            "key": key,
            "forward_time_saved_ms": entry.forward_time_taken_ns // 1e6,
            "backward_time_saved_ms": entry.backward_time_taken_ns // 1e6,
        }
        CompileEventLogger.instant("autograd_cache_hit", metadata=times)

    def forward(*args: Any) -> Any:
        return run(list(args))

    run_only: Callable[..., Any] = dynamo.disable(forward, reason="do not trace Dynamo-compiled graph")
    return run_only
