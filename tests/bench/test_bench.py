"""`nbcache bench`: what it measures, how it condenses and shows that, and what it says of wrong usage."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from nbcache.artifacts.store import ArtifactStore
from nbcache.bench import command, kept, options, runner
from nbcache.bench.chart import bars_of, draw
from nbcache.bench.interrupts import interruptible, told_as_interrupt
from nbcache.bench.kernels import BenchError, CellFailed, Home, Kernel, environment, kernel, link_package
from nbcache.bench.options import (
    COMPILE_MODES,
    FULL,
    MODELS,
    USUAL,
    Idle,
    Mode,
    Options,
    Precision,
    Variant,
)
from nbcache.bench.report import report_json, report_text, times
from nbcache.bench.results import Held, Result, Run, Sizes, Traffic, median, ratio, rows_of
from nbcache.bench.runner import Runner, prewarmed, sizes_of
from nbcache.bench.stores.populations import Population, populations_json, populations_text
from nbcache.bench.variants import Subject, measured_cell, schedule, setup_cell, subjects, variables
from nbcache.core.errors import ConfigError, NbcacheError
from nbcache.core.key import Component
from nbcache.core.model import Artifact, Environment, Manifest
from nbcache.stores.directory import DirectoryStore
from nbcache.torch_bridge.environment import release, torch_version
from nbcache.ui.terminal import parser as cli
from support import kernel_ports
from support.front_door import RunPython, run_interpreter
from support.torch_versions import HAS_TRACES

OWN = """\
import torch

def make():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return model, torch.linspace(-1, 1, 24).reshape(3, 8)

def number():
    return 3

def failing():
    raise ValueError("no weights here")
"""
SUBJECT = Subject("nanogpt", Mode.INFERENCE, "small", "cpu", dynamic=False)
MACHINE = {"nbcache": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "cpu": "A CPU", "cores": 2}


def parsed(*arguments: str) -> Options:
    """Return the options of a command line."""
    import argparse

    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    return options.from_arguments(parser.parse_args(arguments))


def graph(outcome: str, **seconds: float) -> dict[str, Any]:
    return {"outcome": outcome, "seconds": {**seconds, "total": sum(seconds.values())}}


def a_run(variant: Variant, cell: float, number: int = 1, idle: Idle | None = None, **more: Any) -> Run:
    values: dict[str, Any] = {
        "start_seconds": cell + 2,
        "setup_seconds": 1.5,
        "load_seconds": None,
        "hot_seconds": 0.003,
        "agrees": True,
        "difference": 1e-6,
        "tolerance": 1e-3,
    }
    return Run(variant, number, idle, cell, **(values | more))


def hit(*, load: float = 0.1, dynamo: float = 0.2) -> dict[str, Any]:
    return {"graphs": [graph("hit", load=load, dynamo=dynamo)], "notices": []}


def doubtful_hit(
    reason: str = "1 of 12 kernels compiled again; re-tuned: 2 kernels were benchmarked again",
) -> dict[str, Any]:
    """Return the report of a hit that did not save all there was to save."""
    found = graph("hit", load=0.1) | {"kernels": 12, "kernels_compiled": 1, "reason": reason}
    return {"graphs": [found], "notices": []}


@pytest.fixture
def result() -> Result:
    """Return three runs of each variant, with round medians."""
    found = Result(SUBJECT, sizes=Sizes(5, 1_000_000, 60_000, 40_000, 90_000, 400_000, {"inductor": 40_000}))
    miss = {"graphs": [graph("miss", dynamo=1.0, build=10.0)], "notices": []}
    for number, drift in enumerate((0.9, 1.0, 1.4), 1):
        found.runs += [
            a_run(Variant.EAGER, 0.05 * drift, number),
            a_run(Variant.COLD, 20.0 * drift, number, report=miss, overhead_seconds=0.2 * drift),
            a_run(Variant.TORCH_WARM, 4.0 * drift, number),
            a_run(Variant.MEGA_CACHE, 10.0 * drift, number),
            a_run(Variant.RESTART, 2.0 * drift, number, 0.0, report=hit()),
            a_run(Variant.RESTART, 0.5 * drift, number, FULL, report=hit(), prewarm="done"),
            a_run(Variant.FRESH, 2.0 * drift, number, 0.0, report=hit()),
            a_run(Variant.FRESH, 0.5 * drift, number, FULL, report=hit(), prewarm="done"),
        ]
    return found


# --- the command line -------------------------------------------------------------------------------


def test_without_arguments_all_models_are_measured_in_inference_with_and_without_idle_time() -> None:
    default = parsed()

    assert default == Options()
    assert default.models == MODELS
    assert default.modes == (Mode.INFERENCE,)
    assert default.idle == (0.0, FULL)


@pytest.mark.parametrize(
    ("arguments", "modes"),
    [
        (["--training"], (Mode.TRAINING,)),
        (["--inference"], (Mode.INFERENCE,)),
        (["--training", "--inference"], (Mode.INFERENCE, Mode.TRAINING)),
    ],
)
def test_both_modes_are_measured_where_both_are_asked_for(
    arguments: list[str], modes: tuple[Mode, ...]
) -> None:
    assert parsed(*arguments).modes == modes


def test_what_is_given_is_what_is_measured() -> None:
    line = "gpt2 my.package:model --runs 5 --idle 2.5 --idle full --variants fresh,cold --size full --dynamic"
    found = parsed(*line.split(), "--device", "cuda")

    assert found.models == ("gpt2", "my.package:model")
    assert (found.runs, found.idle) == (5, (2.5, FULL))
    assert found.variants == (Variant.COLD, Variant.FRESH)
    assert [subject.label for subject in subjects(found)] == [
        "gpt2 · inference · full · cuda · bfloat16 · dynamic shapes",
        "my.package:model · inference · cuda · dynamic shapes",
    ]


def test_each_mode_of_torch_compile_is_a_subject_in_a_folder_of_its_own() -> None:
    line = "nanogpt my.package:model --training --inference --mode max-autotune,default --precision amp"
    found = subjects(parsed(*line.split()))

    assert [(each.mode, each.compile_mode) for each in found[:4]] == [
        (Mode.INFERENCE, "default"),
        (Mode.INFERENCE, "max-autotune"),
        (Mode.TRAINING, "default"),
        (Mode.TRAINING, "max-autotune"),
    ]
    assert found[1].label == "nanogpt · inference · small · cpu · amp · max-autotune"
    assert found[-1].folder == "my.package-model-training-cpu-amp-max-autotune"
    assert len({each.folder for each in found}) == len(found) == 8


@pytest.mark.parametrize(
    ("line", "inference", "training"),
    [
        ("", Precision.FLOAT32, Precision.FLOAT32),
        ("--size full", Precision.FLOAT32, Precision.FLOAT32),
        ("--device cuda", Precision.FLOAT32, Precision.FLOAT32),
        ("--device cuda --size full", Precision.BFLOAT16, Precision.AMP),
        ("--device cuda --size full --precision float32", Precision.FLOAT32, Precision.FLOAT32),
        ("--precision bfloat16", Precision.BFLOAT16, Precision.BFLOAT16),
    ],
)
def test_what_is_of_full_size_on_a_gpu_is_measured_in_bfloat16_unless_asked_otherwise(
    line: str, inference: Precision, training: Precision
) -> None:
    found = subjects(parsed("bert", "--training", "--inference", *line.split()))

    assert [each.precision for each in found] == [inference, training]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nanogtp", "did you mean nanogpt"),
        ("xyz", "the models are nanogpt, bert"),
        ("my module:f", "there is no model 'my'"),
        ("--runs 0", "--runs 0 is not a number"),
        ("--runs many", "--runs many"),
        ("--mode max-autotun", "did you mean max-autotune"),
        ("--mode ,", "--mode names none"),
        ("--idle soon", "--idle soon is no time"),
        ("--idle -1", "--idle -1 is no time"),
        ("--idle nan", "--idle nan is no time"),
        ("--variants restar", "did you mean restart"),
        ("--variants ,", "--variants names none"),
        ("--plot chart.pdf", "neither .svg nor .png"),
        ("--plot no/such/folder/chart.svg", "does not exist"),
        ("--json nanogpt", "put MODEL before --json"),
        ("--python /no/such/python", "cannot be run"),
        ("--stores --variants cold", "--stores draws no chart, has no variants"),
        ("--stores --keep here", "keeps nothing"),
        ("--keep no/such/folder/kept", "does not exist"),
        ("--parts redis", "--parts are those of --stores"),
        ("--stores --parts procesess", "did you mean processes"),
        ("--stores --parts ,", "--parts names none"),
        ("--stores --processes 1", "--processes 1"),
        ("--stores --entries few", "--entries few"),
        ("--redis redis+cluster://host", "know one server and no options"),
        ("--redis redis://host?ttl=5", "know one server and no options"),
        ("--redis host", "has no scheme of Redis"),
    ],
)
def test_wrong_usage_is_one_error_with_a_next_step(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *line.split()]) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert "next: " in shown.err


def test_a_missing_package_is_one_error_with_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    absent = {"transformers", "matplotlib"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else find(name))

    assert cli.main(["bench", "bert", "--plot", "chart.svg"]) == 1
    error = capsys.readouterr().err
    assert "needs transformers and matplotlib" in error
    assert "pip install 'nbcache[bench]'" in error

    command.check_packages(Options(models=("nanogpt",)))  # which needs neither


def test_the_command_loads_neither_torch_nor_jupyter_before_it_measures(run_python: RunPython) -> None:
    code = "import json, sys, nbcache.ui.terminal.parser; print(json.dumps(sorted(sys.modules)))"
    loaded = {name.partition(".")[0] for name in json.loads(run_python(code).stdout)}

    assert not loaded & {"torch", "IPython", "ipykernel", "jupyter_client", "matplotlib", "zstandard"}


def test_help_explains_variants_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["bench", "--help"])

    text = capsys.readouterr().out
    assert all(variant.value in text for variant in Variant)
    assert all(model in text for model in MODELS)
    assert all(mode in text for mode in COMPILE_MODES)


# --- what is measured -------------------------------------------------------------------------------


def test_runs_alternate_between_variants() -> None:
    planned = schedule(USUAL, (0.0, FULL), runs=2)

    one_round = [(each.variant, each.idle) for each in planned if each.number == 1]
    assert one_round == [
        (Variant.EAGER, None),
        (Variant.COLD, None),
        (Variant.TORCH_WARM, None),
        (Variant.MEGA_CACHE, None),
        (Variant.RESTART, 0.0),
        (Variant.RESTART, FULL),
        (Variant.FRESH, 0.0),
        (Variant.FRESH, FULL),
    ]
    assert [each.number for each in planned] == [1] * 8 + [2] * 8


def test_kernel_nursery_measures_forked_kernels_beside_ordinary_ones_without_idle_time() -> None:
    found = parsed("nanogpt", "--kernel", "nursery")
    assert [each.value for each in found.variants] == [
        "torch-warm",
        "restart",
        "traced",
        "forked",
        "forked-traced",
    ]
    assert (found.runs, found.idle) == (5, (0.0,))
    assert parsed("--kernel", "nursery", "--runs", "2", "--idle", "1").runs == 2
    assert (parsed().runs, parsed().idle) == (3, (0.0, FULL))
    for other in (["--variants", "forked"], ["--stores"]):
        with pytest.raises(ConfigError, match="--kernel nursery chooses the variants"):
            parsed("--kernel", "nursery", *other)


def test_what_it_takes_to_start_is_told_where_kernels_are_forked(result: Result) -> None:
    assert "import torch" not in report_text([result], MACHINE, Options())
    figures = {"ready_seconds": 0.21, "import_seconds": 0.04, "private_bytes": 130_000_000}
    forked = a_run(Variant.FORKED, 0.4, 1, 0.0, report=hit(), **{**figures, "start_seconds": 1.5})
    result.runs.append(forked)
    told = [" ".join(line.split()) for line in report_text([result], MACHINE, Options()).splitlines()]
    assert "kernel idle ready import torch private memory start of torch warm" in told
    assert "nbcache forked 0 s 210.0 ms 40.0 ms 130 MB 1.5 s 0.25" in told
    assert Run.from_json(json.loads(json.dumps(forked.to_json()))) == forked


def test_traces_have_a_cold_kernel_and_a_store_of_their_own() -> None:
    traced = (Variant.COLD_TRACED, Variant.TRACED)

    assert [each for each in Variant if each.keeps_traces] == [*traced, Variant.FORKED_TRACED]
    assert not {*traced} & {*USUAL}
    assert not any("NBCACHE_TRACE" in variables(each, "", Path()) for each in traced)
    assert variables(Variant.RESTART, "", Path()) == {"NBCACHE_TRACE": "off"}
    assert [each.variant for each in schedule(traced, (0.0, FULL), runs=1)] == [
        Variant.COLD_TRACED,
        Variant.TRACED,
        Variant.TRACED,
    ]


def test_that_a_hit_was_not_traced_is_no_cost() -> None:
    notes = ("not traced: 9 guards and 6 facts hold", "not traced: 9 guards hold; tuned again")
    runs = [
        a_run(Variant.TRACED, 0.1, number, FULL, report=doubtful_hit(note))
        for number, note in enumerate(notes)
    ]

    (row,) = rows_of(runs)

    assert row.reasons == ["tuned again"]


def test_all_variants_measure_the_same_cell_but_for_what_they_are() -> None:
    training = replace(SUBJECT, mode=Mode.TRAINING, dynamic=True, device="cuda")
    cells = {variant: measured_cell(training, variant, "/bundle") for variant in Variant}

    assert cells[Variant.COLD] == cells[Variant.TORCH_WARM] == cells[Variant.RESTART] == cells[Variant.FRESH]
    assert cells[Variant.MEGA_CACHE].splitlines()[1:] == cells[Variant.COLD].splitlines()
    assert cells[Variant.EAGER].splitlines()[1:] == cells[Variant.COLD].splitlines()[1:]
    assert "dynamic=True" in cells[Variant.COLD]
    assert "backward()" in cells[Variant.COLD]
    assert cells[Variant.COLD].endswith("torch.cuda.synchronize()")
    assert setup_cell(training).endswith("torch.cuda.synchronize()")  # or the next cell would wait for it
    for cell in (*cells.values(), setup_cell(training)):
        compile(cell, "cell", "exec")


@pytest.mark.parametrize("mode", Mode)
def test_amp_is_around_the_forward_alone_also_of_eager(mode: Mode) -> None:
    subject = replace(SUBJECT, mode=mode, compile_mode="reduce-overhead", precision=Precision.AMP)
    cell, eager = (measured_cell(subject, variant).splitlines() for variant in (Variant.COLD, Variant.EAGER))

    assert cell[0] == "compiled = torch.compile(model, mode='reduce-overhead')"
    assert cell[1:] == eager[1:]
    assert cell[1].startswith("with ")
    assert cell[1].endswith("torch.autocast('cpu', dtype=torch.bfloat16):")
    assert cell[2] == "    output = compiled(*args, **kwargs)"
    assert cell[3:] == (["total(output).backward()"] if mode is Mode.TRAINING else [])


def test_a_kernel_gets_folders_of_its_own_and_none_of_the_callers_settings(tmp_path: Path) -> None:
    caller = {
        "ATEN_CPU_CAPABILITY": "avx2",
        "CUDA_CACHE_PATH": "/cuda",
        "CUDA_VISIBLE_DEVICES": "1",
        "HOME": "/home/user",
        "JPY_SESSION_NAME": "mine.ipynb",
        "LD_LIBRARY_PATH": "/opt/lib",
        "NBCACHE_SAVE": "off",
        "PYTHONPATH": "/mine",
        "TORCHINDUCTOR_CACHE_DIR": "/cache",
        "TORCH_LOGS": "all",
        "TRITON_CACHE_DIR": "/triton",
        "TRITON_PTXAS_PATH": "/opt/ptxas",
        "XDG_CACHE_HOME": "/xdg",
    }
    found = environment(Home(tmp_path / "here"), caller, tmp_path / "path")

    assert found["CUDA_VISIBLE_DEVICES"] == "1"
    assert found["LD_LIBRARY_PATH"] == "/opt/lib"
    assert found["PYTHONPATH"] == f"{tmp_path}/path:/mine"
    assert found["HF_HOME"] == "/xdg/huggingface"
    assert found["TRITON_PTXAS_PATH"] == "/opt/ptxas"
    passed_on = {"CUDA_VISIBLE_DEVICES", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "TRITON_PTXAS_PATH"}
    assert not found.keys() & (caller.keys() - passed_on)
    for name in ("HOME", "TMPDIR", "NBCACHE_DIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        assert found[name].startswith(str(tmp_path / "here"))


def test_empty_folders_keep_only_what_a_variant_is_to_find(tmp_path: Path) -> None:
    stored = tmp_path / "stored"
    stored.mkdir()
    (stored / "entry").write_text("kept")
    home = Home(tmp_path / "here")
    home.empty()
    home.store.mkdir()
    for folder in (home.temporary, home.store, home.root / "home"):
        (folder / "left").touch()

    home.empty(keep_caches=True, store=stored)
    assert [each.name for each in home.temporary.iterdir()] == ["left"]
    assert [each.name for each in (home.root / "home").iterdir()] == ["left"]
    assert [each.name for each in home.store.iterdir()] == ["entry"]

    home.empty()
    assert not list(home.temporary.iterdir())
    assert not list((home.root / "home").iterdir())
    assert not home.store.exists()


def test_sizes_are_those_of_what_the_manifests_name_of_the_cell(tmp_path: Path) -> None:
    store = ArtifactStore(DirectoryStore(tmp_path))
    here = Environment((Component("torch.version", "2.13.0"),))
    kept = {type: Artifact(type, f"{type}-key", type.encode() * 1000) for type in ("inductor", "cpp_kernel")}
    refs = [store.put(here.digest, artifact, cell="measured") for artifact in kept.values()]
    refs.append(store.put(here.digest, Artifact("inductor", "sample", b"made by prewarming")))
    store.put(here.digest, Artifact("inductor", "unnamed", b"in no manifest"), cell="measured")
    store.save_manifest(Manifest(here, "", tuple(refs)))

    sizes = sizes_of(tmp_path, "measured")

    entry = {
        type: len(store.store.get(f"artifact/{artifact.digest}") or b"") for type, artifact in kept.items()
    }
    (manifest,) = store.store.keys("manifest/")
    assert sizes.artifacts == 2
    assert sizes.artifact_bytes == sum(len(artifact.content) for artifact in kept.values())
    assert sizes.common_bytes == entry["inductor"]
    assert sizes.store_bytes > sizes.snapshot_bytes
    assert sizes.snapshot_bytes == sum(entry.values()) + len(store.store.get(manifest) or b"")


# --- medians, tables, JSON, chart -------------------------------------------------------------------


def test_medians_and_ratios() -> None:
    assert median([3.0, None, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0]) == 2.5
    assert median([None]) is None
    assert ratio(10.0, 2.5) == 4.0
    assert ratio(None, 2.0) is None and ratio(1.0, None) is None
    assert [times(value) for value in (0.149, 1.04, 9.94, 12.6, None)] == [
        "0.15×",
        "1.0×",
        "9.9×",
        "13×",
        "–",
    ]


def test_rows_hold_the_medians_and_compare_them(result: Result) -> None:
    rows = {(row.variant, row.idle): row for row in rows_of(result.runs)}

    assert len(rows) == 8
    restart = rows[Variant.RESTART, FULL]
    assert (restart.cell_seconds, restart.cell_fastest, restart.cell_slowest) == (0.5, 0.45, 0.7)
    assert restart.times_torch_warm == pytest.approx(8.0)
    assert restart.start_times_torch_warm is None  # the idle time is part of it
    assert rows[Variant.RESTART, 0.0].start_times_torch_warm == pytest.approx(6.0 / 4.0)
    assert rows[Variant.FRESH, FULL].times_mega_cache == pytest.approx(20.0)
    assert rows[Variant.COLD, None].overhead_share == pytest.approx(0.01)
    assert restart.outcomes == {"hit": 1}
    assert restart.phases["outside"] == pytest.approx(0.2)


def test_a_row_shows_the_run_with_the_fewest_hits_and_any_disagreement(result: Result) -> None:
    bad = {"graphs": [graph("miss", build=1.0)], "notices": []}
    result.runs[4] = replace(result.runs[4], report=bad, agrees=False)

    (row,) = [row for row in rows_of(result.runs) if (row.variant, row.idle) == (Variant.RESTART, 0.0)]

    assert row.outcomes == {"miss": 1}
    assert not row.agrees


def test_a_kernel_compiled_or_tuned_again_shows_in_table_and_json(result: Result) -> None:
    fresh = [each for each in result.runs if (each.variant, each.idle) == (Variant.FRESH, FULL)]
    result.runs[result.runs.index(fresh[1])] = replace(fresh[1], report=doubtful_hit(), benchmarked=True)

    lines = report_text([result], MACHINE, Options(runs=3)).splitlines()
    (said,) = [line for line in lines if "a hit, but" in line]
    assert said.startswith(
        "  ! nbcache fresh, idle full: a hit, but 1 of 12 kernels compiled again; re-tuned"
    )
    assert "  torch benchmarked on the GPU, to choose what is fastest, in: nbcache fresh" in lines
    assert [line for line in lines if line.startswith("  nbcache fresh") and line.endswith("1 of 12")]
    (subject,) = report_json([result], MACHINE, Options(), interrupted=False)["subjects"]
    (row,) = [row for row in subject["medians"] if (row["variant"], row["idle"]) == ("fresh", FULL)]
    assert (row["kernels"], row["kernels_compiled"], row["benchmarked"]) == (12, 1, True)


def test_the_calls_before_the_hot_ones_are_medians_too() -> None:
    runs = [a_run(Variant.COLD, 1.0, number, next_seconds=(3.0 * number, 0.2, 0.1)) for number in (1, 2, 3)]

    assert rows_of(runs)[0].next_seconds == [6.0, 0.2, 0.1]


def test_what_is_kept_comes_back_as_it_was(result: Result, tmp_path: Path) -> None:
    traffic = Traffic({"get": 3}, 2)
    torchs = {"next_seconds": [0.3, 0.2], "counters": {"fxgraph_cache_hit": 1}, "benchmarked": True}
    result.runs.append(a_run(Variant.SHARED, 1.0, 1, 2.5, asked_before=traffic, asked=traffic, **torchs))
    result.held[Variant.SHARED] = Held(3, 30, 40, 20, {"inductor": 20}, asked=traffic)
    result.notes.append("it was hot that day")
    result.uncounted_seconds = 60.0
    here = kept.identity(Options())

    kept.save(tmp_path, result, MACHINE, here)
    assert kept.load(tmp_path, SUBJECT, here) == (result, MACHINE)
    assert kept.load(tmp_path / "nothing", SUBJECT, here) == (Result(SUBJECT), {})
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]

    with pytest.raises(BenchError, match=r"torch\.version was .*, is 9\.9"):
        kept.load(tmp_path, SUBJECT, here | {"torch.version": "9.9"})
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(BenchError, match="cannot be read"):
        kept.load(tmp_path, SUBJECT, here)


@pytest.mark.parametrize("field", ["format", "identity", "environment", "result"])
def test_a_file_that_lacks_something_is_not_taken_for_ours(
    result: Result, tmp_path: Path, field: str
) -> None:
    kept.save(tmp_path, result, MACHINE, {"nbcache": "0.1.0"})
    file = tmp_path / "result.json"
    values = json.loads(file.read_text())
    del values[field]
    file.write_text(json.dumps(values))

    with pytest.raises(BenchError, match="this was not kept by nbcache bench"):
        kept.load(tmp_path, SUBJECT, {"nbcache": "0.1.0"})


def test_without_the_reference_variants_there_are_no_ratios(result: Result) -> None:
    only = [run for run in result.runs if run.variant is Variant.RESTART]

    assert {row.times_torch_warm for row in rows_of(only)} == {None}
    assert rows_of([]) == []


def test_the_table_has_each_variant_with_its_figures(result: Result) -> None:
    text = report_text([result, replace_subject(result, Mode.TRAINING)], MACHINE, Options())

    assert all(len(line) <= 110 for line in text.splitlines())
    assert all(line == line.rstrip() for line in text.splitlines())
    (restart,) = [line for line in text.splitlines() if line.split()[:3] == ["nbcache", "restart", "full"]][
        :1
    ]
    assert "0.50 s" in restart and "8.0×" in restart and "1 hit" in restart and "yes ±1e-06" in restart
    assert "40 kB, 0.10 of its bundle's 400 kB" in text
    assert "recording: 200 ms of the cold cell, 1.00 %" in text
    assert "outside compile" in text
    overview = text.splitlines()[-2:]
    assert [line.split()[:2] for line in overview] == [["nanogpt", "inference"], ["nanogpt", "training"]]


def replace_subject(result: Result, mode: Mode) -> Result:
    return Result(replace(result.subject, mode=mode), list(result.runs), result.sizes)


def test_a_failed_subject_is_one_line_and_hides_no_other(result: Result) -> None:
    failed = Result(replace(SUBJECT, model="my:model"), error="ValueError: no weights\nhere")
    text = report_text([failed, result], MACHINE, Options())

    assert "  FAILED ValueError: no weights here" in text.splitlines()
    assert "nbcache restart" in text


def test_the_json_has_all_runs_medians_sizes_and_the_environment(result: Result) -> None:
    values = json.loads(json.dumps(report_json([result], MACHINE, Options(), interrupted=False)))

    assert values["format"] == "nbcache.bench" and values["version"] == 1
    assert values["environment"] == MACHINE
    assert values["options"]["idle"] == [0.0, "full"]
    (subject,) = values["subjects"]
    assert len(subject["runs"]) == 24 and len(subject["medians"]) == 8
    assert subject["sizes"]["bundle_ratio"] == 10.0
    assert subject["hot_seconds"] == 0.003
    assert {run["variant"] for run in subject["runs"]} == {variant.value for variant in USUAL}
    assert subject["runs"][4]["phases"]["load"] == 0.1


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_chart_has_a_bar_for_each_variant(result: Result, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"chart{suffix}"
    only_eager = Result(replace(SUBJECT, model="bert"), [a_run(Variant.EAGER, 0.01)])
    draw([result, only_eager, Result(SUBJECT, error="failed")], MACHINE, str(file))

    assert list(bars_of(result)) == [
        *((variant.value, None) for variant in USUAL if not variant.idles),
        *((name, idle) for name in ("restart", "fresh") for idle in (0.0, FULL)),
        ("hot", None),
    ]
    if suffix == ".svg":
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
    else:
        assert file.read_bytes().startswith(b"\x89PNG")


def test_populating_is_shown_beside_what_torch_needs_for_it() -> None:
    saving = {"snapshot": 0.25, "mega-cache": 0.05}
    figures = {"artifacts": 1000, "content": 100_000_000, "save_seconds": saving}
    populations = [
        Population("nbcache", 7_000_000, (0.5, 0.4, 0.6), 1000),
        Population("mega-cache", 100_100_000, (1.0, 1.1, 0.9), 1000),
    ]
    text = populations_text(populations, figures)
    values = populations_json(populations, figures)

    assert "populating 1,000 artifacts, 100 MB of content" in text
    assert "0.500" in text and "2.0×" in text and "the snapshot took 0.250 s" in text
    assert [way["median_seconds"] for way in values["ways"]] == [0.5, 1.0]


# --- kernels ----------------------------------------------------------------------------------------


class Asked:
    """A kernel whose prewarming is in one state after the other."""

    def __init__(self, *states: str | None) -> None:
        self.states = list(states)

    def ask(self, expression: str) -> str | None:
        assert "session.prewarm.state" in expression
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


def test_prewarming_is_waited_for_until_it_is_over() -> None:
    def state(*states: str | None, most: float = 60.0) -> str | None:
        return prewarmed(Asked(*states), settle=0.0, poll=0.0, most=most)  # type: ignore[arg-type]

    assert state("off", "running", "done") == "done"
    assert state("switched off") == "switched off"
    assert state(None) is None
    assert state("running", most=0.0) == "running"


@pytest.fixture
def fresh(tmp_path: Path) -> AbstractContextManager[Kernel]:
    """Return what starts a kernel in folders of its own, and ends it."""
    home = Home(tmp_path / "here")
    home.empty()
    variables = environment(home, os.environ, link_package(tmp_path))
    return kernel(sys.executable, home, variables, tmp_path)


def test_a_kernel_runs_cells_answers_and_leaves_no_process(fresh: AbstractContextManager[Kernel]) -> None:
    with fresh as running:
        cell = running.run(
            "import subprocess, time; time.sleep(0.2); child = subprocess.Popen(['sleep', '600'])"
        )
        assert 0.2 <= cell.seconds < cell.ended - running.started
        assert cell.execution_count == 1
        assert running.ask("'a' + 'b'") == "ab"
        assert running.ask("no_such_name") is None
        assert running.run("import nbcache.core.errors").execution_count == 2
        with pytest.raises(CellFailed, match=r"ValueError: wrong .*in the cell `raise"):
            running.run("raise ValueError('wrong\\nmore')")
        processes = [
            int(running.ask("str(__import__('os').getpid())") or 0),
            int(running.ask("str(child.pid)") or 0),
        ]

    until = time.monotonic() + 10
    while any(is_running(process) for process in processes) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(is_running(process) for process in processes)


@pytest.mark.compile
def test_a_kernel_that_dies_says_so(fresh: AbstractContextManager[Kernel]) -> None:
    with (
        fresh as running,
        pytest.raises(CellFailed, match="the kernel died"),
    ):
        running.run("import os; os._exit(3)")


@pytest.mark.compile
def test_a_kernel_whose_ports_were_taken_at_its_start_is_started_again(
    fresh: AbstractContextManager[Kernel],
) -> None:
    with kernel_ports.taken() as given, fresh as running:
        assert running.ask("'a' + 'b'") == "ab"
    assert len(given) == 10


def is_running(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


# --- through the front door -------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a folder with a user's own model, `bench_own:make`."""
    (tmp_path / "bench_own.py").write_text(OWN)
    return tmp_path


def bench(folder: Path, environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_interpreter(["-m", "nbcache", "bench", *arguments], environ, folder)


@pytest.mark.compile
@pytest.mark.proof
def test_every_variant_of_the_users_own_model_is_measured(own: Path, isolated: dict[str, str]) -> None:
    done = bench(
        own, isolated, "bench_own:make", "--runs=1", "--idle=0", "--json", "out.json", "--plot", "out.svg"
    )

    assert done.returncode == 0, done.stdout + done.stderr
    (subject,) = json.loads((own / "out.json").read_text())["subjects"]
    runs = {run["variant"]: run for run in subject["runs"]}
    assert list(runs) == ["eager", "cold", "torch-warm", "mega-cache", "restart", "fresh"]
    outcomes = {
        name: [graph["outcome"] for graph in run["report"]["graphs"]]
        for name, run in runs.items()
        if run["report"]
    }
    assert outcomes == {"cold": ["miss"], "restart": ["hit"], "fresh": ["hit"]}
    assert all(run["agrees"] for run in runs.values())
    assert all(run["start_seconds"] > run["cell_seconds"] > 0 for run in runs.values())
    assert 0 < subject["sizes"]["common_bytes"] < subject["sizes"]["snapshot_bytes"]
    assert subject["sizes"]["bundle_bytes"] > subject["sizes"]["common_bytes"]
    assert "1 miss" in done.stdout and "1 hit" in done.stdout
    assert ElementTree.parse(own / "out.svg").getroot().tag.endswith("svg")
    assert not list(Path(isolated["TMPDIR"]).iterdir())  # nothing is left behind


@pytest.mark.compile
@pytest.mark.proof
def test_traces_are_measured_where_they_are_asked_for(own: Path, isolated: dict[str, str]) -> None:
    variants = "--variants=restart,cold-traced,traced"
    done = bench(own, isolated, "bench_own:make", "--runs=1", "--idle=0", "--json", "out.json", variants)

    assert done.returncode == 0, done.stdout + done.stderr
    (subject,) = json.loads((own / "out.json").read_text())["subjects"]
    found = {
        run["variant"]: [(graph["outcome"], graph.get("trace")) for graph in run["report"]["graphs"]]
        for run in subject["runs"]
    }
    assert found == {
        "restart": [("hit", None)],
        "cold-traced": [("miss", None)],
        "traced": [("hit", "adopted" if HAS_TRACES else None)],
    }
    assert (subject["traced_sizes"]["trace_bytes"] > 0) == HAS_TRACES
    assert subject["sizes"]["trace_bytes"] == 0
    assert "with traces: " in done.stdout and "not traced: " not in done.stdout


@pytest.mark.compile
@pytest.mark.proof
def test_forked_kernels_are_measured_where_they_are_asked_for(own: Path, isolated: dict[str, str]) -> None:
    variants = "--variants=restart,forked"
    done = bench(own, isolated, "bench_own:make", "--runs=1", "--idle=0", "--json", "out.json", variants)

    assert done.returncode == 0, done.stdout + done.stderr
    (subject,) = json.loads((own / "out.json").read_text())["subjects"]
    found = {run["variant"]: [each["outcome"] for each in run["report"]["graphs"]] for run in subject["runs"]}
    assert found == {"restart": ["hit"], "forked": ["hit"]}


@pytest.mark.compile
@pytest.mark.proof
def test_one_compile_can_do_for_torchs_caches_and_nbcaches(own: Path, isolated: dict[str, str]) -> None:
    line = "bench_own:make --compile-once --runs=1 --idle=0 --json out.json --training --precision=amp"
    done = bench(own, isolated, *line.split(), "--variants=cold,torch-warm,mega-cache,restart")
    if release(torch_version() or "") < (2, 13):  # whose keys leave out autocast's dtype
        assert done.returncode == 1
        assert "torch-warm compiled anew what nbcache had compiled" in done.stdout + done.stderr
        return

    assert done.returncode == 0, done.stdout + done.stderr
    (subject,) = json.loads((own / "out.json").read_text())["subjects"]
    runs = {run["variant"]: run for run in subject["runs"]}
    assert subject["uncounted_seconds"] is None
    assert {graph["outcome"] for graph in runs["cold"]["report"]["graphs"]} == {"miss"}
    assert {graph["outcome"] for graph in runs["restart"]["report"]["graphs"]} == {"hit"}
    for name in ("torch-warm", "mega-cache"):
        assert runs[name]["counters"]["fxgraph_cache_hit"] == 2  # forward and backward
        assert "fxgraph_cache_miss" not in runs[name]["counters"]
    assert all(run["agrees"] for run in runs.values())


def test_torch_warm_has_all_caches_of_the_one_compile(tmp_path: Path) -> None:
    """Without torch's headers, which are not in its folder, the warm kernel compiled them: 9 s, and not 4."""
    places = runner._Places(tmp_path)
    cold, warm = places.of(Variant.COLD), places.of(Variant.TORCH_WARM)
    cold.empty()
    folder = places.empty_torchs()
    modules, headers = Path("home/.triton/cache/a.so"), Path("tmp", folder.name, "precompiled_headers/a.gch")
    for left in (modules, headers):
        (cold.root / left).parent.mkdir(parents=True)
        (cold.root / left).touch()
    folder.mkdir()

    places.give_torchs(cold)
    warm.empty(keep_caches=True)

    assert folder.parent == warm.temporary
    assert (warm.root / modules).exists() and (warm.root / headers).exists()


@pytest.mark.compile
@pytest.mark.proof
def test_a_command_that_was_killed_goes_on_where_it_was(own: Path, isolated: dict[str, str]) -> None:
    line = "bench_own:make --variants=cold,restart --runs=1 --idle=0 --keep kept --json out.json"
    arguments = [*line.split(), "--mode=max-autotune-no-cudagraphs", "--precision=bfloat16"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nbcache", "bench", *arguments],
        cwd=own,
        env=isolated,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for each in process.stderr:
        if "cold: " in each:
            break
    process.kill()
    process.communicate()
    left = json.loads((own / "out.json").read_text())
    assert left["interrupted"]
    assert [run["variant"] for run in left["subjects"][0]["runs"]] == ["cold"]

    done = bench(own, isolated, *arguments)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 2 runs are kept" in done.stderr and "preparing" not in done.stderr
    values = json.loads((own / "out.json").read_text())
    (subject,) = values["subjects"]
    assert not values["interrupted"]
    assert (subject["compile_mode"], subject["precision"]) == ("max-autotune-no-cudagraphs", "bfloat16")
    assert subject["runs"][0] == left["subjects"][0]["runs"][0]
    outcomes = {
        run["variant"]: [each["outcome"] for each in run["report"]["graphs"]] for run in subject["runs"]
    }
    assert outcomes == {"cold": ["miss"], "restart": ["hit"]}
    assert all(run["agrees"] and run["tolerance"] == 0.01 for run in subject["runs"])
    assert [str(each.relative_to(own / "kept")) for each in (own / "kept").rglob("*") if each.is_file()] == [
        "bench_own-make-inference-cpu-bfloat16-max-autotune-no-cudagraphs/result.json"
    ]


@pytest.mark.compile
@pytest.mark.proof
def test_a_subject_that_fails_is_told_and_the_next_one_is_measured(
    own: Path, isolated: dict[str, str]
) -> None:
    names = ["bench_none:make", "bench_own:absent", "bench_own:number", "bench_own:failing", "bench_own:make"]
    done = bench(own, isolated, *names, "--variants=eager", "--runs=1", "--training", "--json")

    assert done.returncode == 1
    subjects = json.loads(done.stdout)["subjects"]
    expected = [
        "there is no module 'bench_none'",
        "there is no function 'absent' in 'bench_own'",
        "the function returned int, not (model, example inputs)",
        "ValueError: no weights here",
    ]
    for subject, error in zip(subjects, expected, strict=False):
        assert error in subject["error"]
        assert error in done.stderr
    assert subjects[-1]["error"] is None
    assert subjects[-1]["runs"][0]["agrees"]


@pytest.mark.compile
def test_an_interrupt_shows_what_was_measured_and_leaves_no_kernel(
    own: Path, isolated: dict[str, str]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "nbcache", "bench", "bench_own:make", "--variants=eager", "--runs=1000"],
        cwd=own,
        env=isolated,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "run 2 of 1000" in line:
            break
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "bench_own:make · inference" in shown and "eager" in shown
    assert not list(Path(isolated["TMPDIR"]).iterdir())
    kernels = [
        each for each in Path("/proc").glob("[0-9]*/environ") if str(own).encode() in read_or_nothing(each)
    ]
    assert not kernels


def test_an_interrupt_is_one_also_where_it_comes_out_as_an_error() -> None:
    def remove() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise OSError(errno.EBADF, "as `shutil.rmtree` may") from None

    with interruptible() as come, pytest.raises(KeyboardInterrupt), told_as_interrupt(come):
        remove()
    with interruptible() as come, pytest.raises(OSError, match="full"), told_as_interrupt(come):
        raise OSError("full")


def read_or_nothing(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has ended since, or is somebody else's
        return b""


@pytest.mark.compile
def test_in_a_notebook_it_prints_what_the_command_says(
    own: Path, isolated: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(own)
    for name in ("TMPDIR", "HOME", "PYTHONPATH"):
        monkeypatch.setenv(name, isolated[name])

    command.run_in_notebook(["bench_own:make", "--variants", "eager", "--runs", "1"])
    assert "bench_own:make · inference · cpu" in capsys.readouterr().out

    with pytest.raises(NbcacheError, match="status 2"):
        command.run_in_notebook(["nanogtp"])
    assert "did you mean nanogpt?" in capsys.readouterr().out


@pytest.mark.compile
def test_an_interrupted_cell_ends_the_command(
    own: Path, isolated: dict[str, str], run_python: RunPython
) -> None:
    code = textwrap.dedent("""\
        import os, signal, sys
        from nbcache.bench.command import run_in_notebook

        signal.signal(signal.SIGINT, signal.default_int_handler)  # as a kernel does

        class Interrupting:
            def write(self, text):
                sys.__stdout__.write(text)
                if "run 1 of 1000" in text:
                    os.kill(os.getpid(), signal.SIGINT)

            def flush(self):
                pass

        sys.stdout = Interrupting()
        try:
            run_in_notebook(["bench_own:make", "--variants", "eager", "--runs", "1000"])
        except KeyboardInterrupt:
            print("it was interrupted")
    """)
    shown = run_python(code).stdout

    assert shown.endswith("it was interrupted\n")
    assert "one fresh kernel each" not in shown and "medians of 1000" in shown
    assert not list(Path(isolated["TMPDIR"]).iterdir())


# --- the models -------------------------------------------------------------------------------------

MODEL = """\
import torch
from nbcache.bench.measured import total
from nbcache.bench.models import build
case = build({model!r}, training=True)
again = build({model!r}, training=True)
output = case.model(*case.args, **case.kwargs)
total(output).backward()
assert torch.equal(total(output), total(again.model(*again.args, **again.kwargs)))
kind = type(case.model).__name__
assert all(each.grad is not None for each in case.model.parameters()), "a parameter without gradient"
layers = [m for m in case.model.modules() if type(m).__name__.endswith({layer!r})]
print(kind, len(layers))
"""


@pytest.mark.compile
@pytest.mark.parametrize(
    ("model", "layer", "expected"),
    [
        ("nanogpt", "_Block", "NanoGPT 6"),
        pytest.param("resnet50", "Conv2d", "ResNet50 53", marks=pytest.mark.proof),
        pytest.param("bert", "BertLayer", "BertForMaskedLM 12", marks=pytest.mark.proof),
        pytest.param("gpt2", "GPT2Block", "GPT2LMHeadModel 12", marks=pytest.mark.proof),
        pytest.param("llama", "LlamaDecoderLayer", "LlamaForCausalLM 12", marks=pytest.mark.proof),
    ],
)
def test_a_standard_model_has_its_real_depth_trains_and_is_the_same_each_time(
    model: str, layer: str, expected: str, run_python: RunPython
) -> None:
    assert run_python(MODEL.format(model=model, layer=layer), having="torch").stdout.strip() == expected


AGREEMENT = """\
import torch
from nbcache.bench.measured import _agreement, _copies, _results
from nbcache.bench.models import Case

class Rounding(torch.nn.Module):  # twice its input, but for what float64 does not have
    def forward(self, x):
        return x * 2 if x.dtype == torch.float64 else x * 2 + 0.05

def found(compiled, eager, training=False):
    x = torch.linspace(0, 1, 5, requires_grad=training)
    case = Case(eager, (x,), training=training)
    output = compiled(x)
    if training:
        output.sum().backward()
    return _agreement(case, _copies(_results(case, output)))["agrees"]

nan = float("nan")
print(
    found(lambda x: x * 2, lambda x: x * 2 + 1e-5),
    found(lambda x: x * 2, lambda x: x * 2 + 1e-2),
    found(lambda x: (x, {"a": x}), lambda x: (x, {"a": x})),
    found(lambda x: (x, {"a": x}), lambda x: (x, {"a": x + 1})),
    found(lambda x: x[:2], lambda x: x),
    found(lambda x: x * nan, lambda x: x),
    found(lambda x: x * nan, lambda x: x * nan),
    found(lambda x: x / 0, lambda x: x / 0),
    found(lambda x: x * x, lambda x: x * x, training=True),
    found(lambda x: x * x, lambda x: x.detach() * x, training=True),
    found(lambda x: x * 2, Rounding()),
    found(lambda x: x * 3, Rounding()),
)
"""


@pytest.mark.compile
def test_agreement_is_of_all_results_and_gradients_within_tolerance(run_python: RunPython) -> None:
    assert run_python(AGREEMENT, having="torch").stdout.split() == [
        "True", "False", "True", "False", "False", "False", "True", "True", "True", "False", "True", "False",
    ]  # fmt: skip


PRECISION = """\
import copy, torch
from nbcache.bench.measured import _agreement, _called, _copies
from nbcache.bench.models import Case, build

for training in (False, True):
    for precision in ("bfloat16", "amp"):
        case = build("nanogpt", training=training, precision=precision)
        parameters = {each.dtype for each in case.model.parameters()}
        assert parameters == {torch.bfloat16 if precision == "bfloat16" else torch.float32}
        own = _copies(_called(case, case.model))
        assert own.outputs[0].dtype == torch.bfloat16
        assert len(own.gradients) == (len(list(case.model.parameters())) if training else 0)

        finer = copy.deepcopy(case.model).float()  # rounds less than eager does: what compiled code may do
        finer = _copies(_called(Case(finer, case.args, {}, training), finer))
        for group, like in zip(finer.groups, own.groups):
            group[:] = [each.to(other.dtype) for each, other in zip(group, like)]
        wrong = copy.deepcopy(case.model)
        with torch.no_grad():
            wrong.blocks[3].network[0].weight.zero_()
        wrong = _copies(_called(Case(wrong, case.args, {}, training, precision=case.precision), wrong))
        agreements = [_agreement(case, each) for each in (own, finer, wrong)]
        assert agreements[0]["difference"] == 0.0 < agreements[1]["difference"]
        print(*(each["agrees"] for each in agreements))
"""


@pytest.mark.compile
@pytest.mark.proof
def test_in_bfloat16_what_rounds_otherwise_agrees_and_what_is_wrong_does_not(run_python: RunPython) -> None:
    assert run_python(PRECISION).stdout.splitlines() == ["True True False"] * 4


@pytest.mark.compile
@pytest.mark.proof
def test_populating_writes_every_artifact_either_way(run_python: RunPython, tmp_path: Path) -> None:
    code = textwrap.dedent(f"""\
        import json, os, sys
        from pathlib import Path
        from nbcache.bench.stores import populate
        populate.artifacts.__defaults__ = (20, 1_000_000)
        found = []
        folder = Path({str(tmp_path)!r}, "stored")
        folder.mkdir()
        populate.main("fill", folder, folder / "out")
        found.append(json.loads((folder / "out").read_text()))
        for way in populate.WAYS:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / way)
            populate.main(way, folder, folder / "out")
            found.append(json.loads((folder / "out").read_text()))
        files = [
            sorted((p.name, p.read_bytes()) for p in (folder / way / "fxgraph").rglob("*") if p.is_file())
            for way in populate.WAYS
        ]
        assert files[0] and files[0] == files[1] == files[2]
        assert list(populate.artifacts(20, 1_000_000)) == list(populate.artifacts(20, 1_000_000))
        print(json.dumps(found))
    """)
    filled, *ways = json.loads(run_python(code, having="torch").stdout)

    assert (filled["artifacts"], filled["content"]) == (20, 1_000_000)
    assert max(filled["bytes"]["nbcache"], filled["bytes"]["snapshot"]) < filled["bytes"]["mega-cache"] / 5
    assert [way["present"] for way in ways] == [20] * 3


def test_another_interpreter_needs_the_same_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answers:
        def __enter__(self) -> Answers:
            return self

        def __exit__(self, *_: object) -> None: ...

        def run(self, source: str) -> None: ...

        def ask(self, expression: str) -> str:
            return "2.11.0"

    bench = Runner(
        Options(python="/other/python"), tmp_path, say=lambda line: None, environment={"torch": "2.13.0"}
    )
    monkeypatch.setattr(Runner, "_kernel", lambda self, python, home: Answers())

    with pytest.raises(BenchError, match=r"torch is 2\.11\.0 there and 2\.13\.0 here"):
        bench._check_other_python(SUBJECT, runner._Places(tmp_path / "subject"))


def test_a_broken_store_has_no_sizes(tmp_path: Path) -> None:
    DirectoryStore(tmp_path).put("manifest/a", b"not an entry")

    with pytest.raises(BenchError, match="cannot be read"):
        sizes_of(tmp_path, "")


def test_config_errors_are_usage_errors() -> None:
    with pytest.raises(ConfigError):
        parsed("--idle", "never")
