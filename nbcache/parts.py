"""The table of all hooks: each part of nbcache, the torch attributes that it replaces, and its loss.

docs/architecture.md shows the table, and the tests remove each attribute in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbcache.keys.cache_key import Dependencies
from nbcache.keys.monkeypatches import GENERATORS, TABLES
from nbcache.torch_bridge import events, graph_contents, lookups, portable, prewarm, recording
from nbcache.torch_bridge.bridge import TorchBridge
from nbcache.torch_bridge.cache_folder import DefaultFolder
from nbcache.torch_bridge.hooks import Loss, Part
from nbcache.torch_bridge.providers import cpp_kernels, gemm_autotune, graphs, triton_kernels
from nbcache.traces.kernel_traces import Traces

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
_UNSAFE = "torch's default folder is used whoever made it"
_SAME_KEYS = "the keys of graphs differ from those with it, so that these miss"
_TUNED_AGAIN = "kernels of restored graphs are tuned again"


def _part(install: Callable[..., None], purpose: str, without: str, *hooks: str, **more: Any) -> Part:
    """Return a part. torch's import of `modules` installs it; the default is its first hook's module."""
    modules = more.pop("modules", ()) or (hooks[0].partition(":")[0],)
    return Part(install, modules, hooks, purpose, without, **more)


def _key_part(install: Callable[..., None], purpose: str, *hooks: str, **more: Any) -> Part:
    more |= {"loss": Loss.ALL, "because": "no key holds it: a stale graph would hit", "owner": "keys"}
    return _part(install, purpose, "nothing is stored or restored", *hooks, **more)


def _trace_part(install: Callable[..., None], purpose: str, *hooks: str, **more: Any) -> Part:
    return _part(install, purpose, "there are no traces", *hooks, owner="traces", flag="has_traces", **more)


PARTS = (
    _key_part(
        Dependencies.follow_operators,
        "note the code that is registered for operators",
        "torch.library:Library.impl(self, op_name, fn, dispatch_key, …)",
        "torch.library:Library._destroy(self)",
        "torch.library:Library.fallback(self, fn, dispatch_key, …)",
        "torch._ops:OperatorBase.py_impl(self, k, …)",
        modules=("torch",),
    ),
    _key_part(
        Dependencies.follow_attributes,
        "note what torch's classes and modules hold, to see what others replace",
        modules=("torch",),
    ),
    _part(
        DefaultFolder.replace_name,
        "have torch use its default folder only where nobody else can write to it",
        _UNSAFE,
        "default_cache_dir()",
        f"{_RUNTIME}.runtime_utils:default_cache_dir()",
        f"{_CODECACHE}:default_cache_dir()",
        owner="folder",
        modules=(f"{_RUNTIME}.cache_dir_utils", f"{_RUNTIME}.runtime_utils", _CODECACHE),
    ),
    _part(
        events.follow_spans,
        "report compiles, their phases and AOTAutograd's lookups",
        "reports lack graphs and seconds",
        "torch._dynamo.utils:ChromiumEventLogger._log_timed_event(self, event_name, time_ns, phase, "
        "metadata, …)",
        "ChromiumEventLogger.log_instant_event(self, event_name, time_ns, metadata, …)",
        loss=Loss.PORTABLE,
        because="it puts the baseline into keys on the thread that compiles",
    ),
    _part(
        events.name_cells,
        "name cells by their numbers in torch's errors",
        "torch's errors name cells by their files",
        f"{_FRAMES}:augment_exc_message(exc, …)",
    ),
    _part(
        recording.record,
        "store what torch caches, and see what comes in a bundle",
        "no graph is stored",
        "torch.compiler._cache:CacheArtifactManager.record_artifact(cls, artifact_type, key, content, …)",
        "CacheArtifactManager.populate_caches(…)",
    ),
    _part(
        recording.provide_profile,
        "restore and store the profile of dynamic shapes under a job id",
        "profiles are not restored, nor stored",
        "torch._dynamo.pgo:get_local_code_state(cache_key, …)",
    ),
    _trace_part(
        Traces.trace_frames,
        "look for a trace before Dynamo traces, and record one",
        f"{_FRAMES}:_compile(code, globals, locals, builtins, closure, compiler_fn, one_graph, export, "
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
        modules=(_FRAMES,),
    ),
    _trace_part(
        Traces.build_guards,
        "build the guards of a trace on values that were looked up already",
        "torch._dynamo.guards:GuardBuilder.__init__(…)",
        is_temporary=True,
    ),
    _trace_part(
        Traces.trace_graphs,
        "see which graph of a function is compiled",
        "torch._dynamo.output_graph:OutputGraph._call_user_compiler(self, gm, example_inputs, …)",
    ),
    _part(
        prewarm.prefetch_keys,
        "hash torch's sources ahead, in a thread",
        "the first compile hashes them",
        flag="hashes_ahead",
        modules=(_CODECACHE,),
    ),
    _part(
        DefaultFolder.replace_headers,
        "have headers compiled in a folder that is safe",
        _UNSAFE,
        f"{_CODECACHE}:_HEADER_DIR?",
        "_HEADER_LOCK_DIR?",
        owner="folder",
    ),
    _key_part(
        Dependencies.follow_keys,
        "add to keys what a graph depends on and torch leaves out",
        f"{_CODECACHE}:FxGraphHashDetails.__init__(self, gm, example_inputs, …)",
    ),
    _part(
        lookups.follow_lookups,
        "report hits and misses, with the reason",
        "reports lack hits, misses and their reasons",
        "torch._inductor.codecache:FxGraphCache.load_with_key(key, debug_lines, example_inputs, local, "
        "remote_cache, is_backward, …)",
    ),
    _part(
        graph_contents.follow_code,
        "note where generated code is",
        "the code of a graph is not shown",
        f"{_CODECACHE}:PyCodeCache.load_by_key_path(cls, key, path, …)",
    ),
    _part(
        graphs.provide_graphs,
        "restore graphs, and ask the shared level for them",
        "no graph is restored",
        f"{_CODECACHE}:GuardedCache.iterate_over_candidates(cls, local, remote_cache, key, …)",
    ),
    _part(
        gemm_autotune.provide_times,
        "restore and store what max-autotune has measured",
        "max-autotune measures again",
        f"{_CODECACHE}:PersistentCache.lookup(self, choices, op, inputs, benchmark, hint_override)",
    ),
    _part(
        cpp_kernels.provide_kernels,
        "restore and store C++ kernels",
        "graphs with C++ kernels are not restored",
        f"{_CODECACHE}:CppCodeCache.load_async(cls, main_code, device_type, submit_fn, …)",
        because="torch may choose other vector instructions than their source counts on",
        instead="provide_graphs",
    ),
    _key_part(
        Dependencies.note_tables,
        "note what torch's tables of operators hold, to see what others add",
        modules=tuple(TABLES),
    ),
    _key_part(
        Dependencies.note_generators,
        "note the classes that write code for operators, to see what others change",
        modules=tuple(GENERATORS),
    ),
    _part(
        Dependencies.follow_devices,
        "tell what torch registers for devices from what others do",
        _SAME_KEYS,
        f"{_COMMON}:register_backend_for_device(device, …)",
        "register_device_op_overrides(device, …)",
        owner="keys",
    ),
    _part(
        Dependencies.follow_fallbacks,
        "tell the lowerings that torch makes while it compiles from those of others",
        _SAME_KEYS,
        "torch._inductor.graph:make_fallback(op, …)",
        owner="keys",
    ),
    _key_part(
        Dependencies.follow_patterns,
        "note the patterns that others register",
        "torch._inductor.pattern_matcher:PatternEntry.register(self, pass_dicts, target, prepend)",
    ),
    _part(
        Dependencies.follow_hits,
        "guard a hit in AOTAutograd's cache as a compile is guarded",
        _NO_ENTRIES,
        "torch._inductor.output_code:CompiledFxGraph.post_compile(self, example_inputs, constants, "
        "graph_kwargs)",
        "GenericAOTAutogradResult.wrap_post_compile(self, args, aot_config, …)",
        loss=Loss.ENTRIES,
        because="its hits would lack the guards on inputs that overlap",
        owner="keys",
        modules=("torch._functorch._aot_autograd.aot_autograd_result",),
    ),
    _part(
        portable.compile_for_baseline,
        "with `portable`, choose vector instructions and flags that every such CPU has",
        "what is compiled is for this CPU only",
        "torch._inductor.cpp_builder:_get_optimization_cflags(…)",
        *tuple(f"torch.cpu:{name}()" for name in portable.QUESTIONS),
        loss=Loss.PORTABLE,
        because="one's instructions with the other's flags compute something else",
        modules=("torch._inductor.cpu_vec_isa", "torch._inductor.cpp_builder"),
    ),
    _part(
        cpp_kernels.provide_probes,
        "restore and store which vector instructions work",
        "torch tries vector instructions again",
        "torch._inductor.cpu_vec_isa:VecISA.check_build(self, code)",
    ),
    _part(
        triton_kernels.provide_autotune,
        "restore the best configurations of Triton kernels",
        _TUNED_AGAIN,
        "LocalCacheBackend._get(self, key)?",
        f"{_TUNING}:_LocalAutotuneCacheBackend._get(self, key)?",
        modules=("torch._inductor.remote_cache", _TUNING),
    ),
    _part(
        recording.empty_remote_caches,
        "empty torch's remote caches while a shared level is connected",
        "torch's remote caches ask torch's own Redis, and what they find is not stored",
        "torch._inductor.remote_cache:RedisRemoteCache._get(self, key, …)",
        "RedisRemoteCache._put(self, key, value, …)",
    ),
    _part(
        Dependencies.follow_entries,
        "keep and take entries of AOTAutograd's cache only where they fit",
        _NO_ENTRIES,
        f"{_ENTRIES}:autograd_cache_key(…)",
        "AOTAutogradCache.save(key, entry, …)",
        "AOTAutogradCache._lookup(key, local, remote, args, …)",
        "AOTAutogradCache.iterate_over_candidates(cls, …)",
        loss=Loss.ENTRIES,
        because="its keys leave out which inputs are leaves, and what the backward was compiled with",
        owner="keys",
    ),
    _trace_part(
        Traces.trace_keys,
        "see AOTAutograd's key of each graph of a function",
        f"{_ENTRIES}:autograd_cache_key(…)",
    ),
    _part(
        triton_kernels.settle_assembler,
        "choose ptxas before Triton's keys are made",
        "kernels of users miss after a restart",
        modules=(_ASYNC_COMPILE,),
    ),
    _part(
        triton_kernels.follow_kernels,
        "count Triton kernels, and restore best configurations before a worker compiles",
        f"reports lack Triton kernels, and {_TUNED_AGAIN}",
        f"{_ASYNC_COMPILE}:AsyncCompile.triton(self, kernel_name, source_code, …)",
    ),
    _part(
        triton_kernels.bundle_what_runs,
        "bundle the Triton kernels that a graph runs, and no candidates",
        "restored graphs compile some Triton kernels again",
        f"{_HEURISTICS}:CachingAutotuner.precompile(…)",
        "CachingAutotuner._precompile_config(…)",
        "torch._inductor.triton_bundler:TritonBundler.put(…)",
        "torch._inductor.triton_bundler:TritonBundler.put_static_autotuner(…)",
        "torch._inductor.triton_bundler:TritonBundler.put_winner(…)?",
    ),
    _part(
        triton_kernels.provide_tuned,
        "restore and store what coordinate descent has found",
        _TUNED_AGAIN,
        f"{_HEURISTICS}:CachingAutotuner.coordinate_descent_tuning(self, launcher, …)",
        "CachingAutotuner._precompile_config(self, cfg, …)",
        "triton.runtime.cache:FileCacheManager.get_group(self, filename, …)",
    ),
    _part(
        triton_kernels.provide_modules,
        "restore and store the C modules of Triton",
        "Triton compiles its C modules again",
        "triton.backends.nvidia.driver:compile_module_from_file(src_path, name, …)?",
        "compile_module_from_src(src, name, …)?",
    ),
)
"""The parts. Those of one module are installed in this order."""


def make_bridge(user_has_torch: Callable[[], bool] = lambda: False) -> TorchBridge:
    """Return a bridge with all parts; `user_has_torch` returns whether a cell has imported torch."""
    return TorchBridge(PARTS, Dependencies, Traces, user_has_torch)
