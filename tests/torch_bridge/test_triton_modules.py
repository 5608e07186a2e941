"""C modules of Triton's are compiled once: what a driver asks for is recorded, restored, and checked.

The driver here compiles and loads real modules, as Triton's does; Triton itself does so on a GPU only:
tests/gpu/test_gpu_cells.py.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sysconfig
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nbcache.core.key import components
from nbcache.core.model import Artifact, Environment
from nbcache.core.patches import Patches
from nbcache.core.settings import Settings
from nbcache.kernel.session import Session
from nbcache.storage.backends.memory import MemoryStore
from nbcache.torch_bridge.hooks import Context
from nbcache.torch_bridge.providers.triton_kernels import MODULE, module_key, provide_modules
from support.testing import FakeBridge

pytestmark = pytest.mark.compile

ENVIRONMENT = Environment(components({"torch.version": "2.13.0", "device": "NVIDIA H200"}))
SOURCE = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "cuda_utils", "VALUE", -1, NULL};
PyMODINIT_FUNC PyInit_cuda_utils(void) { return PyModule_Create(&definition); }
"""
OPTIONS: dict[str, Any] = {"library_dirs": ["/usr/lib"], "include_dirs": [], "libraries": ["libcuda.so.1"]}


class Driver(types.SimpleNamespace):
    """Compiles as Triton's driver does, into a folder; what is there is not compiled again.

    Up to Triton 3.7 it takes the source, afterwards the path of a file.
    """

    def __init__(self, folder: Path, takes: str) -> None:
        self.folder, self.takes, self.compiles = folder, takes, 0
        folder.mkdir()
        ways = {"src": self.compile, "file": self.compile_file}
        super().__init__(**{f"compile_module_from_{takes}": ways[takes]})

    def compile_file(self, src_path: str, name: str, **options: Any) -> Any:
        return self.compile(Path(src_path).read_text(), name, **options)

    def load(self, source: str, **options: Any) -> Any:
        """Ask for a module in the way of this Triton, as it does."""
        if self.takes == "src":
            return self.compile_module_from_src(src=source, name="cuda_utils", **options)
        path = self.folder / "driver.c"
        path.write_text(source)
        return self.compile_module_from_file(src_path=str(path), name="cuda_utils", **options)

    def compile(self, src: str, name: str, **options: Any) -> Any:
        made = self.folder / f"{name}.so"
        if not made.exists():
            self.compiles += 1
            source = self.folder / f"{name}.c"
            source.write_text(src)
            headers = f"-I{sysconfig.get_path('include')}"
            subprocess.run(["gcc", "-shared", "-fPIC", headers, source, "-o", made], check=True)
        spec = importlib.util.spec_from_file_location(name, made)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


class Machine:
    """A session and a driver, hooked."""

    def __init__(
        self, folder: Path, store: MemoryStore, *, serves: bool = True, owned: bool = True, takes: str = "src"
    ) -> None:
        folder.mkdir()
        self.driver = Driver(folder / "triton", takes)
        self.session = Session(Settings(), FakeBridge(ENVIRONMENT), store)
        self.session.start()
        self.patches = Patches()
        context = Context(self.session, lambda: serves, lambda: owned, lambda: None)
        provide_modules(self.driver, context, self.patches)  # type: ignore[arg-type]

    def load(self, word: str = "first", **options: Any) -> str:
        """Have the driver load a module; return what it says."""
        return str(self.driver.load(SOURCE.replace("VALUE", word), **OPTIONS, **options).__doc__)


@pytest.fixture
def torchs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    return tmp_path / "inductor"


@contextmanager
def machine(folder: Path, store: MemoryStore, **options: Any) -> Iterator[Machine]:
    made = Machine(folder, store, **options)
    yield made
    made.session.close(10.0)


def stored_after(machine: Machine) -> int:
    """Return how many artifacts are stored once all that was recorded is."""
    assert machine.session.flush(10.0)
    return len(list(machine.session.artifacts.store.keys("artifact/")))


@pytest.mark.parametrize("takes", ["src", "file"])
def test_a_module_is_compiled_on_the_first_machine_only(
    takes: str, tmp_path: Path, torchs_folder: Path
) -> None:
    store = MemoryStore("local store")
    with machine(tmp_path / "a", store, takes=takes) as first:
        assert (first.load(), first.driver.compiles, stored_after(first)) == ("first", 1, 1)

    with machine(tmp_path / "b", store, takes=takes) as second:
        assert (second.load(), second.driver.compiles, second.session.notices) == ("first", 0, [])
        assert second.load(ccflags=["-O3"]) == "first" and second.driver.compiles == 1  # another module
        hooked = vars(second.driver)[f"compile_module_from_{takes}"]
        second.patches.restore()
        assert vars(second.driver)[f"compile_module_from_{takes}"] is not hooked

    assert [each.suffix for each in torchs_folder.rglob("*") if each.is_file()] == [".so"]


def test_what_cannot_be_loaded_is_compiled(tmp_path: Path, torchs_folder: Path) -> None:
    store = MemoryStore("local store")
    key = module_key(SOURCE.replace("VALUE", "first"), "cuda_utils", OPTIONS)
    with machine(tmp_path / "a", store) as here:
        here.session.artifacts.put(ENVIRONMENT.digest, Artifact(MODULE, key, b"no shared object"))
        assert (here.load(), here.driver.compiles) == ("first", 1)
        (notice,) = here.session.notices
        assert "a stored triton_module could not be used and is compiled again" in notice


def test_what_others_may_have_put_there_is_used_and_not_stored(tmp_path: Path, torchs_folder: Path) -> None:
    store = MemoryStore("local store")
    with machine(tmp_path / "a", store, owned=False) as here:
        here.driver.compile(SOURCE.replace("VALUE", "first"), "cuda_utils")
        os.utime(here.driver.folder / "cuda_utils.so", (0, 0))
        assert (here.load(), here.driver.compiles, stored_after(here)) == ("first", 1, 0)

    with machine(tmp_path / "b", store) as own:
        own.driver.compile(SOURCE.replace("VALUE", "first"), "cuda_utils")
        os.utime(own.driver.folder / "cuda_utils.so", (0, 0))
        assert (own.load(), own.driver.compiles, stored_after(own)) == ("first", 1, 1)


def test_nothing_is_done_where_torchs_folder_is_not_served(tmp_path: Path) -> None:
    store = MemoryStore("local store")
    with machine(tmp_path / "a", store, serves=False) as here:
        assert (here.load(), here.driver.compiles, stored_after(here)) == ("first", 1, 0)


def test_another_source_name_or_library_is_another_module_and_folders_are_not() -> None:
    def key(src: str = "a", name: str = "b", **options: Any) -> str:
        return module_key(src, name, OPTIONS | options)

    keys = {key(), key("b"), key(name="c"), key(libraries=[]), key(ccflags=["-O3"]), key(language="c++")}
    assert len(keys) == 6
    assert key(library_dirs=["/elsewhere"], include_dirs=["/elsewhere"]) == key()
