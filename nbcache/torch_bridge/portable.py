"""Compile C++ kernels for a baseline instead of this CPU, so that they run on other CPUs, too.

torch chooses vector instructions by the CPU's features, and passes `-march=native` to the compiler. torch's
keys contain neither. So nbcache adds the baseline to `torch.compiler.config.cache_key_tag`, which is part of
all keys. A lookup must not confuse portable code with code for one CPU: the source of one with the flags of
the other computes something else. The number of threads stays in torch's keys (2.13).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from nbcache.core.cpu_levels import BASELINES, OFF, Baseline
from nbcache.core.errors import ConfigError
from nbcache.core.patches import Patches
from nbcache.torch_bridge import environment
from nbcache.torch_bridge.environment import compiler
from nbcache.torch_bridge.hooks import Context

QUESTIONS: Mapping[str, frozenset[str]] = {
    "_is_avx2_supported": frozenset({"avx2", "fma"}),
    "_is_avx512_supported": frozenset({"avx512bw", "avx512dq", "avx512f", "avx512vl"}),
    "_is_avx512_bf16_supported": frozenset({"avx512_bf16"}),
    "_is_vnni_supported": frozenset({"avx512_vnni"}),
    "_is_amx_tile_supported": frozenset({"amx_tile"}),
    "_is_amx_fp16_supported": frozenset({"amx_fp16"}),
}
"""Functions of `torch.cpu` that inductor calls → the features that the CPU must have."""
_MODE, _NORMAL = "TORCHINDUCTOR_FX_COMPILE_MODE", "NORMAL"
_ASK_SECONDS = 10.0
_ANSWERS = ("_is_avx512_bf16_supported", "_is_amx_fp16_supported")
"""Attributes in which inductor's instruction sets cache results of `torch.cpu`."""


def baseline_of(name: str) -> Baseline | None:
    """Return the baseline `name`, None for `off`; ConfigError if this machine cannot compile for it."""
    if name == OFF:
        return None
    baseline = BASELINES[name]
    why = None
    if lacking := environment.lacking(baseline):
        why = f"this CPU lacks {' '.join(lacking)}"
    elif (mode := os.environ.get(_MODE, _NORMAL)) != _NORMAL:
        why = f"with {_MODE}={mode} torch compiles where nbcache is not"
    elif (compiler := _compiler_that_rejects(name)) is not None:
        why = f"{compiler} does not know -march={name}"
    if why is not None:
        usable = [OFF, *(other.name for other in BASELINES.values() if not environment.lacking(other))]
        raise ConfigError(
            f"portable={name} cannot be used: {why}",
            where="the setting `portable`",
            next_step=f"this CPU can run portable={' or '.join(usable)}",
        )
    return baseline


def _compiler_that_rejects(level: str) -> str | None:
    program, command = compiler()
    if command is None:  # restored artifacts need no compiler
        return None
    probe = [*command, f"-march={level}", "-E", "-x", "c++", os.devnull]
    try:
        done = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return program if done.returncode else None


def compile_for_baseline(module: ModuleType, context: Context, patches: Patches) -> None:
    """Make inductor and the compiler use the baseline, if there is one, instead of this CPU."""

    def _get_optimization_cflags(original: Any, *args: Any, **kwargs: Any) -> tuple[list[str], list[str]]:
        cflags, ldflags = original(*args, **kwargs)
        if (baseline := context.baseline()) is not None:
            cflags = [f"march={baseline.name}" if flag.startswith("march=") else flag for flag in cflags]
        return cflags, ldflags

    def has_features(needed: frozenset[str], original: Callable[[], bool]) -> bool:
        baseline = context.baseline()
        return (baseline is None or needed <= baseline.features) and original()

    def forget() -> None:
        if context.baseline() is not None:
            choose_isa_again(module)

    if module.__name__.endswith("cpp_builder"):
        patches.hook(module, "_get_optimization_cflags", _get_optimization_cflags)
        return
    patches.undo(forget)  # runs after the functions below are restored
    for name, needed in QUESTIONS.items():
        patches.hook(module.torch.cpu, name, partial(has_features, needed))
    forget()


class KeyTag:
    def __init__(self) -> None:
        self._name: str | None = None

    def set(self, baseline: Baseline | None) -> None:
        """Name `baseline` in torch's keys beside the user's own tag; with None, only that tag stays."""
        if self._name is not None:
            import torch.compiler.config as config

            words = config.cache_key_tag.split(" ")
            if self._name in words:
                words.remove(self._name)
                config.cache_key_tag = " ".join(words)
        self._name = None if baseline is None else baseline.name
        self.settle()

    def settle(self) -> None:
        """Add the tag in the current context: since 2.13 each thread and callback has its own settings."""
        if self._name is not None:
            import torch.compiler.config as config

            words = config.cache_key_tag.split(" ")
            if self._name not in words:
                config.cache_key_tag = " ".join(filter(None, [*words, self._name]))


def choose_isa_again(cpu_vec_isa: ModuleType) -> None:
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    for isa in cpu_vec_isa.supported_vec_isa_list:
        for answer in _ANSWERS:
            vars(isa).pop(answer, None)
        for cls in type(isa).__mro__:
            for member in vars(cls).values():
                if hasattr(member, "cache_clear"):
                    member.cache_clear()
