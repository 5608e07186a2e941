"""All differences between releases of torch: one flag a line, with the question that it answers.

A flag reads torch's version without importing torch, or is off until the module that decides it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from operator import attrgetter

Release = tuple[int, int]
MINIMUM: Release = (2, 11)
NEWEST: Release = (2, 15)
"""The newest release that was tested."""


def release(version: str) -> Release:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def torch_version() -> str | None:
    """Return torch's version without importing it, perhaps without its build; None without torch."""
    from importlib.metadata import PackageNotFoundError, version

    imported = getattr(sys.modules.get("torch"), "__version__", None)
    try:
        return str(imported or version("torch"))
    except PackageNotFoundError:
        return None


class _Flag:
    def __init__(self, question: str, *, since: Release = MINIMUM, among: Sequence[Release] = ()) -> None:
        self.question, self._since, self._among = question, since, among

    def __get__(self, instance: object, owner: type) -> bool:
        current = release(torch_version() or "0.0")
        return current in self._among if self._among else self._since <= current

    def __str__(self) -> str:
        return ", ".join(map(spelled, self._among)) or f"since {spelled(self._since)}"


class _Name(_Flag):
    """An answer that depends on a name in a torch module."""

    def __init__(self, question: str, module: str, name: str) -> None:
        super().__init__(question)
        self.module, self._name = module, name

    def __get__(self, instance: object, owner: type) -> bool:
        try:
            attrgetter(self._name)(sys.modules[self.module])
        except (AttributeError, KeyError):
            return False
        return True

    def __str__(self) -> str:
        return f"with {self.module}.{self._name}"


_CODECACHE = "torch._inductor.codecache"
_ISA = "torch._inductor.cpu_vec_isa"
_BUNDLER = "torch._inductor.triton_bundler"


class TORCHBEHAVIOR:
    is_supported = _Flag("Does nbcache work with it?", since=MINIMUM)
    has_traces = _Flag("Were traces tested with it?", among=((2, 13), (2, 15)))
    threads_in_keys = _Flag("Do the keys of graphs hold the number of threads?", since=(2, 13))
    arguments_in_cxx = _Flag("May CXX have arguments, as in `ccache g++`?", since=(2, 15))
    hashes_ahead = _Name("Can it hash its sources in a thread?", _CODECACHE, "torch_key.prefetch")
    keys_by_precision = _Name("Has precision a name of its own?", _CODECACHE, "fp32_matmul_precision_key")
    flags_by_method = _Name("Does a method return an ISA's flags?", _ISA, "VecISA.build_arch_flags")
    bundles_winners = _Name("Do bundles hold only kernels that ran?", _BUNDLER, "TritonBundler.put_winner")
    overrides_cudagraphs = _Name(
        "Can one function turn CUDA graphs on?", "torch._dynamo.utils", "_get_cudagraph_override"
    )


def answers() -> Iterator[tuple[str, str, str, bool | None]]:
    """Yield name, question, releases and answer of each flag; None for a module that is not imported."""
    for name, flag in vars(TORCHBEHAVIOR).items():
        if isinstance(flag, _Flag):
            is_open = isinstance(flag, _Name) and flag.module not in sys.modules
            answer = None if is_open else flag.__get__(None, TORCHBEHAVIOR)
            yield name, flag.question, str(flag), answer


def spelled(of: Release) -> str:
    return f"{of[0]}.{of[1]}"
