"""The cells to run and time: those of a notebook, or a few that are made for a function."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbcache.bench.options import Options, Variant
from nbcache.core.files import read
from nbcache.core.text import DOT, one_line
from nbcache.snapshots.in_notebook import decode_notebook
from nbcache.snapshots.sources import MAX_NOTEBOOK_BYTES

if TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["CALL", "LOAD", "Subject", "load_bundle", "subjects"]

LOAD, CALL, HOT = "%load_ext nbcache", "compile and call", "call again"
"""Titles of the cells that nbcache adds to a notebook, and of those that are made for a function."""
_LOADS = re.compile(r"^(\s*%(?:re)?load_ext\s+nbcache)\s*$", re.MULTILINE)
_TORCH_ALONE = r"\1.ui.ipython.torch_alone"
_TITLE_LENGTH = 32


class Subject:
    """The cells of a notebook, which are run from top to bottom."""

    measured: str | None = None
    """Title of the cell that is compared; None for all cells together."""
    kernel: str | None = None
    """Name of the Jupyter kernel; None for a kernel of this interpreter."""

    def __init__(self, label: str, values: Mapping[str, Any]) -> None:
        self.label = label
        self.values = dict(values)
        """The subject as JSON values."""
        self.cwd = Path.cwd()
        """The folder in which its kernels run."""

    def cells(self, variant: Variant, bundle: Path) -> dict[str, NotebookNode | str]:
        """Return the cells for a kernel of this variant, by title; `bundle` is the file of mega-cache."""
        raise NotImplementedError


class _Notebook(Subject):
    def __init__(self, path: str) -> None:
        """NbcacheError where the file cannot be read."""
        super().__init__(path, {"notebook": path})
        self.cwd = Path(path).resolve().parent
        notebook = decode_notebook(read(Path(path), max_bytes=MAX_NOTEBOOK_BYTES), path)
        self.kernel = notebook.metadata.get("kernelspec", {}).get("name", "python3")
        self._cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]

    def cells(self, variant: Variant, bundle: Path) -> dict[str, NotebookNode | str]:
        cells: dict[str, NotebookNode | str] = {}
        if variant.torchs == "bundle":
            cells["load the bundle"] = f"import torch\n{load_bundle(bundle)}"
        if variant.loads and not any(_LOADS.search(cell.source) for cell in self._cells):
            cells[LOAD] = LOAD
        for number, cell in enumerate(copy.deepcopy(self._cells), 1):
            title = one_line(f"In[{number}] {cell.source.strip().splitlines()[0]}", _TITLE_LENGTH)
            if not variant.loads:
                cell.source = _LOADS.sub(_TORCH_ALONE, cell.source)
            cells[title] = cell
        return cells


class _Function(Subject):
    measured = CALL

    def __init__(self, function: str, training: bool) -> None:
        mode = "training" if training else "inference"
        super().__init__(DOT.join([function, mode]), {"model": function, "mode": mode})
        self._module, _, self._name = function.partition(":")
        self._training = training

    def cells(self, variant: Variant, bundle: Path) -> dict[str, NotebookNode | str]:
        loading = {LOAD: LOAD} if variant.loads else {}
        make = f"""\
import torch
from torch.utils._pytree import tree_leaves
from {self._module} import {self._name}
torch.manual_seed(0)
model, inputs = {self._name}()
if isinstance(model, torch.nn.Module):
    model.train({self._training})
args = () if isinstance(inputs, dict) else inputs if isinstance(inputs, (tuple, list)) else (inputs,)
kwargs = inputs if isinstance(inputs, dict) else {{}}
def total(output):
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    return sum(tensor.sum() for tensor in tensors if tensor.is_floating_point())"""
        compiled = "model" if variant.name == "eager" else "torch.compile(model)"
        bundled = f"{load_bundle(bundle)}\n" if variant.torchs == "bundle" else ""
        call = f"with torch.set_grad_enabled({self._training}):\n    loss = total(compiled(*args, **kwargs))"
        if self._training:
            call += "\nloss.backward()"
        call += "\nprint(float(loss))"  # on a GPU, this waits for the result
        return {**loading, "make the model": make, CALL: f"{bundled}compiled = {compiled}\n{call}", HOT: call}


def load_bundle(file: Path) -> str:
    """Return the line that loads the bundle of mega-cache."""
    return f"torch.compiler.load_cache_artifacts(open({str(file)!r}, 'rb').read())"


def subjects(options: Options) -> list[Subject]:
    """Return what `options` name, in that order; NbcacheError where a notebook cannot be read."""
    return [
        _Notebook(name) if name.endswith(".ipynb") else _Function(name, options.training)
        for name in options.models
    ]
