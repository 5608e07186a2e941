"""`make bench`: the project's own benchmarks still run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import entries
from benchmarks.redis_server import started_server
from benchmarks.standard import ROOT, STANDARD, Model
from nbcache.core.errors import NbcacheError
from support.front_door import run_interpreter


@pytest.mark.compile
@pytest.mark.proof
def test_a_small_model_is_measured_in_all_kinds_of_kernels(tmp_path, isolated):
    variants = "cold,torch-warm,restart,shared,forked"
    arguments = ["benchmarks.models:pieces", "--runs=1", "--idle=0", "--variants", variants, "--json"]

    done = run_interpreter(["-m", "benchmarks", *arguments, str(tmp_path / "out.json")], isolated, ROOT)

    assert done.returncode == 0, done.stdout + done.stderr
    (subject,) = json.loads((tmp_path / "out.json").read_text())["subjects"]
    outcomes = {row["variant"]: row["outcomes"] for row in subject["medians"]}
    hits = {name: {"hit": 3} for name in ("restart", "shared", "forked")}
    assert outcomes == {"cold": {"miss": 3}, "torch-warm": {}, **hits}
    assert all(run["more"]["agrees"] for run in subject["runs"])
    assert 0 < subject["sizes"]["cold"]["common_bytes"] < subject["sizes"]["cold"]["bundle_bytes"]
    assert subject["redis"]["shared"]["keys"] > 0
    assert "seconds in the cell" in done.stdout
    assert not list(Path(isolated["TMPDIR"]).iterdir())


MODEL = """\
import torch
from benchmarks.inside import build, total
case, again = (build({model!r}, "small", "cpu", True, "float32") for _ in range(2))
output = case.model(*case.args, **case.kwargs)
total(output).backward()
assert torch.equal(total(output), total(again.model(*again.args, **again.kwargs)))
assert all(parameter.grad is not None for parameter in case.model.parameters())
print(sum(type(module).__name__.endswith({layer!r}) for module in case.model.modules()))
"""


@pytest.mark.compile
@pytest.mark.parametrize(
    ("model", "layer", "count"),
    [
        ("nanogpt", "_Block", "6"),
        pytest.param("resnet50", "Conv2d", "53", marks=pytest.mark.proof),
        pytest.param("bert", "BertLayer", "12", marks=pytest.mark.proof),
        pytest.param("gpt2", "GPT2Block", "12", marks=pytest.mark.proof),
        pytest.param("llama", "LlamaDecoderLayer", "12", marks=pytest.mark.proof),
    ],
)
def test_a_standard_model_has_its_real_depth_trains_and_is_the_same_each_time(model, layer, count, isolated):
    code = MODEL.format(model=model, layer=layer)
    assert run_interpreter(["-c", code], isolated, ROOT).stdout.strip() == count


AGREEMENT = """\
import torch
from benchmarks.inside import Case, _agreement, _results

class Scaled(torch.nn.Module):
    def __init__(self, rounding=0.0):
        super().__init__()
        self.rounding = rounding

    def forward(self, x):  # exact in float64
        return x * 2 if x.dtype == torch.float64 else x * 2 + self.rounding

x = torch.linspace(0, 1, 5)
for eager, compiled in (
    (Scaled(), lambda x: x * 2 + 1e-5),
    (Scaled(), lambda x: x * 2 + 1e-2),
    (Scaled(), lambda x: x * float("nan")),
    (Scaled(0.05), lambda x: x * 2),
    (Scaled(0.05), lambda x: x * 3),
):
    case = Case(eager, (x,))
    agreement = _agreement(case, _results(case, compiled(x)))
    print(agreement["agrees"], agreement["compared_with"])
"""


@pytest.mark.compile
def test_results_agree_with_eager_or_are_as_near_to_float64(isolated):
    assert run_interpreter(["-c", AGREEMENT], isolated, ROOT).stdout.splitlines() == [
        "True eager",
        "False float64",
        "False float64",
        "True float64",
        "False float64",
    ]


def test_variants_measure_the_same_cell_and_amp_is_around_the_forward_alone():
    for mode in ("inference", "training"):
        model = Model("nanogpt", mode, "reduce-overhead", device="cuda", precision="amp", dynamic=True)
        cells = {name: model.cells(variant) for name, variant in STANDARD.items()}
        call = "compile and call"
        lines = {name: each[call].splitlines() for name, each in cells.items()}
        plain = lines["cold"]
        assert plain[0] == "compiled = torch.compile(model, mode='reduce-overhead', dynamic=True)"
        assert "torch.autocast('cuda', dtype=torch.bfloat16):" in plain[1]
        assert plain[3:] == [*["total(output).backward()"] * (mode == "training"), "torch.cuda.synchronize()"]
        assert lines.pop("mega-cache")[1:] == plain
        assert lines.pop("eager")[1:] == plain[1:]
        assert all(other == plain for other in lines.values())


def test_commands_that_are_sent_together_are_one_round_trip(tmp_path):
    with started_server(tmp_path) as server:
        server.store.put("a", b"value")
        before = server.counts()
        server.store.put("b", b"value")
        server.store.get_many(["a", "b", "c"])
        traffic = server.counts().since(before)

    assert traffic == {"commands": {"get": 3, "set": 1}, "round_trips": 2}


def test_a_database_that_is_not_empty_is_left_as_it_is(redis_server, tmp_path):
    with redis_server.client() as client:
        client.set("mine", "kept")
        with pytest.raises(NbcacheError, match="has 1 keys"), started_server(tmp_path, redis_server.url):
            pass
        assert client.get("mine") == b"kept"


def test_a_redis_of_a_thousand_artifacts_is_filled_and_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "_LONG", 0.0)
    with started_server(tmp_path) as server:
        text = entries.entries_text(server, tmp_path, 1000, lambda line: None)

    lines = [line.split() for line in text.splitlines()]
    (look_up,) = [line for line in lines if line[:4] == ["look", "one", "artifact", "up"]]
    assert look_up[-1] == "1"
    assert len(lines) == len(entries._ACTIONS) + 3
