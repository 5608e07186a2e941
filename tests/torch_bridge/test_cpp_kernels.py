"""Whose C++ kernels count as compiled here, and what emptying torch's folder leaves of what says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from nbcache.core.model import Artifact
from nbcache.core.patches import Patches
from nbcache.torch_bridge import cache_folder
from nbcache.torch_bridge.cache_folder import OWN
from nbcache.torch_bridge.hooks import Context
from nbcache.torch_bridge.providers import cpp_kernels
from support.front_door import RunPython

LIBRARY = SimpleNamespace()


class Session:
    """What is asked of a session: it has one kernel, and notes what is recorded."""

    def __init__(self) -> None:
        self.cache = self  # as far as it is asked for
        self.recorded: list[bool] = []

    def attempt(self, what: str, action: Callable[[], Any]) -> Any:
        return action()

    def emit(self, event: object) -> None: ...

    def mark_restored(self, type: str, key: str) -> None: ...

    def find(self, type: str, key: str) -> list[Artifact]:
        return [Artifact(type, key, b"a shared object")]

    def record(self, type: str, key: str, content: object, *, made: bool) -> None:
        self.recorded.append(made)


class FailingStore(Session):
    """Its store fails, which costs no cell."""

    def attempt(self, what: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except LookupError:
            return None

    def find(self, type: str, key: str) -> list[Artifact]:
        if type == "cpp_kernel":
            raise LookupError("the store fails")
        return []

    def give_up(self, type: str, key: str, why: str) -> None: ...


@contextmanager
def hooked(session: Any, folder: Path, *, owned: bool) -> Iterator[Any]:
    """Yield torch's class of C++ kernels as hooked; it compiles none."""

    class CppCodeCache:
        cache: ClassVar[dict[str, Any]] = {}

        @classmethod
        def load_async(
            cls, main_code: str, device_type: str = "cpu", submit_fn: object = None
        ) -> Callable[[], object]:
            raise AssertionError("it is compiled")

        @staticmethod
        def _load_library(path: str, key: str) -> object:
            return LIBRARY

    codecache: Any = ModuleType("codecache")
    graphs = SimpleNamespace(
        _lookup_graph=lambda key: None, _get_tmp_dir_for_key=lambda key: str(folder / "graph")
    )
    vars(codecache).update(CppCodeCache=CppCodeCache, FxGraphCache=graphs, cache_dir=lambda: str(folder))
    patches = Patches()
    context = Context(session, serving=lambda: True, owned=lambda: owned, baseline=lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpp_kernels, "build_names", lambda codecache: [])
        patch.setattr(cpp_kernels, "build_settings", lambda codecache, names: "")
        cpp_kernels.provide_kernels(codecache, context, patches)
        try:
            yield CppCodeCache
        finally:
            patches.restore()


@pytest.mark.parametrize("owned", [False, True])
def test_a_restored_kernel_that_is_used_again_stays_of_who_compiled_it(owned: bool, tmp_path: Path) -> None:
    """It counts as compiled here only where nothing of others' was put into torch's folder."""
    session = Session()
    with hooked(session, tmp_path, owned=owned) as kernels:
        for _ in range(2):
            assert kernels.load_async("int main() {}")() is LIBRARY
    assert session.recorded == [False, owned]


def test_where_the_lookup_of_a_kernel_fails_no_source_of_a_stored_graph_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may count on other vector instructions than torch chooses here: the graph is compiled whole."""
    monkeypatch.setattr(cpp_kernels._Kernels, "_stored_graph", lambda self: "a stored graph")
    with (
        hooked(FailingStore(), tmp_path, owned=True) as kernels,
        pytest.raises(OSError, match="is missing"),
    ):
        kernels.load_async("int main() {}")


@pytest.mark.parametrize("owned", [True, False])
def test_emptying_torchs_folder_leaves_what_says_whether_others_code_was_put_there(
    tmp_path: Path, owned: bool
) -> None:
    """C++ kernels stay there, and another kernel that runs may put again what it was given."""
    folder = tmp_path / "environment"
    for name in ("fxgraph", "nbcache_kernels"):
        (folder / name).mkdir(parents=True)
    (folder / "new").touch()  # another kernel may be working on it
    (folder / "other").touch()
    os.utime(folder / "other", (1e9, 1e9))
    if owned:
        (folder / OWN).touch()

    cache_folder._empty(folder)

    assert not (folder / "fxgraph").exists() and not (folder / "other").exists()
    assert (folder / "new").exists()
    assert (folder / OWN).exists() == owned


FORK = """
import os, sys, threading
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "nbcache")
shell.run_cell('''
import torch
@torch.compile
def f(x): return x.sin() + 1
f(torch.ones(4))
''').raise_error()
child = os.fork()
if child == 0:
    threading.Timer(120, os._exit, [2]).start()  # the bound of a hang
    shell.run_cell('''
@torch.compile
def g(x): return x.cos() + 2
g(torch.ones(4))
''').raise_error()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.compile
def test_a_forked_child_compiles_though_its_parent_has_compiled(
    with_headers: dict[str, str], run_python: RunPython
) -> None:
    """The threads of torch's compile pool are not there in the child."""
    run_python(FORK, with_headers)
