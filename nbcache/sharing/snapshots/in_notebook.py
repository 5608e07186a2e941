"""A snapshot inside a notebook: as an attachment of a raw cell, or as an output that the kernel displayed.

An attachment of a raw cell stays when outputs are cleared, and when nbstripout, nbconvert or papermill
rewrite the notebook; Jupyter deletes unreferenced attachments of markdown cells, and no others.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from nbcache.core.errors import CorruptSnapshot, SnapshotError

if TYPE_CHECKING:
    from nbformat import NotebookNode

MIME = "application/vnd.nbcache.snapshot"

MANIFEST_MIME = "application/vnd.nbcache.manifest+json"
"""The type of a notebook's note of the snapshot file beside it: its name and digest."""

_NAME = "snapshot.nbcache"
_MOST = 100
_MARK = "nbcache"
_TEXT = """\
This cell carries the compiled graphs of this notebook: nbcache restores them (`%load_ext nbcache`).
`nbcache inspect` shows them and their signer; `nbcache detach` removes them."""


def snapshots_of(data: bytes) -> tuple[list[bytes], list[CorruptSnapshot]]:
    """Return the snapshots in a notebook's bytes, attached ones first, and the errors of damaged ones."""
    notebook = _parse_if_has(MIME, data)
    displayed = (content[MIME] for content in _outputs(notebook) if MIME in content)
    return _decode(islice(chain(_attachments(notebook), displayed), _MOST))


def attachments_of(notebook: NotebookNode) -> list[bytes]:
    return _decode(_attachments(notebook))[0]


def referenced_digests(data: bytes) -> set[str]:
    outputs = _outputs(_parse_if_has(MANIFEST_MIME, data))
    digests = (_mapping(content, MANIFEST_MIME).get("digest") for content in outputs)
    return {digest for digest in digests if isinstance(digest, str)}


def attach(notebook: NotebookNode, snapshot: bytes) -> None:
    """Put `snapshot` into a raw cell at the end of the notebook, in place of those attached already."""
    import nbformat  # takes half a second

    detach(notebook)
    content = {MIME: base64.b64encode(snapshot).decode("ascii")}
    cell = nbformat.v4.new_raw_cell(_TEXT, metadata={_MARK: {"snapshot": True}})  # type: ignore[no-untyped-call]
    cell["attachments"] = {_NAME: content}
    if (notebook["nbformat"], notebook["nbformat_minor"]) < (4, 5):
        del cell["id"]
    notebook["cells"].append(cell)


def detach(notebook: NotebookNode) -> int:
    """Take attached snapshots out of the notebook; return how many there were."""
    count = len(list(_attachments(notebook)))
    cells = []
    for cell in notebook["cells"]:
        other_contents = {
            name: content
            for name, content in _mapping(cell, "attachments").items()
            if not (isinstance(content, Mapping) and MIME in content)
        }
        if "attachments" in cell:
            cell["attachments"] = other_contents
        is_own = _mapping(_mapping(cell, "metadata"), _MARK).get("snapshot")
        if other_contents or not (is_own and cell.get("cell_type") == "raw"):
            cells.append(cell)
    notebook["cells"] = cells
    return count


def decode_notebook(data: bytes, where: str) -> NotebookNode:
    """Return the notebook in `data`, unconverted; SnapshotError unless it is of nbformat 4."""
    import nbformat

    try:
        notebook: NotebookNode = nbformat.reads(data.decode(), as_version=nbformat.NO_CONVERT)  # type: ignore[no-untyped-call]
        valid = (
            notebook["nbformat"] == 4
            and isinstance(notebook["nbformat_minor"], int)
            and isinstance(notebook["cells"], list)
        )
    except Exception as error:  # nbformat raises errors of many kinds
        raise SnapshotError("this is no notebook", where=where) from error
    if not valid:
        raise SnapshotError(
            "this notebook is not of nbformat 4", where=where, next_step="open it in Jupyter and save it"
        )
    for number, cell in enumerate(notebook["cells"], 1):
        if not _is_cell(cell):
            raise SnapshotError(
                f"cell {number} of this notebook lacks its cell_type, its source or its outputs",
                where=where,
                next_step="open it in Jupyter and save it",
            )
    return notebook


def _is_cell(cell: Any) -> bool:
    """Return whether nbformat can write a cell, and a kernel can run it."""
    match cell:
        case {"cell_type": "code", "source": str(), "outputs": [*outputs]}:
            return all(isinstance(output, Mapping) and "output_type" in output for output in outputs)
        case {"cell_type": str(cell_type), "source": str()}:
            return cell_type != "code"
    return False


def encode_notebook(notebook: NotebookNode) -> bytes:
    import nbformat

    text: str = nbformat.writes(notebook, version=nbformat.NO_CONVERT)  # type: ignore[no-untyped-call]
    return f"{text}\n".encode()


def _parse_if_has(mime: str, data: bytes) -> Any:
    if mime.encode() not in data:  # most notebooks lack it, and parsing is slow
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _attachments(notebook: Any) -> Iterator[Any]:
    for cell in _cells(notebook):
        for content in _mapping(cell, "attachments").values():
            if isinstance(content, Mapping) and MIME in content:
                yield content[MIME]


def _outputs(notebook: Any) -> Iterator[Mapping[str, Any]]:
    for cell in _cells(notebook):
        outputs = cell.get("outputs") if isinstance(cell, Mapping) else None
        for output in outputs if isinstance(outputs, list) else ():
            yield _mapping(output, "data")


def _cells(notebook: Any) -> list[Any]:
    cells = notebook.get("cells") if isinstance(notebook, Mapping) else None
    return cells if isinstance(cells, list) else []


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    """Return the mapping under `key` in `value`; empty if either is no mapping, as in malformed notebooks."""
    content = value.get(key) if isinstance(value, Mapping) else None
    return content if isinstance(content, Mapping) else {}


def _decode(texts: Iterable[Any]) -> tuple[list[bytes], list[CorruptSnapshot]]:
    problem, next_step = "a snapshot in this notebook is not base64", "nbcache detach, and attach it again"
    snapshots, problems = [], []
    for text in texts:
        try:
            snapshots.append(base64.b64decode("".join(text), validate=True))
        except (ValueError, TypeError):
            problems.append(CorruptSnapshot(problem, next_step=next_step))
    return snapshots, problems
