"""Code that users pass to torch's compiler: in settings, as compiler functions and as patterns."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.keys.fingerprints.digests import Fingerprint
from nbcache.keys.fingerprints.known_code import KnownPackages, cell_contents
from nbcache.torch_bridge import frames

if TYPE_CHECKING:
    from nbcache.core.patches import Patches


_COLLECTIVES = ("all_gathers", "all_reduces", "reduce_scatters")
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "torch._functorch.config": (
        *("activation_memory_budget_runtime_estimator", "activation_memory_budget_solver"),
        "joint_custom_pass",
    ),
    "torch._inductor.config": (
        *("_fuse_ddp_communication_passes", "_post_fusion_custom_pass", "_pre_fusion_custom_pass"),
        "aten_distributed_optimizations.custom_runtime_estimation",
        *(f"bucket_{kind}_fx_bucket_size_determinator" for kind in _COLLECTIVES),
        *("custom_partitioner_fn", "external_matmul", "inductor_choices_class"),
        *("joint_custom_post_pass", "joint_custom_pre_pass", "post_grad_custom_post_pass"),
        *("post_grad_custom_pre_pass", "pre_grad_custom_pass", "reorder_for_compute_comm_overlap_passes"),
    ),
}
"""Module → settings that may hold user code; torch's keys cover the name or the `uuid()` of some."""
_INDUCTORS = "torch._inductor.compile_fx"
_COMPILE_FX_ARGUMENTS = frozenset({"compile_region_name", "get_decomp_fn"})
"""Arguments that compile_fx itself passes to `inner_compile`: a name and AOTAutograd's decompositions."""


def code_in_settings() -> Iterator[tuple[str, Any]]:
    """Yield the name and the code of each setting that holds code other than torch's default."""
    for module, names in SETTINGS.items():
        config: Any = sys.modules.get(module)
        for name in names:
            value = getattr(config, name, None)
            default = None if value is None else getattr(config._config.get(name), "default", None)
            if value is default:
                continue
            defaults = [*map(id, default)] if isinstance(default, (list, tuple)) else []
            for code in value if isinstance(value, (list, tuple)) else [value]:
                if code is not None and not isinstance(code, str) and id(code) not in defaults:
                    yield name, code
    common = sys.modules.get("torch._inductor.codegen.common")
    for device, value in getattr(common, "custom_backend_passes", {}).items():
        if value is not None:
            yield f"custom pass for {device}", value
    choices = _choices_handler()
    if choices is not None:
        yield "the handler of choices", choices


def _choices_handler() -> Any:
    """Return the argument of a third-party call of `V.set_choices_handler`, or None."""
    virtualized = sys.modules.get("torch._inductor.virtualized")
    thread_state = getattr(getattr(virtualized, "threadlocal", None), "__dict__", {})
    handler = thread_state.get(getattr(getattr(virtualized, "_choices", None), "_key", ""))
    by_setting = getattr(sys.modules.get("torch._inductor.config"), "inductor_choices_class", None)
    kind = type(handler)
    is_torchs = kind.__module__.startswith("torch.") or kind is by_setting  # the setting itself is added
    return None if is_torchs else handler


def compilers() -> list[tuple[str, Any]]:
    """Return the compiler functions that compile_fx and AOTAutograd on the stack got from third parties."""
    inner: list[Any] = []
    for code in frames.read_all(frames.INNER_COMPILE):
        if isinstance(code, partial) and not code.args and {*code.keywords} <= _COMPILE_FX_ARGUMENTS:
            code = code.func  # a partial by compile_fx
        inner.append(code)
    aot = next(frames.read_frames(frames.COMPILERS[1]), None)
    local_variables = {} if aot is None else aot.f_locals
    arguments = [(local.name, local_variables.get(local.name)) for local in frames.COMPILERS]
    compile_fx = sys.modules.get(_INDUCTORS)
    inductors: list[Any] = []
    if compile_fx is not None:
        defaults = inspect.unwrap(compile_fx.compile_fx).__defaults__ or ()
        inductors = [None, compile_fx.compile_fx_inner, *defaults]
    file = getattr(compile_fx, "__file__", None)

    def is_inductors(code: Any) -> bool:  # or its wrapper of another function
        wrapped = getattr(code, "__wrapped__", None) if isinstance(code, FunctionType) else None
        return id(code) in map(id, inductors) or (wrapped is not None and id(wrapped) in map(id, inner))

    return [
        *(("inner_compile", code) for code in inner if not is_inductors(code)),
        *((name, code) for name, code in arguments if code is not None and _file_of(code) != file),
    ]


def _file_of(code: Any) -> str | None:
    for name in ("compiler_fn", "func", "__func__"):
        code = inspect.unwrap(getattr(code, name, code))
        if isinstance(code, FunctionType) and code.__name__ == "_wrapped_bw_compiler":  # Dynamo's
            code = inspect.unwrap(cell_contents(code)[0])
    return code.__code__.co_filename if isinstance(code, FunctionType) else None


_MATCHER = "torch._inductor.pattern_matcher"


class Patterns:
    def __init__(self, known: KnownPackages) -> None:
        self._known = known
        self._entries: list[tuple[Any, Any, bool]] = []
        """Third-party patterns: the entry, its pass, and whether the pass tries it first."""
        self._locations: dict[int, str] = {}
        """Id of a pass → its first location in torch's modules; empty for third-party passes."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def follow(self, pattern_matcher: ModuleType, patches: Patches, through: str, *, late: bool) -> None:
        """Record each pattern that is registered; `late`: some may have been registered before."""
        files = (through, os.path.abspath(pattern_matcher.__file__ or ""))

        def register(original: Any, entry: Any, pass_dicts: Any, *args: Any, **kwargs: Any) -> Any:
            arguments = dict(zip(("target", "prepend"), args, strict=False)) | kwargs
            if arguments.get("target") is None or isinstance(pass_dicts, (list, tuple)):
                pass  # it calls itself for each pass
            elif not (self._is_torch_pattern(entry) and self._known.is_caller(sys._getframe(), files)):
                self._entries.append((entry, pass_dicts, bool(arguments.get("prepend"))))
            return original(entry, pass_dicts, *args, **kwargs)

        patches.hook(pattern_matcher.PatternEntry, "register", register)
        if late:
            for _, pattern_pass in _pattern_passes(pattern_matcher):
                entries = [entry for listed in list(pattern_pass.patterns.values()) for entry in list(listed)]
                self._entries += [
                    (entry, pattern_pass, False) for entry in entries if not self._is_torch_pattern(entry)
                ]

    def add(self, state: Fingerprint) -> None:
        for entry, pattern_pass, first in self._entries:
            state.note("pattern", self._location(pattern_pass), first)
            state.add(entry, "a pattern")

    def add_pass(self, state: Fingerprint, value: Any) -> bool:
        """Add a pass by its location and third-party patterns; return False for a value of another type."""
        matcher = sys.modules.get(_MATCHER)
        if matcher is None or type(value) is not matcher.PatternMatcherPass:
            return False
        state.note("pass of patterns", self._location(value))
        for entry, pattern_pass, first in self._entries:
            if pattern_pass is value or pattern_pass is value.patterns:
                state.note(first)
                state.add(entry, "a pattern")
        return True

    def _location(self, pattern_pass: Any) -> str:
        if id(pattern_pass) not in self._locations:
            for location, other in _pattern_passes(sys.modules[_MATCHER]):
                self._locations[id(other)] = min(location, self._locations.get(id(other), location))
        return self._locations.setdefault(id(pattern_pass), "")

    def _is_torch_pattern(self, entry: Any) -> bool:
        return all(self._known.is_library_code(value) for value in vars(entry).values() if callable(value))


def _pattern_passes(pattern_matcher: ModuleType) -> Iterator[tuple[str, Any]]:
    kind = pattern_matcher.PatternMatcherPass
    for name, module in sys.modules.copy().items():
        if not name.startswith("torch._inductor"):
            continue
        kinds = (kind, dict, list, tuple)
        members = [item for item in vars(module).copy().items() if isinstance(item[1], kinds)]
        stack = [(f"{name}.{key}", value) for key, value in members]
        while stack:
            location, value = stack.pop()
            if isinstance(value, kind):
                yield location, value
            elif type(value) in (list, tuple) and len(value) < 100:
                stack += [(f"{location}[{number}]", item) for number, item in enumerate(value)]
            elif type(value) is dict and len(value) < 100:
                stack += [(f"{location}[{key}]", item) for key, item in value.items()]
