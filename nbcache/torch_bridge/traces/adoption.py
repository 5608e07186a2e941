"""Adopt a trace that fits: torch builds its guards, and its graph is loaded from AOTAutograd's cache."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from nbcache.artifacts.traces import RESUME_KINDS, Trace, code_from, value_from
from nbcache.core.canonical_json import corrupt
from nbcache.torch_bridge.patches import Patches
from nbcache.torch_bridge.traces.fact_checks import FittingTrace, note_sizes
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

__all__ = ["Adoption", "adopt", "load_graph"]


class Adoption:
    """Replaces Dynamo's output: code, guards, and the globals that were set for the code."""

    def __init__(self, output: Any, cleanups: list[Any], scope: dict[str, Any], added: list[str]) -> None:
        self.output = output
        self._cleanups = cleanups
        self._scope = scope
        self._added = added

    def take_back(self) -> None:
        """Remove the globals that were set, because the code won't run."""
        for cleanup in self._cleanups:
            if cleanup.name in cleanup.scope:
                cleanup()
        for name in self._added:
            self._scope.pop(name, None)
        self._cleanups.clear()


def adopt(
    torch: ModuleType,
    fitting: FittingTrace,
    frame: Frame,
    hooks: Any,
    cache_entries: Any,
    load: Callable[[str, Sequence[Any]], Callable[..., Any]],
    patches: Patches,
) -> Adoption:
    """Return an Adoption for a frame, with guards that torch has built and that pass.

    `load(key, inputs)` returns the compiled graph with an AOTAutograd key, and raises NoTrace if it is not
    stored. The hook on torch's guard builder belongs to `places`.
    """
    import torch._dynamo.convert_frame as convert_frame
    import torch._dynamo.guards as guards
    import torch._dynamo.utils as utils

    trace, names, sources = fitting.read.trace, fitting.read.names, fitting.read.sources
    code = fitting.read.code
    values = dict(zip(sources, fitting.values, strict=True))
    inputs = [fitting.values[index] for index in trace.inputs]
    _check_overlap(torch, inputs)
    added = [name for name in trace.imports if name not in frame.scope]
    cleanups: list[Any] = []
    result = Adoption(None, cleanups, frame.scope, added)
    try:
        for name in added:
            frame.scope[name] = sys.modules[trace.imports[name]]
        for name, kind, place in trace.installed:
            if kind in RESUME_KINDS:
                value: Any = _resuming_function(kind, place, code, frame, names)
            else:
                value = _global_value(kind, place, frame, trace, inputs, load)
            cleanups.append(utils.CleanupHook.create(frame.scope, names[name], value))
        graph = _output_graph(torch, fitting.read, frame, values)
        graph.cleanups = cleanups
        with _values_for_guards(guards, values, patches):
            manager = guards.CheckFunctionManager(
                frame.code,
                graph,
                cache_entries,
                hooks.guard_fail_fn if hooks else None,
                None,
                shape_code_parts=_no_shape_guards(guards),
            )
        if not manager.guard_manager.check(frame.values):
            raise NoTrace("torch's guards do not hold")
        output = convert_frame.DynamoOutput(
            tracer_output=_Tracer(graph, frame.scope),
            bytecode=restored_code(code, frame.code),
            pycode=[],
            last_attempt_start_time=None,
        )
        output.__dict__["build_guards"] = lambda *args, **kwargs: manager
        result.output = output
        note_sizes(torch, fitting.read, fitting.values, frame)
        return result
    except BaseException:
        result.take_back()
        raise


def _global_value(
    kind: str,
    place: str,
    frame: Frame,
    trace: Trace,
    inputs: Sequence[Any],
    load: Callable[[str, Sequence[Any]], Callable[..., Any]],
) -> Any:
    if kind == "graph":
        return load(trace.autograd_key, inputs)
    if kind == "builtins":
        return builtins_of(frame.scope)
    if kind == "module" and place in sys.modules:
        return sys.modules[place]
    if kind == "object":
        return object_at(*place.split(" ", 1))
    raise corrupt("a trace sets a global of an unknown kind")


def _resuming_function(
    kind: str, place: str, original: CodeType, frame: Frame, names: Mapping[str, str]
) -> Any:
    """Return the function that resumes after a graph break, or its factory if it has a closure."""
    try:
        stored = code_from(json.loads(place), constant_from)
    except ValueError as error:
        raise corrupt("a resuming function of a trace has no code") from error
    line = frame.code.co_firstlineno + stored.co_firstlineno - original.co_firstlineno
    code = restored_code(with_global_names(stored, names), frame.code).replace(co_firstlineno=max(0, line))
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


def _no_shape_guards(guards: ModuleType) -> Any:
    nothing = guards._ShapeGuardsHelper([])
    return guards.ShapeCodeParts(nothing, nothing, None, True, [])


@contextmanager
def _values_for_guards(guards: ModuleType, values: dict[Any, Any], patches: Patches) -> Iterator[None]:
    """Let torch's guard builder start with the values of sources that the check has read."""

    def init(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.src_get_value_cache.update(
            {source: value for source, value in values.items() if value is not ABSENT and value is not RUNS}
        )

    installed = patches.within()
    try:
        installed.hook(guards.GuardBuilder, "__init__", init)
        yield
    finally:
        installed.restore()


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


class _Tracer:
    """Replaces Dynamo's tracer output."""

    error_on_graph_break = False
    is_tracing_resume_prologue = False
    closure = None

    def __init__(self, graph: Any, scope: dict[str, Any]) -> None:
        self.output_graph = self.output_graph_for_cleanup = graph
        self.f_globals = scope

    def _cleanup_output_graph(self) -> None:
        """Do nothing, since there is no graph to clean up."""


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
