"""The table of all hooks: each part of nbcache, what it replaces in torch, and what is lost without it.

Another torch costs the parts that it has no place for, and no more. `nbcache doctor` says which are off,
docs/architecture.md shows the table, and the tests take each place away in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbcache.torch_bridge import (
    TorchBridge,
    contents,
    events,
    lookups,
    portable,
    prewarm,
    recording,
    templates,
)
from nbcache.torch_bridge.dependencies.keys import Dependencies
from nbcache.torch_bridge.dependencies.tables import GENERATORS, TABLES
from nbcache.torch_bridge.folders import DefaultFolder
from nbcache.torch_bridge.hooks import Loss, Part
from nbcache.torch_bridge.providers import (
    autotune,
    cpp_kernels,
    gemm_autotune,
    graphs,
    probes,
    profile,
    remote_caches,
    triton_kernels,
    triton_modules,
)
from nbcache.torch_bridge.traces.kernel_traces import Traces

__all__ = ["PARTS", "make_bridge"]

_ASYNC_COMPILE = "torch._inductor.async_compile"
_CODECACHE = "torch._inductor.codecache"
_COMMON = "torch._inductor.codegen.common"
_ENTRIES = "torch._functorch._aot_autograd.autograd_cache"
_FRAMES = "torch._dynamo.convert_frame"
_HEURISTICS = "torch._inductor.runtime.triton_heuristics"
_RUNTIME = "torch._inductor.runtime"
_TUNING = f"{_RUNTIME}.autotune_cache"
_VARIABLES = "torch._dynamo.variables"
_NO_ENTRIES = "AOTAutograd's cache is off: it works on each graph again, and inductor's part of it hits"
_NO_BASELINE = "what is compiled is for this CPU only"
_MIXED = "one's instructions with the other's flags compute something else"
_UNSAFE = "torch's default folder is used whoever made it"
_SAME_KEYS = "the keys of graphs differ from those with it, so that these miss"
_TUNED_AGAIN = "kernels of restored graphs are tuned again"


def _part(
    install: Callable[..., None],
    module: str | tuple[str, ...],
    purpose: str,
    without: str,
    *hooks: str,
    **more: Any,
) -> Part:
    return Part(install, module, hooks, purpose, without, **more)


def _key_part(install: Callable[..., None], module: str | tuple[str, ...], purpose: str, *hooks: str) -> Part:
    without, because = "nothing is stored or restored", "no key holds it: a stale graph would hit"
    return Part(install, module, hooks, purpose, without, Loss.ALL, because, owner="keys")


def _trace_part(install: Callable[..., None], module: str, purpose: str, *hooks: str, **more: Any) -> Part:
    without = "there are no traces"
    return Part(install, module, hooks, purpose, without, owner="traces", flag="has_traces", **more)


PARTS = (
    _key_part(
        Dependencies.follow_operators,
        "torch",
        "note the code that is registered for operators",
        "torch.library:Library.impl(self, op_name, fn, dispatch_key, …)",
        "torch.library:Library._destroy(self)",
        "torch.library:Library.fallback(self, fn, dispatch_key, …)",
        "torch._ops:OperatorBase.py_impl(self, k, …)",
    ),
    _key_part(
        Dependencies.follow_attributes,
        "torch",
        "note what torch's classes and modules hold, to see what others replace",
    ),
    _part(
        DefaultFolder.replace_name,
        (f"{_RUNTIME}.cache_dir_utils", f"{_RUNTIME}.runtime_utils", _CODECACHE),
        "have torch use its default folder only where nobody else can write to it",
        _UNSAFE,
        "default_cache_dir()",
        f"{_RUNTIME}.runtime_utils:default_cache_dir()",
        f"{_CODECACHE}:default_cache_dir()",
        owner="folder",
    ),
    _part(
        events.follow_spans,
        "torch._dynamo.utils",
        "report compiles, their phases and AOTAutograd's lookups",
        "reports lack graphs and seconds",
        "ChromiumEventLogger._log_timed_event(self, event_name, time_ns, phase, metadata, …)",
        "ChromiumEventLogger.log_instant_event(self, event_name, time_ns, metadata, …)",
        "CHROMIUM_EVENT_LOG",
        loss=Loss.PORTABLE,
        because="it puts the baseline into keys on the thread that compiles",
    ),
    _part(
        recording.record,
        "torch.compiler._cache",
        "store what torch caches, and see what comes in a bundle",
        "no graph is stored",
        "CacheArtifactManager.record_artifact(cls, artifact_type, key, content, …)",
        "CacheArtifactManager.populate_caches(…)",
    ),
    _part(
        profile.provide_profile,
        "torch._dynamo.pgo",
        "restore and store the profile of dynamic shapes under a job id",
        "profiles are not restored, nor stored",
        "get_local_code_state(cache_key, …)",
    ),
    _trace_part(
        Traces.trace_frames,
        _FRAMES,
        "look for a trace before Dynamo traces, and record one",
        "_compile(code, globals, locals, builtins, closure, compiler_fn, one_graph, export, "
        "export_constraints, hooks, cache_entry, cache_entries, …)",
        "compile_frame(code, globals, locals, builtins, closure, compiler_fn, one_graph, restart_reasons, …)",
        because="a trace holds what all of these see, and adopts a graph from AOTAutograd's cache",
        needs=(
            "trace_graphs",
            "trace_keys",
            "watch_tracing",
            "build_guards",
            "follow_hits",
            "follow_entries",
        ),
    ),
    _trace_part(
        Traces.watch_tracing,
        _FRAMES,
        "see what Dynamo looks at while a trace is recorded",
        f"{_VARIABLES}.builtin:BuiltinVariable.call_function(self, tx, args, kwargs)",
        f"{_VARIABLES}.constant:ConstantVariable.call_method(self, tx, name, …)",
        f"{_VARIABLES}.lazy:LazyVariableTracker.original_value(self)",
        "torch._dynamo.output_graph:OutputGraph.call_user_compiler(…)",
        f"{_VARIABLES}.builder:SourcelessBuilder.create(tx, value)",
        f"{_VARIABLES}.base:VariableTrackerMeta.__call__(…)",
        f"{_VARIABLES}.user_defined:is_forbidden_context_manager(ctx)",
        "torch._dynamo.symbolic_convert:InstructionTranslatorBase.__init__(…)",
        "torch._dynamo.symbolic_convert:compare_op_handlers",
        is_temporary=True,
    ),
    _trace_part(
        Traces.build_guards,
        "torch._dynamo.guards",
        "build the guards of a trace on values that were looked up already",
        "GuardBuilder.__init__(…)",
        is_temporary=True,
    ),
    _trace_part(
        Traces.trace_graphs,
        "torch._dynamo.output_graph",
        "see which graph of a function is compiled",
        "OutputGraph._call_user_compiler(self, gm, example_inputs, …)",
    ),
    _part(
        prewarm.prefetch_keys,
        _CODECACHE,
        "hash torch's sources ahead, in a thread",
        "the first compile hashes them",
        flag="hashes_ahead",
    ),
    _part(
        DefaultFolder.replace_headers,
        _CODECACHE,
        "have headers compiled in a folder that is safe",
        _UNSAFE,
        "_HEADER_DIR?",
        "_HEADER_LOCK_DIR?",
        owner="folder",
    ),
    _key_part(
        Dependencies.follow_keys,
        _CODECACHE,
        "add to keys what a graph depends on and torch leaves out",
        "FxGraphHashDetails.__init__(self, gm, example_inputs, …)",
    ),
    _part(
        lookups.follow_lookups,
        _CODECACHE,
        "report hits and misses, with the reason",
        "reports lack hits, misses and their reasons",
        "FxGraphCache.load_with_key(key, debug_lines, example_inputs, local, remote_cache, is_backward, …)",
    ),
    _part(
        contents.follow_code,
        _CODECACHE,
        "note where generated code is",
        "the code of a graph is not shown",
        "PyCodeCache.load_by_key_path(cls, key, path, …)",
    ),
    _part(
        graphs.provide_graphs,
        _CODECACHE,
        "restore graphs, and ask the shared level for them",
        "no graph is restored",
        "GuardedCache.iterate_over_candidates(cls, local, remote_cache, key, …)",
    ),
    _part(
        gemm_autotune.provide_times,
        _CODECACHE,
        "restore and store what max-autotune has measured",
        "max-autotune measures again",
        "PersistentCache.lookup(self, choices, op, inputs, benchmark, hint_override)",
    ),
    _part(
        cpp_kernels.provide_kernels,
        _CODECACHE,
        "restore and store C++ kernels",
        "graphs with C++ kernels are not restored",
        "CppCodeCache.load_async(cls, main_code, device_type, submit_fn, …)",
        because="torch may choose other vector instructions than their source counts on",
        instead="provide_graphs",
    ),
    _key_part(
        Dependencies.note_tables,
        tuple(TABLES),
        "note what torch's tables of operators hold, to see what others add",
    ),
    _key_part(
        Dependencies.note_generators,
        tuple(GENERATORS),
        "note the classes that write code for operators, to see what others change",
    ),
    _part(
        templates.compile_when_rendered,
        _COMMON,
        "compile the templates of Triton kernels when one is rendered",
        "importing inductor takes 0.3 s longer",
        "KernelTemplate._template_from_string(source)",
    ),
    _part(
        Dependencies.follow_devices,
        _COMMON,
        "tell what torch registers for devices from what others do",
        _SAME_KEYS,
        "register_backend_for_device(device, …)",
        "register_device_op_overrides(device, …)",
        owner="keys",
    ),
    _part(
        Dependencies.follow_fallbacks,
        "torch._inductor.graph",
        "tell the lowerings that torch makes while it compiles from those of others",
        _SAME_KEYS,
        "make_fallback(op, …)",
        owner="keys",
    ),
    _key_part(
        Dependencies.follow_patterns,
        "torch._inductor.pattern_matcher",
        "note the patterns that others register",
        "PatternEntry.register(self, pass_dicts, target, prepend)",
    ),
    _part(
        Dependencies.follow_hits,
        "torch._functorch._aot_autograd.aot_autograd_result",
        "guard a hit in AOTAutograd's cache as a compile is guarded",
        _NO_ENTRIES,
        "torch._inductor.output_code:CompiledFxGraph.post_compile(self, example_inputs, constants, "
        "graph_kwargs)",
        "GenericAOTAutogradResult.wrap_post_compile(self, args, aot_config, …)",
        loss=Loss.ENTRIES,
        because="its hits would lack the guards on inputs that overlap",
        owner="keys",
    ),
    _part(
        portable.restrict_features,
        "torch._inductor.cpu_vec_isa",
        "with `portable`, choose vector instructions that every such CPU has",
        _NO_BASELINE,
        *tuple(f"torch.cpu:{name}()" for name in portable.QUESTIONS),
        loss=Loss.PORTABLE,
        because=_MIXED,
    ),
    _part(
        probes.provide_probes,
        "torch._inductor.cpu_vec_isa",
        "restore and store which vector instructions work",
        "torch tries vector instructions again",
        "VecISA.check_build(self, code)",
    ),
    _part(
        portable.restrict_flags,
        "torch._inductor.cpp_builder",
        "with `portable`, compile C++ kernels for every such CPU",
        _NO_BASELINE,
        "_get_optimization_cflags(…)",
        loss=Loss.PORTABLE,
        because=_MIXED,
    ),
    _part(
        autotune.provide_autotune,
        ("torch._inductor.remote_cache", _TUNING),
        "restore the best configurations of Triton kernels",
        _TUNED_AGAIN,
        "LocalCacheBackend._get(self, key)?",
        f"{_TUNING}:_LocalAutotuneCacheBackend._get(self, key)?",
    ),
    _part(
        remote_caches.replace_backends,
        "torch._inductor.remote_cache",
        "empty torch's remote caches while a shared level is connected",
        "torch's remote caches ask torch's own Redis, and what they find is not stored",
        "RedisRemoteCache.backend_override_cls",
        "RemoteAutotuneCache._get(…)",
        "RemoteDynamoPGOCache._get(…)",
    ),
    _part(
        remote_caches.renew_autograd_cache,
        _ENTRIES,
        "the same for that of AOTAutograd, which keeps its first backend",
        "torch's remote cache of AOTAutograd may ask torch's own Redis",
        "AOTAutogradCache.get_remote_cache()",
    ),
    _part(
        Dependencies.follow_entries,
        _ENTRIES,
        "keep and take entries of AOTAutograd's cache only where they fit",
        _NO_ENTRIES,
        "autograd_cache_key(…)",
        "AOTAutogradCache.save(key, entry, …)",
        "AOTAutogradCache._lookup(key, local, remote, args, …)",
        "AOTAutogradCache.iterate_over_candidates(cls, …)",
        loss=Loss.ENTRIES,
        because="its keys leave out which inputs are leaves, and what the backward was compiled with",
        owner="keys",
    ),
    _trace_part(
        Traces.trace_keys,
        _ENTRIES,
        "see AOTAutograd's key of each graph of a function",
        "autograd_cache_key(…)",
    ),
    _part(
        triton_kernels.settle_assembler,
        _ASYNC_COMPILE,
        "choose ptxas before Triton's keys are made",
        "kernels of users miss after a restart",
    ),
    _part(
        events.follow_kernels,
        _ASYNC_COMPILE,
        "count Triton kernels",
        "reports lack Triton kernels",
        "AsyncCompile.triton(self, kernel_name, source_code, …)",
    ),
    _part(
        autotune.provide_tuning_to_workers,
        _ASYNC_COMPILE,
        "restore best configurations before a worker compiles",
        _TUNED_AGAIN,
        "AsyncCompile.triton(self, kernel_name, source_code, …)",
    ),
    _part(
        remote_caches.keep_workers_apart,
        _ASYNC_COMPILE,
        "keep torch's workers from asking Redis while a shared level is connected",
        "torch's workers may ask torch's own Redis",
        "_worker_compile_triton",
        "torch._inductor.remote_cache:RedisRemoteCache.backend_override_cls",
    ),
    _part(
        events.follow_candidates,
        "torch._inductor.select_algorithm",
        "count the candidates that max-autotune times",
        "the live line shows no progress of max-autotune",
        "AlgorithmSelectorCache.benchmark_choices(cls, choices, …)",
        "AlgorithmSelectorCache.benchmark_choice(cls, …)",
    ),
    _part(
        triton_kernels.bundle_what_runs,
        _HEURISTICS,
        "bundle the Triton kernels that a graph runs, and no candidates",
        "restored graphs compile some Triton kernels again",
        "CachingAutotuner.precompile(…)",
        "CachingAutotuner._precompile_config(…)",
        "torch._inductor.triton_bundler:TritonBundler.put(…)",
        "torch._inductor.triton_bundler:TritonBundler.put_static_autotuner(…)",
        "torch._inductor.triton_bundler:TritonBundler.put_winner(…)?",
    ),
    _part(
        triton_kernels.provide_tuned,
        _HEURISTICS,
        "restore and store what coordinate descent has found",
        _TUNED_AGAIN,
        "CachingAutotuner.coordinate_descent_tuning(self, launcher, …)",
        "CachingAutotuner._precompile_config(self, cfg, …)",
        "triton.runtime.cache:FileCacheManager.get_group(self, filename, …)",
    ),
    _part(
        triton_modules.provide_modules,
        "triton.backends.nvidia.driver",
        "restore and store the C modules of Triton",
        "Triton compiles its C modules again",
        "compile_module_from_file(src_path, name, …)?",
        "compile_module_from_src(src, name, …)?",
    ),
    _part(
        gemm_autotune.provide_decisions,
        "torch._inductor.fx_passes.pad_mm",
        "restore and store which matrix multiplications are worth padding",
        "torch measures padding again",
        *tuple(
            f"{name}({takes})"
            for name, takes in (
                *((f"get_cached_{each}", "key") for each in gemm_autotune.DECISIONS),
                *((f"set_cached_{each}", "key, value") for each in gemm_autotune.DECISIONS),
            )
        ),
    ),
)
"""Parts of one module are hooked in this order."""


def make_bridge(user_has_torch: Callable[[], bool] = lambda: False) -> TorchBridge:
    """Return a bridge with all parts; `user_has_torch` returns whether a cell has imported torch."""
    return TorchBridge(PARTS, Dependencies, Traces, user_has_torch)
