"""What newer versions of torch do in another way, each tried on the torch that is here."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nbcache.torch_bridge import environment, torch_behavior
from nbcache.torch_bridge.torch_behavior import release, torch_version
from support.front_door import LOAD, REPORTS, Environ, RunCells, graphs, outcomes

RELEASE = release(torch_version() or "0.0")

# --- CXX ------------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of programs that does nothing, in front of PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("ccache", "g++"):
        (folder / name).write_text('#!/bin/sh\ncase "$0" in *ccache) exec "$@";; esac\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_a_compiler_with_arguments_is_known_by_all_its_programs(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_behavior, "torch_version", lambda: "2.15.0")
    identities = set()
    for named, command in {
        "g++": [str(programs / "g++")],
        "ccache g++": [str(programs / "ccache"), "g++"],
        "ccache g++ -O1": [str(programs / "ccache"), "g++", "-O1"],
        "ccache 'g++'": [str(programs / "ccache"), "g++"],
    }.items():
        monkeypatch.setenv("CXX", named)
        assert environment.compiler() == (named, command)
        identities.add(environment.compiler_identity())
    assert len(identities) == 3

    monkeypatch.setenv("CXX", "ccache g++")
    before = environment.compiler_identity()
    (programs / "g++").write_text("#!/bin/sh\n# another version\n")
    assert environment.compiler_identity() != before

    for unusable in ("ccache 'g++", "no-such-ccache g++"):
        monkeypatch.setenv("CXX", unusable)
        assert environment.compiler() == (unusable, None) and environment.compiler_identity() is None

    monkeypatch.setattr(torch_behavior, "torch_version", lambda: "2.14.1")
    monkeypatch.setenv("CXX", "ccache g++")
    assert environment.compiler() == ("ccache g++", None)


@pytest.mark.compile
@pytest.mark.skipif(RELEASE < (2, 15), reason="this torch takes no arguments in CXX")
def test_what_a_compiler_with_arguments_has_built_hits(
    isolated: dict[str, str], run_cells: RunCells, wipe: Callable[[Environ], None], tmp_path: Path
) -> None:
    wrapper = tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\nexec "$@"\n')
    wrapper.chmod(0o755)
    env = isolated | {"CXX": f"{wrapper} {shutil.which('g++')}"}
    cells = [LOAD, "import torch\nf = torch.compile(lambda x: (x + 1).sin())\nf(torch.ones(8))", REPORTS]
    assert outcomes(run_cells(cells, env)) == ["miss"]
    wipe(env)

    notebook = run_cells(cells, env)

    assert outcomes(notebook) == ["hit"]
    assert graphs(notebook)[0]["kernels_compiled"] == 0


# --- autocast -------------------------------------------------------------------------------------

AUTOCAST = """\
import torch
layer = torch.nn.Linear(8, 8)
@torch.compile
def f(x):
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x)
with torch.no_grad():
    f(torch.ones(2, 8))
"""


@pytest.mark.compile
def test_a_graph_under_autocast_hits_where_torch_caches_it(
    isolated: dict[str, str], run_cells: RunCells, wipe: Callable[[Environ], None]
) -> None:
    cells = [LOAD, AUTOCAST, REPORTS]
    run_cells(cells, isolated)
    wipe(isolated)

    (graph,) = graphs(run_cells(cells, isolated))

    assert graph["outcome"] == "hit"
    if RELEASE >= (2, 14):
        assert graph["reason"] is None
    else:
        assert "AOTAutograd bypassed" in (graph["reason"] or "AOTAutograd bypassed")
