"""What compiled code is bound to: each part changes the environment, and nothing else does."""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch

from nbcache.core.key import diff
from nbcache.torch_bridge import environment, gpus, torch_behavior
from nbcache.torch_bridge.gpus import Gpu, GpuReport
from nbcache.torch_bridge.providers import cpp_kernels
from nbcache.torch_bridge.providers.cpp_kernels import kernel_key

CPU_INFO = "processor : 0\nflags : fpu avx avx2 fma hypervisor\nbugs : none\n"


@pytest.fixture
def cpu_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "cpuinfo"
    file.write_text(CPU_INFO)
    monkeypatch.setattr(environment, "_CPU_INFO", file)
    return file


CHANGES: dict[str, Any] = {
    "torch.version": lambda patch: patch.setattr(torch, "__version__", "2.99.0"),
    "torch.git": lambda patch: patch.setattr(torch.version, "git_version", "0" * 40),
    "torch.cuda": lambda patch: patch.setattr(torch.version, "cuda", "99.1"),
    "torch.hip": lambda patch: patch.setattr(torch.version, "hip", "9.9"),
    "triton.version": lambda patch: patch.setattr(environment, "_triton_version", lambda: "9.9"),
    "python.abi": lambda patch: patch.setattr(sysconfig, "get_config_var", lambda name: "cpython-399"),
    "compiler.abi": lambda patch: patch.setattr(platform, "libc_ver", lambda: ("glibc", "1.0")),
    "device": lambda patch: patch.setattr(gpus, "find", lambda: GpuReport((Gpu("NVIDIA B200"),))),
    "cpu.machine": lambda patch: patch.setattr(platform, "machine", lambda: "riscv64"),
    "cpu.capability": lambda patch: patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NEON"),
    "cpu.requested": lambda patch: patch.setenv("ATEN_CPU_CAPABILITY", "avx2"),
    "cpu.features": lambda patch: environment._CPU_INFO.write_text(CPU_INFO.replace("fma", "fma avx512f")),
}


@pytest.mark.parametrize("label", CHANGES)
def test_each_part_changes_the_environment_and_is_named(
    label: str, cpu_info: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = environment.current()
    CHANGES[label](monkeypatch)
    after = environment.current()

    assert before.digest != after.digest
    assert [each.label for each in diff(before.components, after.components)] == [label]


def test_every_part_has_its_test(cpu_info: Path) -> None:
    assert {part.label for part in environment.current().components} == set(CHANGES)


def test_kernels_are_told_apart_by_threads_where_torchs_keys_leave_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"cpp.threads": -1, "triton.cudagraphs": False}
    config = SimpleNamespace(get_config_copy=lambda: values, **values)
    codecache = cast("ModuleType", SimpleNamespace(config=config, torch=torch))
    names = cpp_kernels.build_names(codecache)
    assert names == ["cpp.threads"]
    for version, told in (("2.11.0", True), ("2.13.0", False)):
        monkeypatch.setattr(torch_behavior, "torch_version", lambda version=version: version)
        found = set()
        for threads in (2, 16):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            found.add(cpp_kernels.build_settings(codecache, names))
        assert len(found) == 1 + told


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("hypervisor", "ibrs ssbd", False),
        ("hypervisor", "a_mitigation_of_next_year", False),
        ("fpu avx avx2", "avx2 avx fpu", False),
        ("bugs : none", "bugs : spectre_v1", False),
        ("fma", "fma avx11_512", True),  # vector instructions that are still to come
    ],
)
def test_only_instructions_that_code_can_use_change_it(
    cpu_info: Path, old: str, new: str, changes: bool
) -> None:
    before = environment.current()
    cpu_info.write_text(CPU_INFO.replace(old, new))

    assert (environment.current() != before) is changes


def test_other_cpus_than_x86_count_by_all_that_they_list(cpu_info: Path) -> None:
    cpu_info.write_text("processor : 0\nFeatures : fp asimd evtstrm sve2 cpuid next_year\n")

    assert environment.current().values["cpu.features"] == "asimd fp next_year sve2"


def test_where_and_as_whom_it_runs_does_not_change_it(
    cpu_info: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = environment.current()
    for name in ("HOME", "TMPDIR", "USER", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)

    assert environment.current() == before


class CppCodeCache: ...


class CppWrapperCodeCache: ...


KERNEL: dict[str, Any] = {
    "cls": CppCodeCache,
    "arguments": ("source", "cpu"),
    "options": {"optimized_code": "code", "extra_flags": ("-lm",), "submit_fn": print},
    "build_settings": "settings",
}


@pytest.mark.parametrize(
    "change",
    [
        {"cls": CppWrapperCodeCache},
        {"arguments": ("other source", "cpu")},
        {"arguments": ("source", "cuda")},
        {"arguments": ("source",)},
        {"options": KERNEL["options"] | {"optimized_code": "other"}},
        {"options": KERNEL["options"] | {"optimized_code": None}},
        {"options": KERNEL["options"] | {"extra_flags": ()}},
        {"build_settings": "others"},
    ],
)
def test_each_part_of_a_kernel_changes_its_key_but_who_compiles_it(change: dict[str, Any]) -> None:
    assert kernel_key(**KERNEL) != kernel_key(**(KERNEL | change))
    options = KERNEL["options"] | {"submit_fn": None}
    assert kernel_key(**KERNEL) == kernel_key(**(KERNEL | {"options": options}))
