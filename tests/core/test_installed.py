"""The owner of code is told by its file: the same for all that ask."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest

import nbcache
from nbcache.core.installed import PYTHON, is_users_module, module_of_stdlib, owner_of


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        (os.__file__, PYTHON),
        ("<frozen importlib._bootstrap>", PYTHON),
        ("/venv/lib/python3.11/site-packages/torch/nn/functional.py", "torch"),
        ("/usr/lib/python3/dist-packages/triton/language.py", "triton"),
        ("/venv/lib/python3.11/site-packages/typing_extensions.py", "typing_extensions"),
        (str(nbcache.__file__), "nbcache"),
        ("<string>", ""),
        ("<eval_with_key>.3", ""),
        ("/tmp/ipykernel_12/345.py", ""),
        ("/home/me/project/model.py", ""),
    ],
)
def test_the_file_of_code_tells_its_owner(file: str, owner: str) -> None:
    assert owner_of(file) == owner
    assert bool(module_of_stdlib(file)) is (owner == PYTHON)


def test_torch_that_is_installed_in_place_owns_its_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = types.ModuleType("torch")
    torch.__file__ = str(tmp_path / "torch" / "__init__.py")
    monkeypatch.setitem(sys.modules, "torch", torch)

    assert owner_of(str(tmp_path / "torch" / "nn" / "module.py")) == "torch"
    assert owner_of(str(tmp_path / "torch_more.py")) == ""


def test_a_module_is_the_users_unless_its_file_or_package_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pluggy

    made, part = types.ModuleType("made_at_run_time"), types.ModuleType(f"{pluggy.__name__}.made")
    for module in (made, part):
        monkeypatch.setitem(sys.modules, module.__name__, module)

    assert [*map(is_users_module, ("__main__", "made_at_run_time", "not_imported", __name__))] == [True] * 4
    assert not any(
        map(is_users_module, ("builtins", "os", "_collections", "pluggy", "pluggy.made", "nbcache.core.key"))
    )
