"""A nursery and NVIDIA's library, of which a stand-in is loaded into all its processes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.nurseries import Place, nursery_of

pytestmark = [
    pytest.mark.compile,
    pytest.mark.xdist_group("files of packages"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc"),
]
SOURCE = Path(__file__).parents[1] / "gpu" / "stand_in" / "counted.c"
INITIALIZING = """\
import ctypes, sys
if "nbcache.launcher.nursery" in " ".join(sys.orig_argv):
    ctypes.CDLL("libcuda.so.1").cuInit(0)
"""


@pytest.mark.parametrize("initializes", [False, True])
def test_nothing_of_a_nurserys_initializes_cuda_and_one_where_it_is_does_not_fork(
    own_place: Place, initializes: bool
) -> None:
    place = own_place
    library, calls, added = (place.folder / name for name in ("libcuda.so.1", "calls", "added"))
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)
    added.mkdir()
    if initializes:
        (added / "sitecustomize.py").write_text(INITIALIZING)
    place.environ |= {
        "COUNTED_CALLS": str(calls),
        "LD_PRELOAD": str(library),
        "PYTHONPATH": f"{added}:{place.environ['PYTHONPATH']}",
    }
    place.nbcache("start")
    nursery = place.nurseries()[0]["process"]
    kernel = place.start()
    asked = [line.split()[1] for line in calls.read_text().splitlines() if int(line.split()[0]) == nursery]
    if initializes:
        assert asked == ["cuInit", "cuDeviceGetCount"]
        assert nursery_of(kernel) == 0
        assert "CUDA is initialized" in place.nbcache("status")
    else:
        assert nursery_of(kernel) == nursery
        kernel.run("%load_ext nbcache\nimport torch\nprint(torch.ones(2).sum())")
        assert asked == ["cuDeviceGetCount"]  # which asks whether it is
        assert "cuInit" not in calls.read_text()
