"""What the `nbcache` command does with snapshots and signers: each verb returns what there is to show."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from nbcache.artifact_store import ArtifactStore
from nbcache.baseline import Baseline
from nbcache.bundle import decode_bundle, encode_bundle, holds_cpu_code, is_held
from nbcache.container import MAX_SNAPSHOT_BYTES
from nbcache.doctor import in_terminal
from nbcache.errors import ConfigError, NbcacheError, SnapshotError
from nbcache.files import read, update
from nbcache.format import unpack
from nbcache.model import BUNDLED, Artifact, Environment, Manifest, SnapshotRestored
from nbcache.named_snapshots import GRACE_SECONDS, opened
from nbcache.notebook import attachment, headless
from nbcache.notebook.locate import opened_by
from nbcache.notebook.render import CheckState, render_checks
from nbcache.notebook.snapshot_report import (
    held,
    snapshot_json,
    snapshot_lines,
    taken_parts,
    version_json,
    version_lines,
)
from nbcache.notebook.wording import NOTHING, aligned, counted, one_line, size
from nbcache.settings import Settings
from nbcache.sharing import MAX_NOTEBOOK_BYTES, beside, destination, mismatch, origin, sources, write
from nbcache.snapshot import Draft, Received, baseline_for, fitting, merge, receive, signed, take
from nbcache.stores.directory import DirectoryStore
from nbcache.sweep import MAX_AGE_SECONDS, sweep
from nbcache.torch_bridge.portable import chosen
from nbcache.trust import Keyring, Policy, Standing, TrustedSigner, is_fingerprint

__all__ = [
    "Shown",
    "attach",
    "detach",
    "doctor",
    "export_mega",
    "extract",
    "gc",
    "import_mega",
    "inspect",
    "ls",
    "merge_files",
    "restore",
    "rm",
    "run",
    "signers",
    "snapshot",
    "trust",
    "verify",
    "warm",
]


_LONGEST_NOTICE = 600
"""Characters: what to do next is at its end."""


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
    received = [
        _receive(data, where, settings) for data, where in sources(source, Keyring(settings.trust_dir))
    ]
    lines: list[str] = []
    for each in received:
        lines += [*([""] if lines else []), *snapshot_lines(each, here)]
    return Shown(lines, [snapshot_json(each, here) for each in received])


def verify(source: str, settings: Settings) -> Shown:
    """Check the snapshots at `source` in full: lengths, digests, signature, signer, and every content."""
    lines: list[str] = []
    data = []
    for content, where in sources(source, Keyring(settings.trust_dir)):
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
        for data, where in sources(place, Keyring(settings.trust_dir)):
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
    here = _needed_here("a bundle")
    artifacts = []
    if source is None:
        stored = ArtifactStore(DirectoryStore(settings.dir))
        artifacts = [*filter(None, map(stored.get, stored.everything(here).artifacts))]
    else:
        for data, where in sources(source, Keyring(settings.trust_dir)):
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
    here = _needed_here("a bundle")
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
    lines += _warned(done)
    data = {"snapshot": str(target), "error": done.error, "graphs": done.graphs, "notices": done.notices}
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
    lines += _warned(done)
    if done.error is not None:
        lines.append(done.error)
    data = {
        "hits": len(done.graphs) - len(missed),
        "error": done.error,
        "graphs": done.graphs,
        "notices": done.notices,
    }
    return Shown(lines, data, ok=done.error is None and not (require_hit and missed))


def _warned(done: headless.Run) -> list[str]:
    return [f"  ! {one_line(notice, _LONGEST_NOTICE)}" for notice in done.notices]


def snapshot(notebook: Path, dest: str | None, settings: Settings) -> Shown:
    """Write what is stored here of a notebook, for this environment, into a file or a store."""
    target = beside(notebook) if dest is None else destination(dest)
    here = _needed_here("a snapshot", chosen(settings.portable))
    with closing(DirectoryStore(settings.dir)) as store:
        artifacts = ArtifactStore(store)
        known = dict.fromkeys([os.path.abspath(notebook), os.path.realpath(notebook)])
        found = (artifacts.load_manifest(here, path) for path in known)
        manifest = next((each for each in found if each is not None and each.artifacts), None)
        if manifest is None:
            raise SnapshotError(
                "nothing compiled is stored of this notebook, for this environment",
                where=str(notebook),
                next_step="run it in Jupyter, or by `nbcache warm`; a kernel that cannot tell which notebook "
                "it runs takes its own: %nbcache snapshot",
            )
        where = origin(notebook.name, settings)
        read = partial(take, artifacts, manifest, where)
        taken = write(target, read, where, Keyring(settings.trust_dir))
    summary = taken.summary()
    said = f"{one_line(taken.where)} holds {held(taken.draft.snapshot)}"
    return Shown([said + "".join(f"; {each}" for each in taken_parts(summary))], asdict(summary))


def restore(source: str, settings: Settings) -> Shown:
    """Put what fits here of the trusted snapshots at `source` into the local store, for the next kernel."""
    keyring = Keyring(settings.trust_dir)
    baseline = chosen(settings.portable)
    restored: list[SnapshotRestored] = []
    lines: list[str] = []
    problems: list[NbcacheError] = []
    with closing(DirectoryStore(settings.dir)) as store:
        artifacts = ArtifactStore(store)
        for data, where in sources(source, keyring):
            try:
                received = receive(data, keyring, where=where)
                packed = received.unlock(settings.trust)
                here = _needed_here("a snapshot", baseline)
                name = baseline_for(received.snapshot.manifests, here) if baseline is None else None
                if name is not None:
                    here = _needed_here("a snapshot", chosen(name))
                if (manifest := fitting(received.snapshot.manifests, here)) is None:
                    raise mismatch(received, here)
            except NbcacheError as error:
                problems.append(error)
                continue
            now = time.time()
            refs = [ref.not_after(now) for ref in manifest.artifacts]
            for ref in refs:
                artifacts.adopt(here.digest, ref, packed[ref.digest])
            artifacts.save_manifest(replace(manifest, environment=here, notebook="", artifacts=tuple(refs)))
            counts = len(manifest.graphs), len(manifest.digests)
            restored.append(SnapshotRestored(where, *counts))
            said = (
                f"{one_line(where)}: restored {counted(counts[0], 'graph')}, {counted(counts[1], 'artifact')}"
            )
            lines.append(said + (f"; used by kernels with NBCACHE_PORTABLE={name}" if name else ""))
        artifacts.evict(settings.max_bytes)
    if problems and not restored:
        raise problems[0]
    for problem in problems:
        lines += problem.diagnostics()
    return Shown(lines, [asdict(each) for each in restored])


def ls(url: str, settings: Settings) -> Shown:
    """Show the named snapshots in a store; nothing of them is used."""
    with opened(url, Keyring(settings.trust_dir)) as snapshots:
        versions = snapshots.versions()
        data = [version_json(each) for each in versions]
        if not versions:
            return Shown([f"{snapshots.name}: no snapshots"], data)
    return Shown(version_lines(versions), data)


def rm(source: str, settings: Settings) -> Shown:
    """Remove a named snapshot from its store, all versions of it; its artifacts stay until `gc`."""
    target = destination(source)
    if isinstance(target, Path):
        raise ConfigError(
            "only what has a name in a store is removed",
            where=source,
            next_step="write URL#NAME; a file is removed as any other",
        )
    with opened(target.url, Keyring(settings.trust_dir)) as snapshots:
        removed, where = snapshots.remove(target.name), snapshots.where(target.name)
    said = f"{one_line(where)}: removed, {counted(removed, 'version')}; nbcache gc removes what only it named"
    return Shown([said], {"source": where, "versions": removed})


def gc(url: str, grace: float | None, unused_days: float | None, settings: Settings) -> Shown:
    """Remove what no snapshot names, `grace` seconds after it was marked, and what kernels share unused.

    The latter after `unused_days`, 30 by default.
    """
    max_age = MAX_AGE_SECONDS if unused_days is None else unused_days * 86400
    with opened(url, Keyring(settings.trust_dir)) as snapshots:
        done = snapshots.collect(GRACE_SECONDS if grace is None else grace)
        swept = sweep(snapshots.store, max_age)
        name = snapshots.name
    due = None if done.due is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(done.due))
    lines = [f"{name}: removed {counted(done.removed, 'artifact')} that no snapshot named"]
    if done.problems:
        lines = [f"{name}: nothing was removed, since not every snapshot tells what it names"]
        for problem in done.problems:
            lines += problem.diagnostics()
    elif done.waiting:
        lines.append(
            f"{counted(done.waiting, 'more is', 'more are')} marked, since no snapshot names them; "
            f"`nbcache gc` removes the first from {due} on"
        )
    if swept.problems:
        lines.append("of what kernels share live nothing was removed, since not all tell what they use")
        for problem in swept.problems:
            lines += problem.diagnostics()
    else:
        unused = f"that no kernel has used for {max_age / 86400:g} days"
        lines.append(
            f"live: removed {counted(swept.removed, 'artifact')} {unused}, and what "
            f"{counted(swept.publishers, 'publisher')} had; {swept.kept} kept"
        )
    data = {
        "removed": done.removed,
        "marked": done.waiting,
        "due": done.due,
        "live": {"removed": swept.removed, "kept": swept.kept, "publishers": swept.publishers},
        "problems": [str(problem) for problem in (*done.problems, *swept.problems)],
    }
    return Shown(lines, data, ok=not data["problems"])


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


def _here(baseline: Baseline | None = None) -> Environment | None:
    """Return this environment, where kernels compile for `baseline`; None where there is no torch to ask."""
    try:
        from nbcache.torch_bridge import environment

        return environment.current(baseline)
    except ImportError:
        return None


def _needed_here(what: str, baseline: Baseline | None = None) -> Environment:
    """Return the same; SnapshotError without torch. `what` is for one environment."""
    here = _here(baseline)
    if here is None:
        raise SnapshotError(
            f"{what} is for one environment, and torch, which tells it, is not installed here",
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
    return not is_fingerprint(text) and ("://" in text or "#" in text or Path(text).is_file())


def _signer_of(source: str, settings: Settings) -> str:
    found = {
        _receive(data, where, settings).signer for data, where in sources(source, Keyring(settings.trust_dir))
    } - {""}
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
