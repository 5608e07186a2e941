"""Fixtures that tests of several packages share; `support` has what they are made of."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from jupyter_client.manager import KernelManager

from support import compiler, kernel_ports, rotation
from support.environ import clean_own
from support.front_door import (
    CALL,
    DEFINE,
    KERNEL,
    LOAD,
    REPORTS,
    SET_UP,
    Environ,
    Kernel,
    RunCells,
    RunPython,
    environ_below,
    execute,
    give_to_client,
    kernel_specs,
    run_interpreter,
)
from support.redis_servers import RedisCluster, RedisServer

if TYPE_CHECKING:
    import nbformat

    from support.gpu_machines import Card, Machines
    from support.people import Person

clean_own()
pytest.register_assert_rewrite("support.testing")
_LAST_LINES = 12
"""Lines of each failure that are printed again at the end."""


def pytest_report_header() -> str:
    """Return the line that says which tenth of the soundness programs runs."""
    return f"soundness programs: {rotation.REPEAT}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Print the names of failed tests, and their last lines, below all other output of a run."""
    yield
    failures = [*terminalreporter.getreports("error"), *terminalreporter.getreports("failed")]
    for report in failures:
        terminalreporter.write_line(f"FAILED {report.nodeid} ({report.when})", red=True)
        for line in report.longreprtext.splitlines()[-_LAST_LINES:]:
            terminalreporter.write_line(f"    {line}")


@pytest.fixture(scope="session", autouse=True)
def _nothing_compiled_twice(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> None:
    """Have all tests share what the C++ compiler makes."""
    folder = tmp_path_factory.getbasetemp()
    compiler.put_first((folder if worker_id == "master" else folder.parent) / "compiled")


@pytest.fixture(scope="session", autouse=True)
def _ports_of_their_own() -> Iterator[None]:
    """Have no kernel die because another test took its port."""
    with kernel_ports.slice_of_its_own():
        yield


@pytest.fixture
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return an environment for kernels and interpreters whose every folder is below `tmp_path`.

    Two kernels started with it share the store of nbcache, torch's cache folder and the temp folder, as
    on one machine. `wipe` empties the last two. Change a copy to add or to override.
    """
    environ = environ_below(tmp_path)
    give_to_client(environ, monkeypatch)
    return environ


@pytest.fixture
def wipe() -> Callable[[Environ], None]:
    """Return a function that empties the temp folder of an environment, and with it torch's cache folder."""

    def wipe(environ: Environ) -> None:
        shutil.rmtree(environ["TMPDIR"])
        Path(environ["TMPDIR"]).mkdir()

    return wipe


@pytest.fixture
def run_cells(tmp_path: Path, isolated: dict[str, str]) -> RunCells:
    """Return a function that runs cells in a fresh kernel of this interpreter, then shuts the kernel down.

    `run_cells(cells, env=None, allow_errors=False, forked=True)` returns the executed notebook. `env` is
    `isolated` unless given; its TEST_PYTHON is another interpreter. A cell that fails raises
    CellExecutionError, unless `allow_errors`. A kernel that is forked has torch imported.
    """

    def run_cells(
        cells: Iterable[str], env: Environ | None = None, *, allow_errors: bool = False, forked: bool = True
    ) -> nbformat.NotebookNode:
        environ = isolated if env is None else env
        return execute(cells, environ, tmp_path, allow_errors=allow_errors, forked=forked)

    return run_cells


@pytest.fixture
def run_python(isolated: dict[str, str], tmp_path: Path) -> RunPython:
    """Return a function that runs code in a fresh interpreter.

    `run_python(code, env=None, check=True, having="")` returns what came of it. `env` is `isolated` unless
    given. With `check`, code that fails fails the test, and shows its stderr. An interpreter `having`
    imported "torch" or "IPython" is forked, and starts sooner.
    """

    def run_python(
        code: str, env: Environ | None = None, *, check: bool = True, having: str = ""
    ) -> subprocess.CompletedProcess[str]:
        done = run_interpreter(["-c", code], isolated if env is None else env, tmp_path, having=having)
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return run_python


@pytest.fixture
def start_kernel(tmp_path: Path, isolated: dict[str, str]) -> Iterator[Callable[..., Kernel]]:
    """Return a function that starts a kernel, to be left idle: `start_kernel(env=None)`.

    All end with the test.
    """
    managers = []

    def start(env: Environ | None = None) -> Kernel:
        specs = kernel_specs(tmp_path, sys.executable)
        manager = KernelManager(kernel_name=KERNEL, kernel_spec_manager=specs)
        manager.start_kernel(env=dict(isolated if env is None else env), cwd=str(tmp_path))
        client = manager.blocking_client()
        managers.append((manager, client))
        client.start_channels()
        client.wait_for_ready(timeout=60)
        return Kernel(manager, client)

    yield start
    for manager, client in managers:
        client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@pytest.fixture(scope="session")
def cold(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> tuple[Path, nbformat.NotebookNode]:
    """Return a folder in which one cold kernel has compiled the sample, and its notebook.

    All workers share it: the first that asks makes it.
    """
    import nbformat  # it takes long

    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "cold"
    done = folder / "executed.ipynb"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            with pytest.MonkeyPatch.context() as patch:
                environ = environ_below(folder)
                give_to_client(environ, patch)
                notebook = execute([LOAD, SET_UP, DEFINE, CALL, REPORTS], environ, folder, forked=False)
            nbformat.write(notebook, done)
    return folder, nbformat.read(done, as_version=4)


@pytest.fixture
def warm(cold: tuple[Path, nbformat.NotebookNode], isolated: dict[str, str]) -> dict[str, str]:
    """Return an isolated environment with the store that `cold` left; every other folder is empty."""
    shutil.copytree(cold[0] / "store", isolated["NBCACHE_DIR"])
    return isolated


@pytest.fixture
def with_headers(cold: tuple[Path, nbformat.NotebookNode], warm: dict[str, str]) -> dict[str, str]:
    """Return `warm` with torch's precompiled headers, for what compiles anew: they take seconds."""
    (folder,) = (cold[0] / "tmp").glob("torchinductor_*")
    (Path(warm["TMPDIR"]) / folder.name).symlink_to(folder)
    return warm


# --- Redis ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for all tests that leave it running as it is: they take `redis_server`."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(redis_process: RedisServer) -> RedisServer:
    """Return a running server that holds nothing."""
    with redis_process.client() as client:
        client.flushall()
    return redis_process


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own, to be killed, stopped and filled."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture(scope="session")
def redis_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """A Cluster for all tests that leave it running as it is: they take `redis_cluster`."""
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def redis_cluster(redis_nodes: RedisCluster) -> RedisCluster:
    """Return a running Cluster that holds nothing."""
    redis_nodes.flush()
    return redis_nodes


# --- GPU ------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def card(pytestconfig: pytest.Config) -> Card:
    """Return the card. Without one, tests are skipped; where `-m gpu` asks for them, they fail."""
    from support.gpu_machines import find_card

    found = find_card()
    if isinstance(found, str):
        if "gpu" in pytestconfig.getoption("markexpr").replace("not gpu", ""):
            pytest.fail(found, pytrace=False)
        pytest.skip(found)
    return found


@pytest.fixture
def machines(card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    """Return what makes machines that have this card."""
    from support.gpu_machines import Machines

    return Machines(tmp_path, monkeypatch)


@pytest.fixture
def person(tmp_path: Path) -> Callable[[str], Person]:
    """Return a function that makes somebody with a folder, keys and a store of their own."""
    from support.people import Person

    return lambda name: Person(tmp_path / name)


@pytest.fixture
def ada(person: Callable[[str], Person]) -> Person:
    return person("ada")


@pytest.fixture
def bob(person: Callable[[str], Person]) -> Person:
    return person("bob")
