"""What the `nbcache` command does with snapshots and signers: each verb returns what there is to show."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbcache.container import MAX_SNAPSHOT_BYTES
from nbcache.errors import NbcacheError, SnapshotError
from nbcache.files import read, update
from nbcache.format import unpack
from nbcache.model import Environment
from nbcache.notebook import attachment
from nbcache.notebook.locate import opened_by
from nbcache.notebook.snapshot_report import snapshot_json, snapshot_lines
from nbcache.notebook.wording import NOTHING, aligned, counted, size
from nbcache.settings import Settings
from nbcache.sharing import MAX_NOTEBOOK_BYTES, beside, origin, sources
from nbcache.snapshot import Draft, Received, merge, receive, signed
from nbcache.trust import Keyring, Policy, Standing, TrustedSigner

__all__ = ["Shown", "attach", "detach", "extract", "inspect", "merge_files", "signers", "trust", "verify"]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a verb has to say: to people and to programs."""

    lines: list[str]
    data: Any
    """JSON values."""
    ok: bool = True
    """False where the answer is no: the command then exits with 1."""


def inspect(source: str, settings: Settings) -> Shown:
    """Show what the snapshots at `source` are: a file, a notebook or a URL. Nothing of them is used."""
    here = _here()
    received = [_receive(data, where, settings) for data, where in sources(source)]
    lines: list[str] = []
    for each in received:
        lines += [*([""] if lines else []), *snapshot_lines(each, here)]
    return Shown(lines, [snapshot_json(each, here) for each in received])


def verify(source: str, settings: Settings) -> Shown:
    """Check the snapshots at `source` in full: lengths, digests, signature, signer, and every content."""
    lines: list[str] = []
    data = []
    for content, where in sources(source):
        problem: NbcacheError | None = None
        try:
            received = _receive(content, where, settings)
            _unpack_all(received, settings.trust)
        except NbcacheError as error:
            problem = error
        data.append({"source": where, "sound": problem is None, "problem": problem and str(problem)})
        lines += [f"{where}: sound and trusted"] if problem is None else problem.diagnostics()
    return Shown(lines, data, ok=all(each["sound"] for each in data))


def merge_files(places: Sequence[str], target: Path, settings: Settings) -> Shown:
    """Write all that trusted snapshots hold into one, signed by the user."""
    drafts = []
    for place in places:
        for data, where in sources(place):
            received = _receive(data, where, settings)
            drafts.append(Draft(received.snapshot, received.unlock(settings.trust)))
    names = {draft.snapshot.notebook for draft in drafts}
    merged = merge(drafts, origin(names.pop() if len(names) == 1 else "", settings))
    data = signed(merged, Keyring(settings.trust_dir))
    update(target, lambda before: data, max_bytes=MAX_SNAPSHOT_BYTES)
    said = f"{target}: {counted(len(merged.packed), 'artifact')} of {counted(len(drafts), 'snapshot')}"
    return Shown([f"{said}, {size(len(data))}"], {"path": str(target), "artifacts": len(merged.packed)})


def attach(notebook: Path, snapshot: Path | None, settings: Settings) -> Shown:
    """Put a snapshot, by default the one beside the notebook, into a notebook that is not open."""
    source = snapshot or beside(notebook)
    data = read(source, max_bytes=MAX_SNAPSHOT_BYTES)
    _receive(data, str(source), settings)  # what is broken is not attached
    _change(notebook, lambda opened: attachment.attach(opened, data))
    return Shown(
        [f"{notebook}: carries {source.name} now ({size(len(data))})"],
        {"notebook": str(notebook), "snapshot": str(source), "bytes": len(data)},
    )


def detach(notebook: Path) -> Shown:
    """Take attached snapshots out of a notebook that is not open."""
    taken: list[bytes] = []
    _change(notebook, lambda opened: taken.extend(attachment.detach(opened)))
    return Shown(
        [f"{notebook}: {counted(len(taken), 'snapshot')} taken out"],
        {"notebook": str(notebook), "snapshots": len(taken)},
        ok=bool(taken),
    )


def extract(notebook: Path, target: Path | None, settings: Settings) -> Shown:
    """Write the snapshot that a notebook carries into a file, by default the one beside the notebook."""
    found = attachment.carried(read(notebook, max_bytes=MAX_NOTEBOOK_BYTES))
    if not found:
        raise SnapshotError(
            "this notebook carries no snapshot", where=str(notebook), next_step="nbcache attach puts one in"
        )
    _receive(found[0], str(notebook), settings)
    target = target or beside(notebook)
    if target.exists() and read(target, max_bytes=MAX_SNAPSHOT_BYTES) != found[0]:
        raise SnapshotError(
            "another snapshot is there already",
            where=str(target),
            next_step="name another file with -o, and nbcache merge the two",
        )
    update(target, lambda before: found[0], max_bytes=MAX_SNAPSHOT_BYTES)
    return Shown([f"{target}: {size(len(found[0]))}"], {"path": str(target), "bytes": len(found[0])})


def signers(settings: Settings) -> Shown:
    """Show one's own key and who is trusted."""
    keyring = Keyring(settings.trust_dir)
    own = keyring.own()
    rows = [(own or NOTHING, "you" if own else "you have no key yet: the first snapshot makes one")]
    rows += [(signer.fingerprint, f"trusted: {signer.name or NOTHING}") for signer in keyring.trusted()]
    data = {"own": own, "trusted": [_signer_json(signer) for signer in keyring.trusted()]}
    return Shown([*aligned(rows, right=()), f"policy: {settings.trust.value}"], data)


def trust(action: str, signer: str, name: str, settings: Settings) -> Shown:
    """Add, remove or show one signer; `signer` is a fingerprint, or to add the source of a snapshot."""
    keyring = Keyring(settings.trust_dir)
    if action == "add":
        found = keyring.add(signer if not _is_source(signer) else _signer_of(signer, settings), name)
        said = f"trusted from now on: {found.fingerprint}"
    elif action == "remove":
        found = keyring.remove(signer)
        said = f"not trusted any more: {found.fingerprint}; what came from there stays: %nbcache clear"
    else:
        found = keyring.find(signer)
        said = f"{found.fingerprint}  trusted since {time.strftime('%Y-%m-%d', time.gmtime(found.added))}"
    return Shown([said + (f" ({found.name})" if found.name else "")], _signer_json(found))


def _receive(data: bytes, where: str, settings: Settings) -> Received:
    return receive(data, Keyring(settings.trust_dir), where=where)


def _unpack_all(received: Received, policy: Policy) -> None:
    packed = received.unlock(policy)
    for digest, each in received.snapshot.contents.items():
        unpack(packed[digest], size=each.size, digest=digest)


def _change(notebook: Path, change: Any) -> None:
    if (server := opened_by(notebook)) is not None:
        raise SnapshotError(
            f"this notebook is open, and what is on screen would be saved over it ({server})",
            where=str(notebook),
            next_step="close it and shut its kernel down, or run `%nbcache snapshot notebook` in it",
        )

    def changed(before: bytes | None) -> bytes:
        opened = attachment.decode_notebook(before or b"", str(notebook))
        change(opened)
        return attachment.encode_notebook(opened)

    if not notebook.exists():
        raise SnapshotError("there is no such notebook", where=str(notebook), next_step="check the path")
    update(notebook, changed, max_bytes=MAX_NOTEBOOK_BYTES)


def _here() -> Environment | None:
    """Return this environment; None where there is no torch to ask."""
    try:
        from nbcache.torch_bridge import environment

        return environment.current()
    except ImportError:
        return None


def _is_source(text: str) -> bool:
    return "://" in text or Path(text).expanduser().is_file()


def _signer_of(source: str, settings: Settings) -> str:
    found = {_receive(data, where, settings).signer for data, where in sources(source)} - {""}
    if len(found) != 1:
        raise SnapshotError(
            "nobody signed this" if not found else "several have signed what is there", where=source
        )
    return found.pop()


def _signer_json(signer: TrustedSigner) -> dict[str, Any]:
    return {
        "fingerprint": signer.fingerprint,
        "name": signer.name,
        "added": signer.added,
        "standing": Standing.TRUSTED.name.lower(),
    }
