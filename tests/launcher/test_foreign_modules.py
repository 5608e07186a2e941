"""Files of a notebook's folder that have the names of modules never run in launchers and nurseries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.nurseries import Place, nursery_of
from support.redis_servers import wait_until

pytestmark = [pytest.mark.compile, pytest.mark.xdist_group("files of packages")]

# It notes which process runs it, and then is the module whose name it has: an ordinary kernel imports some of
# these before ipykernel removes the notebook's folder from `sys.path`.
STRANGER = """\
import sys
with open({log!r}, "a") as stream:
    print(__name__, *sys.orig_argv, file=stream)
path = sys.path[:]
sys.path[:] = [entry for entry in path if entry != {folder!r}]
del sys.modules[__name__]
__import__(__name__)
sys.path[:] = path
"""


def test_a_file_beside_a_notebook_runs_in_no_launcher_and_no_nursery(own_place: Place) -> None:
    place = own_place
    strangers, log = place.folder / "strangers", place.folder / "log"
    strangers.mkdir()
    log.touch()
    for name in {*sys.stdlib_module_names, "nbcache", "torch"} - {*sys.builtin_module_names}:
        (strangers / f"{name}.py").write_text(STRANGER.format(log=str(log), folder=str(strangers)))

    place.end(place.start_with(folder=strangers))
    locks = place.folder.glob
    wait_until(
        lambda: any(lock.stat().st_size for lock in locks("nbcache-kernels-*/*.lock")), "a nursery starts"
    )
    # else it would wait for an idle processor before it imports more
    assert "ended: 1 nursery" in place.nbcache("stop")
    code = "from nbcache.ui.terminal.parser import main; raise SystemExit(main())"
    command = [sys.executable, "-P", "-c", code, "kernel", "start"]
    subprocess.run(command, env=place.environ, cwd=strangers, check=True)
    place.end(place.start_with(folder=strangers))
    kernel = place.start()
    assert nursery_of(kernel)
    kernel.run(
        "import sys, torch; files = [str(vars(each).get('__file__')) for each in sys.modules.values()]"
    )
    assert kernel.ask(f"[file for file in files if file.startswith({str(strangers)!r})]") == []
    lines = log.read_text().splitlines()
    assert lines and [line for line in lines if "ipykernel_launcher" not in line.split()] == []


def test_a_forked_kernel_looks_for_modules_where_an_ordinary_one_does(place: Place, start: object) -> None:
    folder = Path(place.environ["JUPYTER_DATA_DIR"]) / "kernels" / "ordinary"
    folder.mkdir()
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(
        json.dumps({"argv": command, "display_name": "", "language": "python"})
    )
    (place.cwd / "beside.py").write_text("")
    paths = []
    for name in ("nbcache", "ordinary"):
        kernel = place.start_with(name=name)
        assert bool(nursery_of(kernel)) == (name == "nbcache"), place.nbcache("status")
        paths.append(kernel.ask("(sys := __import__('sys')).path + [sys.flags.safe_path]"))
        kernel.run("import beside")
    assert paths[0] == paths[1] and "" in paths[0]


def test_a_kernel_that_an_earlier_version_installed_is_ordinary_and_status_says_so(own_place: Place) -> None:
    place = own_place
    file = Path(place.environ["JUPYTER_DATA_DIR"]) / "kernels" / "nbcache" / "kernel.json"
    assert "earlier version" not in place.nbcache("status")
    spec = json.loads(file.read_text())
    spec["argv"].remove("-P")
    file.write_text(json.dumps(spec))
    place.end(place.start())
    status = place.nbcache("status")
    assert "no nursery" in status and "an earlier version of nbcache has installed it" in status
