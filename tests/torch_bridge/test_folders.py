"""Tests of torch's cache folders in a temp folder that others can write to as well."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from nbcache.core.patches import Patches
from nbcache.core.settings import Settings
from nbcache.kernel.session import Session
from nbcache.storage.backends.memory import MemoryStore
from nbcache.torch_bridge.cache_folder import (
    OWN,
    CacheFolder,
    DefaultFolder,
    choose_folder,
    is_private,
    is_safe,
    note_others,
    refusal,
    secure,
    usual_root,
)
from support.front_door import CALL, DEFINE, LOAD, REPORTS, SET_UP, outcomes, printed, reports
from support.live_kernels import HERE
from support.testing import FakeBridge

RunCells = Callable[..., nbformat.NotebookNode]

MALLORY = 12345
NAME = f"nbcache_{os.geteuid()}"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the temp folder, which everybody can write to."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return nbcache's own folder."""
    return tmp_path / "store"


def plant(folder: Path, *, owner: int = MALLORY, mode: int = 0o777) -> Path:
    """Make a folder as somebody else would, with a file in it; return that."""
    folder.mkdir(parents=True)
    planted = folder / "planted.py"
    planted.write_text("raise SystemExit('planted')")
    for path in (planted, folder):
        os.chown(path, owner, owner)
    folder.chmod(mode)
    return planted


def test_the_usual_folder_is_made_for_its_owner_alone(temp: Path, own: Path) -> None:
    folder, said = choose_folder("0123", own)

    assert (folder, said) == (temp / NAME / "0123", [])
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder.parent, folder)] == [0o700, 0o700]
    assert is_private(folder) and not own.exists()


@as_root
def test_where_somebody_else_made_it_first_it_is_in_nbcaches_own_folder_and_that_is_said(
    temp: Path, own: Path
) -> None:
    plant(temp / NAME)

    folder, said = choose_folder("0123", own)

    assert folder == own / NAME / "0123" and is_private(folder)
    assert len(said) == 1
    for part in (
        str(own / NAME),
        str(temp / NAME),
        f"belongs to user {MALLORY}",
        "Next: have it removed",
        "TMPDIR",
    ):
        assert part in said[0]


@pytest.fixture
def folder_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the variables of torch's folders back after a test."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/x")


@as_root
@pytest.mark.usefixtures("folder_variables")
def test_where_no_folder_can_be_made_torchs_is_closed_to_others_and_not_served(temp: Path) -> None:
    plant(temp / NAME)
    session = Session(Settings(dir=temp / "a b"), FakeBridge(HERE), MemoryStore())
    folder = CacheFolder()
    folder.session = session
    folder.give(session, HERE, portable=False)

    given = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert given.parent != temp / NAME and stat.S_IMODE(given.parent.stat().st_mode) == 0o700
    assert not folder.is_served() and not folder.is_own()
    (notice,) = session.notices
    assert f"{temp / NAME} belongs to user {MALLORY}" in notice and notice.endswith(
        "nbcache only watches [torch-folder]"
    )


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o755, 0o711], ids=oct)
def test_a_folder_that_was_open_to_others_is_emptied(temp: Path, own: Path, mode: int) -> None:
    planted = plant(temp / NAME / "0123", owner=os.geteuid(), mode=0o700)
    (temp / NAME).chmod(mode)

    folder, said = choose_folder("0123", own)

    assert folder == temp / NAME / "0123" and is_private(folder)
    assert not planted.exists() and [each.name for each in folder.iterdir()] == [OWN]
    assert [each.name for each in temp.iterdir()] == [NAME]
    assert len(said) == 1 and "was open to others" in said[0]
    assert choose_folder("0123", own) == (folder, [])


@pytest.mark.parametrize("owner", [os.geteuid(), pytest.param(MALLORY, marks=as_root)])
def test_so_is_the_folder_of_an_environment_and_what_is_in_others(temp: Path, own: Path, owner: int) -> None:
    planted = plant(temp / NAME / "0123", owner=owner)
    (temp / NAME).chmod(0o700)

    folder, said = choose_folder("0123", own)

    assert not planted.exists() and is_private(folder)
    assert len(said) == 1 and str(folder) in said[0]


def test_a_link_in_the_place_of_a_folder_is_not_followed(temp: Path, own: Path, tmp_path: Path) -> None:
    elsewhere = plant(tmp_path / "elsewhere", owner=os.geteuid(), mode=0o700)
    (temp / NAME).mkdir(mode=0o700)
    (temp / NAME / "0123").symlink_to(elsewhere.parent)

    folder, _ = choose_folder("0123", own)

    assert not folder.is_symlink() and elsewhere.exists()
    assert [each.name for each in folder.iterdir()] == [OWN]
    (temp / NAME).rename(temp / "aside")
    (temp / NAME).symlink_to(temp / "aside")
    assert choose_folder("0123", own)[0].parent == own / NAME


def test_a_temp_folder_in_which_others_can_replace_folders_is_not_used(temp: Path, own: Path) -> None:
    temp.chmod(0o777)

    folder, said = choose_folder("0123", own)

    assert (folder.parent, said) == (own / NAME, [])  # nobody has done any harm yet
    error = refusal(usual_root())
    assert error is not None and "sticky bit" in error.what and "set TMPDIR" in (error.next_step or "")


def test_a_temp_folder_of_a_group_is_used_where_the_group_is_ones_own(
    temp: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temp.chmod(0o775)
    assert choose_folder("0123", own)[0].parent == temp / NAME
    monkeypatch.setattr("grp.getgrgid", lambda group: SimpleNamespace(gr_name="staff"))
    assert choose_folder("0123", own)[0].parent == own / NAME


def test_a_kernel_that_goes_on_as_plain_torch_never_looks_where_others_code_may_lie(
    temp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs, with_others = temp / NAME / "0123", tmp_path / "theirs", tmp_path / "with others"
    note_others(with_others, "")
    left = {}
    for folder in (ours, theirs, with_others):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
        CacheFolder().leave()
        left[folder] = "TORCHINDUCTOR_CACHE_DIR" not in os.environ, "TRITON_CACHE_DIR" not in os.environ

    assert left == {ours: (True, True), theirs: (False, False), with_others: (True, True)}


@pytest.mark.parametrize("is_deleted", [True, False])
@pytest.mark.usefixtures("folder_variables", "temp")
def test_a_variable_that_a_cell_has_deleted_stays_deleted(is_deleted: bool) -> None:
    del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    folder = CacheFolder()
    session = Session(Settings(), FakeBridge(HERE), MemoryStore())
    folder.give(session, HERE, portable=False)
    given = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    if is_deleted:
        del os.environ["TRITON_CACHE_DIR"]
    else:
        os.environ["TRITON_CACHE_DIR"] = f"{given}/triton"  # as torch sets it

    folder.take_back()

    assert os.environ.get("TRITON_CACHE_DIR") == (None if is_deleted else "/x")
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_what_cannot_be_removed_is_not_where_torch_looks(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = temp / NAME
    plant(folder, owner=os.geteuid())
    monkeypatch.setattr("shutil.rmtree", lambda *args, **options: None)

    assert secure(folder)

    assert [each.name for each in folder.iterdir()] == []


# --- torch's default folder -----------------------------------------------------------------------


def test_torchs_default_folder_is_used_where_it_is_ours_alone(temp: Path) -> None:
    usual = temp / "torchinductor_ada"
    module, codecache = replaced(usual, temp / "other")

    assert module.default_cache_dir() == str(usual)
    assert headers(codecache)[0] == f"{usual}/precompiled_headers"
    assert stat.S_IMODE(usual.stat().st_mode) == 0o700  # nobody can be faster now


@pytest.mark.parametrize("part", [".", "precompiled_headers", "cache"])
@pytest.mark.parametrize(
    ("owner", "mode"), [(os.geteuid(), 0o777), pytest.param(MALLORY, 0o755, marks=as_root)]
)
def test_elsewhere_another_stands_for_it_and_for_that_of_precompiled_headers(
    temp: Path, part: str, owner: int, mode: int
) -> None:
    usual = temp / "torchinductor_ada"
    if part != ".":
        usual.mkdir()
        usual.chmod(0o755)
    plant(usual / part, owner=owner, mode=mode)

    module, codecache = replaced(usual, temp / "other")

    assert module.default_cache_dir() == codecache.default_cache_dir() == str(temp / "other")
    assert headers(codecache) == [
        f"{temp}/other/precompiled_headers",
        f"{temp}/other/precompiled_headers/locks",
    ]


@pytest.mark.parametrize("there", [True, False])
def test_where_torch_makes_folders_that_a_group_can_write_to_it_finds_its_headers_again(
    temp: Path, there: bool
) -> None:
    """As with a umask of 002."""
    usual, other = temp / "torchinductor_ada", temp / "other"
    if there:
        usual.mkdir(mode=0o775)
        usual.chmod(0o775)
    other.mkdir(mode=0o700)
    default = DefaultFolder(lambda: other)
    _, codecache = replaced(usual, other, default)
    first = headers(codecache)
    Path(first[1]).mkdir(parents=True)
    Path(first[0]).chmod(0o775)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch._inductor.codecache", codecache)
        default.check()

    assert headers(codecache) == first == headers(replaced(usual, other)[1])
    assert first[0] == f"{other if there else usual}/precompiled_headers"


def test_where_somebody_makes_it_once_it_was_cleaned_away_headers_go_elsewhere_from_then_on(
    temp: Path,
) -> None:
    usual = temp / "torchinductor_ada"
    default = DefaultFolder(lambda: temp / "other")
    _, codecache = replaced(usual, temp / "other", default)
    usual.rmdir()
    plant(usual, owner=os.geteuid())
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch._inductor.codecache", codecache)
        default.check()

    assert headers(codecache)[0] == f"{temp}/other/precompiled_headers"


def test_unloading_puts_torchs_default_folder_back(temp: Path) -> None:
    usual = temp / "torchinductor_ada"
    plant(usual, owner=os.geteuid())
    patches = Patches()
    module, codecache = replaced(usual, temp / "other", patches=patches)

    patches.restore()

    assert module.default_cache_dir is codecache.default_cache_dir  # torch's own, and not our first hook
    assert module.default_cache_dir() == str(usual)
    assert headers(codecache)[0] == f"{usual}/precompiled_headers"


def headers(codecache: SimpleNamespace) -> list[str]:
    return [codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR]


def replaced(
    usual: Path, other: Path, default: DefaultFolder | None = None, patches: Patches | None = None
) -> tuple[SimpleNamespace, SimpleNamespace]:
    """Return modules as torch's, the second of which has imported from the first, hooked."""
    default, patches = default or DefaultFolder(lambda: other), patches or Patches()
    module = SimpleNamespace(default_cache_dir=lambda: str(usual))
    default.replace_name(module, None, patches)  # type: ignore[arg-type]
    codecache = SimpleNamespace(default_cache_dir=module.default_cache_dir)
    codecache._HEADER_DIR = os.path.join(codecache.default_cache_dir(), "precompiled_headers")
    codecache._HEADER_LOCK_DIR = os.path.join(codecache._HEADER_DIR, "locks")
    default.replace_name(codecache, None, patches)  # type: ignore[arg-type]
    default.replace_headers(codecache, None, patches)  # type: ignore[arg-type]
    return module, codecache


def test_a_link_of_ones_own_to_a_folder_of_ones_own_is_safe(temp: Path) -> None:
    (temp / "mine").mkdir(mode=0o700)
    (temp / "link").symlink_to(temp / "mine")

    assert is_safe(temp / "link") and not is_safe(temp / "nothing")
    (temp / "mine").chmod(0o777)
    assert not is_safe(temp / "link")


# --- in a kernel ----------------------------------------------------------------------------------

WATCH = """import os, sys
touched = []
events = ("open", "os.listdir", "os.scandir", "os.rename", "import", "subprocess.Popen", "ctypes.dlopen")
planted = ("{tmp}/nbcache_{uid}", "{tmp}/torchinductor_")
def hook(event, arguments):
    if event in events and any(name in str(arguments) for name in planted):
        touched.append((event, str(arguments)[:300]))
sys.addaudithook(hook)
"""
WHERE = "print(os.environ['TORCHINDUCTOR_CACHE_DIR']); print(touched)"


@as_root
@pytest.mark.compile
def test_nothing_is_read_from_folders_that_somebody_else_has_planted(
    isolated: dict[str, str], run_cells: RunCells
) -> None:
    tmp = Path(isolated["TMPDIR"])
    tmp.chmod(0o1777)
    planted = [plant(tmp / NAME), plant(tmp / "torchinductor_root")]
    watch = WATCH.format(tmp=tmp, uid=os.geteuid())
    idle = "import asyncio; await asyncio.sleep(6)"

    notebook = run_cells(
        [watch, LOAD, idle, SET_UP, DEFINE, CALL, WHERE, REPORTS],
        {**isolated, "NBCACHE_PREWARM": "on", "LOGNAME": "root"},
    )

    folder, touched = printed(notebook, 6).splitlines()
    assert folder.startswith(f"{isolated['NBCACHE_DIR']}/{NAME}/") and touched == "[]"
    assert outcomes(notebook) == ["miss"] * 4
    notices = [notice for report in reports(notebook) for notice in report["notices"]]
    assert len(notices) == 1 and f"{tmp / NAME} belongs to user {MALLORY}" in notices[0]
    for each in planted:
        assert [path.name for path in each.parent.iterdir()] == ["planted.py"]


@pytest.mark.compile
def test_what_was_planted_where_torch_looks_while_the_folder_was_open_does_not_run(
    warm: dict[str, str], run_cells: RunCells
) -> None:
    run_cells([LOAD, SET_UP, DEFINE, CALL], warm)
    root = Path(warm["TMPDIR"]) / NAME
    code = [path for path in root.rglob("*.py") if path.is_file()]
    assert code
    for path in code:
        path.write_text("raise SystemExit('planted')\n")
    root.chmod(0o777)

    notebook = run_cells([LOAD, SET_UP, DEFINE, CALL, REPORTS], warm)

    assert outcomes(notebook) == ["hit"] * 4
    notices = [notice for report in reports(notebook) for notice in report["notices"]]
    assert len(notices) == 1 and f"{root} was open to others" in notices[0]


@as_root
@pytest.mark.compile
def test_a_folder_that_is_replaced_while_a_kernel_runs_is_not_used_any_more(
    warm: dict[str, str], run_cells: RunCells
) -> None:
    replace = f"""import os, shutil
folder = os.environ["TORCHINDUCTOR_CACHE_DIR"]
shutil.rmtree(os.path.dirname(folder))
os.makedirs(folder)
os.chown(os.path.dirname(folder), {MALLORY}, {MALLORY})
"""
    cell = "print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"

    notebook = run_cells([LOAD, SET_UP, replace, DEFINE, CALL, cell, REPORTS], warm)

    assert printed(notebook, 5).startswith(warm["NBCACHE_DIR"])
    assert outcomes(notebook) == ["hit"] * 4
