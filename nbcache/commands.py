"""What the `nbcache` command does with snapshots and signers: each verb returns what there is to show."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbcache.artifact_store import ArtifactStore
from nbcache.bundle import decode_bundle, encode_bundle, holds_cpu_code, is_held
from nbcache.container import MAX_SNAPSHOT_BYTES
from nbcache.doctor import in_terminal
from nbcache.errors import NbcacheError, SnapshotError
from nbcache.files import read, update
from nbcache.format import unpack
from nbcache.model import BUNDLED, Artifact, Environment, Manifest
from nbcache.notebook import attachment, headless
from nbcache.notebook.locate import opened_by
from nbcache.notebook.render import CheckState, render_checks
from nbcache.notebook.snapshot_report import snapshot_json, snapshot_lines
from nbcache.notebook.wording import NOTHING, aligned, counted, one_line, size
from nbcache.settings import Settings
from nbcache.sharing import MAX_NOTEBOOK_BYTES, beside, origin, sources
from nbcache.snapshot import Draft, Received, fitting, merge, receive, signed
from nbcache.stores.directory import DirectoryStore
from nbcache.torch_bridge.portable import chosen
from nbcache.trust import Keyring, Policy, Standing, TrustedSigner, is_fingerprint

__all__ = [
    "Shown",
    "attach",
    "detach",
    "doctor",
    "export_mega",
    "extract",
    "import_mega",
    "inspect",
    "merge_files",
    "run",
    "signers",
    "trust",
    "verify",
    "warm",
]


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
        standing: Standing | None = None
        try:
            received = _receive(content, where, settings)
            standing = received.standing
            received.unpack_all(settings.trust)
        except NbcacheError as error:
            problem = error
        data.append({"source": where, "sound": problem is None, "problem": problem and str(problem)})
        signer = "nobody" if standing is None else standing.value
        sound = f"{one_line(where)}: sound; its signer: {signer}"
        lines += [sound] if problem is None else problem.diagnostics()
    return Shown(lines, data, ok=all(each["sound"] for each in data))


def merge_files(places: Sequence[str], target: Path, settings: Settings) -> Shown:
    """Write all that trusted snapshots hold into one, signed by the user."""
    drafts = []
    for place in places:
        for data, where in sources(place):
            received = _receive(data, where, settings)
            received.unpack_all(Policy.STRICT)  # what is signed anew is answered for
            drafts.append(Draft(received.snapshot, received.unlock(Policy.STRICT)))
    names = {draft.snapshot.notebook for draft in drafts}
    merged = merge(drafts, origin(names.pop() if len(names) == 1 else "", settings))
    data = signed(merged, Keyring(settings.trust_dir))
    update(target, lambda before: data, max_bytes=MAX_SNAPSHOT_BYTES)
    said = f"{target}: {counted(len(merged.packed), 'artifact')} of {counted(len(drafts), 'snapshot')}"
    return Shown([f"{said}, {size(len(data))}"], {"path": str(target), "artifacts": len(merged.packed)})


def export_mega(path: Path, source: str | None, settings: Settings) -> Shown:
    """Write torch's bundle of trusted snapshots, or of all that is stored here for this environment."""
    here = _needed_here()
    artifacts = []
    if source is None:
        stored = ArtifactStore(DirectoryStore(settings.dir))
        artifacts = [*filter(None, map(stored.get, stored.everything(here).artifacts))]
    else:
        for data, where in sources(source):
            received = _receive(data, where, settings)
            packed = received.unlock(Policy.STRICT)
            manifest = fitting(received.snapshot.manifests, here)
            for ref in manifest.artifacts if manifest is not None else ():
                content = unpack(packed[ref.digest], size=ref.size, digest=ref.digest)
                artifacts.append(Artifact(ref.type, ref.key, content))
    held = [artifact for artifact in artifacts if is_held(artifact)]
    if not held:
        raise SnapshotError(
            "there is nothing for a bundle: no graph there fits this machine",
            where=source or str(settings.dir),
        )
    data = encode_bundle(held)
    update(path, lambda before: data, max_bytes=MAX_SNAPSHOT_BYTES)
    return Shown(
        [f"{path}: {counted(len(held), 'artifact')}, {size(len(data))}"],
        {"path": str(path), "artifacts": len(held), "bytes": len(data)},
    )


def import_mega(path: Path, same_cpu: bool, sure: bool, settings: Settings) -> Shown:
    """Store what a bundle of torch's holds, for this environment; its CPU graphs with `same_cpu` only."""
    here = _needed_here()
    try:
        held = decode_bundle(read(path, max_bytes=MAX_SNAPSHOT_BYTES))
    except NbcacheError as error:
        error.where = str(path)
        raise
    sound = [each for each in held if is_held(each)]
    taken = [each for each in sound if same_cpu or not holds_cpu_code(each)]
    if taken and not sure:
        _agree(f"{path} is not signed: what it holds runs as you, with all your rights. Store it? [y/N] ")
    stored = ArtifactStore(DirectoryStore(settings.dir))
    refs = []
    for artifact in taken:
        refs.append(stored.put(here.digest, artifact))
        if artifact.type == "inductor" and holds_cpu_code(artifact):
            stored.put(here.digest, Artifact(BUNDLED, artifact.key, artifact.digest.encode()))
    if refs:
        stored.save_manifest(Manifest(here, "", tuple(refs)))
    lines = [f"{path}: {counted(len(taken), 'artifact')} stored for this machine"]
    if left := len(sound) - len(taken):
        lines.append(
            f"{counted(left, 'artifact')} left alone: CPU code, and a bundle does not tell for which CPU. "
            "If it was made on this one, or one just like it: --assume-same-cpu"
        )
    if refused := len(held) - len(sound):
        lines.append(
            f"{counted(refused, 'artifact')} refused: torch makes none of that type, or with such a key"
        )
    return Shown(lines, {"stored": len(taken), "left": left, "refused": refused}, ok=bool(taken))


def attach(notebook: Path, snapshot: Path | None, settings: Settings) -> Shown:
    """Put a snapshot, by default the one beside the notebook, into a notebook that is not open."""
    source = snapshot or beside(notebook)
    data = read(source, max_bytes=MAX_SNAPSHOT_BYTES)
    _receive(data, str(source), settings)  # what is broken is not attached

    def change(opened: Any) -> bool:
        attachment.attach(opened, data)
        return True

    _change(notebook, change)
    return Shown(
        [f"{notebook}: carries {source.name} now ({size(len(data))})"],
        {"notebook": str(notebook), "snapshot": str(source), "bytes": len(data)},
    )


def detach(notebook: Path) -> Shown:
    """Take attached snapshots out of a notebook that is not open."""
    taken = 0

    def change(opened: Any) -> bool:
        nonlocal taken
        taken = attachment.detach(opened)
        return taken > 0

    _change(notebook, change)
    return Shown(
        [f"{notebook}: {counted(taken, 'snapshot')} taken out"],
        {"notebook": str(notebook), "snapshots": taken},
        ok=taken > 0,
    )


def extract(notebook: Path, target: Path | None, settings: Settings) -> Shown:
    """Write the snapshot that a notebook carries into a file, by default the one beside the notebook."""
    found, _ = attachment.carried(read(notebook, max_bytes=MAX_NOTEBOOK_BYTES))
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


def warm(notebook: Path, portable: str | None, settings: Settings) -> Shown:
    """Run a notebook without a person, and write the snapshot beside it; `portable` is the CPUs it is for."""
    if portable is not None:
        chosen(portable)  # else the kernel would compile for this CPU
        settings = settings.with_value("portable", portable, origin="--portable")
    target = beside(notebook)
    done = headless.run(notebook, settings.to_env(), snapshot=str(target.resolve()), say=_say)
    lines = [done.error] if done.error is not None else [f"{done.snapshot}".strip()]
    data = {"snapshot": str(target), "error": done.error, "graphs": done.graphs}
    return Shown(lines, data, ok=done.error is None)


def run(notebook: Path, require_hit: bool, settings: Settings) -> Shown:
    """Run a notebook without a person, and show what hit; with `require_hit`, any miss is a failure."""
    done = headless.run(notebook, settings.to_env(), say=_say)
    missed = [graph for graph in done.graphs if graph["outcome"] != "hit"]
    lines = [f"{notebook}: {len(done.graphs) - len(missed)} of {counted(len(done.graphs), 'graph')} hit"]
    for graph in missed:
        cell = graph["cell"] and graph["cell"]["execution_count"]
        where = f"In[{cell}] " if cell is not None else ""
        lines.append(
            f"  {where}{graph['function']} {graph['compile_id']} {graph['direction']}: "
            f"{graph['outcome']}, {one_line(graph['reason'] or NOTHING)}"
        )
    if done.error is not None:
        lines.append(done.error)
    data = {"hits": len(done.graphs) - len(missed), "error": done.error, "graphs": done.graphs}
    return Shown(lines, data, ok=done.error is None and not (require_hit and missed))


def doctor(settings: Settings) -> Shown:
    """Check what nbcache needs of this machine; a problem is a failure."""
    checks = in_terminal(settings)
    rendered = render_checks(checks)
    sound = all(check.state is not CheckState.PROBLEM for check in checks)
    return Shown(rendered.text.splitlines(), rendered.data, ok=sound)


def signers(settings: Settings) -> Shown:
    """Show one's own key and who is trusted."""
    keyring = Keyring(settings.trust_dir)
    own, trusted = keyring.own(), keyring.trusted()
    rows = [(own or NOTHING, "you" if own else "you have no key yet: the first snapshot makes one")]
    rows += [(signer.fingerprint, f"trusted: {signer.name or NOTHING}") for signer in trusted]
    data = {"own": own, "trusted": [_signer_json(signer) for signer in trusted]}
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


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _receive(data: bytes, where: str, settings: Settings) -> Received:
    return receive(data, Keyring(settings.trust_dir), where=where)


def _change(notebook: Path, change: Callable[[Any], bool]) -> None:
    """Write a notebook that is not open as `change` leaves it; as it was where that returns False."""
    if (server := opened_by(notebook)) is not None:
        raise SnapshotError(
            f"this notebook is open, and what is on screen would be saved over it ({server})",
            where=str(notebook),
            next_step="close it and shut its kernel down, or run `%nbcache snapshot notebook` in it",
        )

    def changed(before: bytes | None) -> bytes:
        opened = attachment.decode_notebook(before or b"", str(notebook))
        changed = change(opened)
        return attachment.encode_notebook(opened) if changed or before is None else before

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


def _needed_here() -> Environment:
    here = _here()
    if here is None:
        raise SnapshotError(
            "a bundle is for one environment, and torch, which tells it, is not installed here",
            next_step="run this where the notebook's kernel runs",
        )
    return here


def _agree(question: str) -> None:
    """Ask on the terminal; SnapshotError where the answer is not yes, or nobody is there to give one."""
    if not sys.stdin.isatty():
        raise SnapshotError("nobody can be asked here", next_step="if you are sure, add --yes")
    print(question, end="", file=sys.stderr, flush=True)
    try:
        answer = input()
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise SnapshotError("nothing was stored")


def _is_source(text: str) -> bool:
    """Tell a place from a fingerprint; what could be one is one, whatever files there are."""
    return not is_fingerprint(text) and ("://" in text or Path(text).is_file())


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
