"""The launcher's parts: what it imports, whom it talks with, what must be the same, and hidden modules."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from nbcache.launcher import protocol
from nbcache.launcher.hidden import HiddenModules, hidable, imported_files, modules_in, shadowing, status_of
from support.front_door import RunPython


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / f"nbcache-kernels-{os.geteuid()}"


def test_the_launcher_imports_next_to_nothing(run_python: RunPython) -> None:
    code = "import sys; had = {*sys.modules}; import nbcache.launcher.__main__; print(*{*sys.modules} - had)"
    imported = {each.partition(".")[0] for each in run_python(code).stdout.split()}
    assert not imported & {
        "IPython",
        "argparse",
        "asyncio",
        "ctypes",
        "ipykernel",
        "logging",
        "numpy",
        "torch",
    }


def test_messages_and_files_come_as_they_were_sent(own_folder: Path, tmp_path: Path) -> None:
    listener = protocol.listen("a")
    (tmp_path / "file").write_text("content")
    with protocol.ask("a", 5.0) as asking, listener, (tmp_path / "file").open() as file:
        answering, _ = listener.accept()
        with answering:
            protocol.check_peer(answering)
            value = {"text": "ü" * 20_000, "list": [1, None]}
            answering.settimeout(5.0)
            protocol.send(asking, value, [file.fileno()])
            received, (copy,) = protocol.receive(answering, 1)
        assert received == value
        with os.fdopen(copy) as same:
            assert same.read() == "content"
    assert own_folder.stat().st_mode & 0o777 == 0o700


def test_who_has_gone_is_told_and_forgotten(own_folder: Path) -> None:
    protocol.listen("gone").close()
    assert protocol.names() == ["gone"]
    with pytest.raises(ConnectionRefusedError):
        protocol.ask("gone", 1.0)
    protocol.forget("gone")
    assert protocol.names() == []
    one, other = socket.socketpair()
    other.close()
    with one, pytest.raises(ConnectionError):
        protocol.receive(one)


@pytest.mark.parametrize(
    "make", [Path.touch, lambda path: path.symlink_to("/tmp"), lambda path: path.mkdir(0o755)]
)
def test_a_folder_that_is_not_the_users_alone_is_refused(own_folder: Path, make: object) -> None:
    make(own_folder)  # type: ignore[operator]
    with pytest.raises(OSError, match="nbcache-kernels"):
        protocol.listen("a")


def test_one_process_at_a_time_is_about_to_be_a_nursery(own_folder: Path) -> None:
    with protocol.alone("a") as first:
        assert first and protocol.starting() == {str(own_folder / "a.lock"): os.getpid()}
        with protocol.alone("a") as second:
            assert not second
    assert protocol.starting() == {}


def test_a_nursery_has_the_name_of_what_it_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    before = protocol.own_name()
    monkeypatch.setenv("JPY_SESSION_NAME", "a")
    monkeypatch.setenv("TERM", "b")
    assert protocol.own_name() == before
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert protocol.own_name() != before
    monkeypatch.undo()
    monkeypatch.setattr(sys, "path", [*sys.path, "/more"])
    assert protocol.own_name() != before


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> dict[str, types.ModuleType]:
    """Return modules that were imported ahead: a package that is on no disk, and torch."""
    made = {}
    for name in ("ahead", "ahead.part", "torch"):
        made[name] = types.ModuleType(name)
        made[name].__spec__ = ModuleSpec(name, None, is_package="." not in name)
    made["ahead.by_hand"], made["alone"] = types.ModuleType("ahead.by_hand"), types.ModuleType("alone")
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    return made


def test_hidden_modules_are_shown_when_they_are_imported(ahead: dict[str, types.ModuleType]) -> None:
    told = []
    assert hidable(ahead).keys() == {"ahead", "ahead.part", "ahead.by_hand", "torch"}
    spec = ahead["ahead"].__spec__
    HiddenModules(hidable(ahead), lambda: told.append("torch")).hide()
    assert not ahead.keys() & {*sys.modules} - {"alone"}

    assert importlib.import_module("ahead.part") is ahead["ahead.part"]
    assert sys.modules["ahead.by_hand"] is ahead["ahead.by_hand"]
    assert sys.modules["ahead"].__spec__ is spec and "torch" not in sys.modules and told == []
    __import__("torch")
    assert told == ["torch"] and not any(isinstance(each, HiddenModules) for each in sys.meta_path)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_was_installed_anew_is_imported_anew_or_asks_for_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    package = tmp_path / "ahead"
    package.mkdir()
    (package / "__init__.py").write_text("version = 1")
    (package / "part.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before, _ = importlib.import_module("ahead"), importlib.import_module("ahead.part")
    if compiled:
        sys.modules["ahead.part"].__file__ = str(package / "part.so")
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    sys.modules["torch"].__spec__ = ModuleSpec("torch", None)
    hidden = {name: sys.modules[name] for name in ("ahead", "ahead.part", "torch")}
    HiddenModules(
        hidden, lambda: None, lambda paths: next((path for path in paths if path == before.__file__), None)
    ).hide()
    (package / "__init__.py").write_text("version = 2  # and longer")
    importlib.invalidate_caches()
    if compiled:
        with pytest.raises(ImportError, match="has changed since: restart the kernel"):
            importlib.import_module("ahead")
    else:
        assert importlib.import_module("ahead").version == 2
        with pytest.raises(ImportError, match="started with torch imported"):  # it has the other one
            importlib.import_module("torch")
    for name in ("ahead", "ahead.part"):
        sys.modules.pop(name, None)


def test_torch_that_was_installed_anew_asks_for_a_restart(ahead: dict[str, types.ModuleType]) -> None:
    ahead["torch"].__file__ = "/there/torch/__init__.py"
    HiddenModules(
        hidable(ahead), lambda: None, lambda paths: next((path for path in paths if "torch" in path), None)
    ).hide()
    with pytest.raises(ImportError, match=r"started with torch imported, and /there/torch/__init__\.py has"):
        importlib.import_module("torch")
    assert importlib.import_module("ahead") is ahead["ahead"]


def test_what_is_installed_counts_as_what_can_be_imported(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    before = modules_in(str(site))
    for name in ("new.pth", "new-2.0.dist-info"):
        (site / name).mkdir()
        found = modules_in(str(site))
        assert found != before
        before = found
    (site / "notes.txt").touch()
    assert modules_in(str(site)) == before
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    (notebooks / "torch.pth").touch()  # as people call what they have trained
    assert modules_in(str(notebooks)) == frozenset()
    assert shadowing(str(notebooks), {"torch"}) is None


def test_archives_on_the_path_and_what_python_runs_are_watched_and_weights_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, run, weights = (
        tmp_path / name for name in ("packages.zip", "site-packages/run.pth", "weights.pth")
    )
    run.parent.mkdir()
    for each in (archive, run, weights):
        each.touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(archive), str(run.parent), str(tmp_path)])
    found = imported_files([])
    for each in (archive, run):
        assert found[str(each)] == status_of(str(each))
    assert str(weights) not in found
