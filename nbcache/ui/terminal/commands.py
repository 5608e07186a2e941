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

from nbcache.artifacts.encoding import unpack
from nbcache.artifacts.mega_cache import decode_bundle, encode_bundle, holds_cpu_code, is_held
from nbcache.artifacts.provenance import Judge
from nbcache.artifacts.store import ArtifactStore
from nbcache.core.cpu_levels import Baseline
from nbcache.core.errors import (
    BadSignature,
    ConfigError,
    EnvironmentMismatch,
    FormatError,
    NbcacheError,
    SnapshotError,
    TrustError,
)
from nbcache.core.files import read, update
from nbcache.core.model import BUNDLED, Artifact, ArtifactRef, Environment, Manifest, SnapshotRestored
from nbcache.core.settings import Settings
from nbcache.core.trust import Keyring, Policy, Standing, TrustedSigner, is_fingerprint, spelled
from nbcache.kernel.snapshots import (
    MAX_NOTEBOOK_BYTES,
    beside,
    destination,
    origin,
    sources,
    usable,
    versions,
    write,
)
from nbcache.shared.gc import MAX_AGE_SECONDS, sweep
from nbcache.snapshots import in_notebook
from nbcache.snapshots.build import Draft, Origin, Received, baseline_for, merge, of_manifests, receive, take
from nbcache.snapshots.file import MAX_SNAPSHOT_BYTES
from nbcache.snapshots.named import GRACE_SECONDS, opened
from nbcache.snapshots.versions import united, vouched
from nbcache.stores.base import Store
from nbcache.stores.directory import DirectoryStore
from nbcache.torch_bridge.portable import chosen
from nbcache.ui.display.cell_titles import cell_titles
from nbcache.ui.display.render import CheckState, render_checks
from nbcache.ui.display.snapshots import (
    held,
    left_out,
    snapshot_json,
    snapshot_lines,
    taken_parts,
    version_json,
    version_lines,
)
from nbcache.ui.display.words import NOTHING, aligned, counted, one_line, size
from nbcache.ui.doctor import in_terminal
from nbcache.ui.locate import opened_by
from nbcache.ui.terminal import headless

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
    """Show every version of the snapshots at `source`: a file, a notebook or a URL. Nothing is used."""
    here = _here()
    found, problems = versions(source, Keyring(settings.trust_dir))
    if not found:
        raise problems[0]
    judge = _judge(settings)
    lines: list[str] = []
    for each in found:
        titles = cell_titles(each.where, each.snapshot, max_bytes=MAX_NOTEBOOK_BYTES)
        lines += [*([""] if lines else []), *snapshot_lines(each, here, judge, titles)]
    for problem in problems:
        lines += ["", *problem.diagnostics()]
    wrong = [{"source": each.where, "problem": str(each)} for each in problems]
    return Shown(lines, [*(snapshot_json(each, here, judge) for each in found), *wrong])


def verify(source: str, settings: Settings) -> Shown:
    """Check every version of the snapshots at `source` in full: lengths, digests, signatures, every content.

    Contents of those only that may be used. The answer is yes where one may be, and nothing is wrong with any
    that the user or a trusted signer has signed.
    """
    lines: list[str] = []
    data: list[dict[str, Any]] = []
    usable = wrong = 0
    found, problems = versions(source, Keyring(settings.trust_dir))
    for received in found:
        refused, omitted = _checked(received, settings)
        whose = "nobody" if received.standing is None else received.standing.value
        name = one_line(received.where)
        if refused is None:
            usable += 1
            lines.append(f"{name}: sound; its signer: {whose}")
            lines += [f"  left out: {each}" for each in omitted]
        elif isinstance(refused, TrustError) and not isinstance(refused, BadSignature):
            lines += refused.diagnostics()
        else:
            wrong += 1
            lines += refused.diagnostics()
        data.append(
            {
                "source": received.where,
                "signer": received.signer or None,
                "sound": refused is None,
                "problem": refused and str(refused),
                "left_out": [str(each) for each in omitted],
            }
        )
    for problem in problems:
        wrong += problem.of_trusted
        lines += problem.diagnostics()
        told = {"source": problem.where, "signer": None, "sound": False, "problem": str(problem)}
        data.append({**told, "left_out": []})
    return Shown(lines, data, ok=usable > 0 and wrong == 0)


def _checked(received: Received, settings: Settings) -> tuple[NbcacheError | None, list[NbcacheError]]:
    """Return why a version cannot be used, and else what of it cannot, since its maker is not trusted."""
    omitted: dict[str, NbcacheError] = {}
    try:
        received.unpack_all(settings.trust)
        for manifest in received.snapshot.manifests:
            for error in vouched(manifest, _judge(settings))[1]:
                if isinstance(error, FormatError | BadSignature):
                    error.where = received.where
                    raise error
                omitted.setdefault(error.what, error)
    except NbcacheError as error:
        return error, []
    return None, [*omitted.values()]


def merge_files(places: Sequence[str], target: Path, settings: Settings) -> Shown:
    """Write all that trusted snapshots hold into one, signed by the user; each artifact keeps its maker."""
    keyring = Keyring(settings.trust_dir)
    judge = Judge(lambda: keyring, lambda: Policy.STRICT)
    drafts = []
    omitted: dict[str, NbcacheError] = {}
    for place in places:
        for data, where in sources(place, keyring):
            found = receive(data, keyring, where=where)
            problems: list[NbcacheError] = []
            for received in found:
                try:
                    received.unpack_all(Policy.STRICT)  # what is signed anew is answered for
                except NbcacheError as error:
                    problems.append(error)
                    continue
                admitted = [vouched(manifest, judge) for manifest in received.snapshot.manifests]
                omitted |= {error.what: error for _, errors in admitted for error in errors}
                drafts.append(of_manifests(received, [manifest for manifest, _ in admitted]))
            if len(problems) == len(found):
                raise problems[0]
            omitted |= {error.what: error for error in problems}
    names = {draft.snapshot.notebook for draft in drafts}
    whole = merge(drafts, origin(names.pop() if len(names) == 1 else "", settings))
    if not whole.snapshot.contents:
        raise next(iter(omitted.values()), SnapshotError("there is nothing in these snapshots"))
    taken = write(target, lambda known: whole, _origin_of(whole), keyring)
    held = taken.draft.packed
    said = f"{target}: {counted(len(held), 'artifact')} of {counted(len(drafts), 'snapshot')}"
    lines = [f"{said}, {size(len(taken.data))}"]
    lines += [f"  left out: {error}" for error in omitted.values()]
    return Shown(lines, {"path": str(target), "artifacts": len(held), "left_out": [*map(str, omitted)]})


def _origin_of(draft: Draft) -> Origin:
    said = draft.snapshot
    return Origin(said.notebook, said.created, said.made_by, said.user, said.host)


def export_mega(path: Path, source: str | None, settings: Settings) -> Shown:
    """Write torch's bundle of trusted snapshots, or of all that is stored here for this environment."""
    here = _needed_here("a bundle")
    artifacts = []
    if source is None:
        stored = _stored(DirectoryStore(settings.dir), settings)
        artifacts = [*filter(None, map(stored.get, stored.everything(here).artifacts))]
    else:
        judge = Judge(lambda: Keyring(settings.trust_dir), lambda: Policy.STRICT)
        problems: list[NbcacheError] = []
        for received in _received(source, settings):
            try:
                packed = received.unlock(Policy.STRICT)
                manifest, _ = usable(received, here, judge)
            except EnvironmentMismatch:
                continue
            except TrustError as error:
                problems.append(error)
                continue
            for ref in manifest.artifacts:
                content = unpack(packed[ref.digest], size=ref.size, digest=ref.digest)
                artifacts.append(Artifact(ref.type, ref.key, content))
        if problems and not artifacts:
            raise problems[0]
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
    keyring = Keyring(settings.trust_dir)
    data = read(source, max_bytes=MAX_SNAPSHOT_BYTES)
    receive(data, keyring, where=str(source))  # what is broken is not attached

    def change(opened: Any) -> bool:
        nonlocal data
        there = [each for each in in_notebook.attached(opened) if _is_snapshot(each, keyring)]
        data = united([*there, data], keyring)
        in_notebook.attach(opened, data)
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
        taken = in_notebook.detach(opened)
        return taken > 0

    _change(notebook, change)
    return Shown(
        [f"{notebook}: {counted(taken, 'snapshot')} taken out"],
        {"notebook": str(notebook), "snapshots": taken},
        ok=taken > 0,
    )


def extract(notebook: Path, target: Path | None, settings: Settings) -> Shown:
    """Write the snapshot that a notebook carries into a file, by default the one beside the notebook."""
    found, _ = in_notebook.carried(read(notebook, max_bytes=MAX_NOTEBOOK_BYTES))
    if not found:
        raise SnapshotError(
            "this notebook carries no snapshot", where=str(notebook), next_step="nbcache attach puts one in"
        )
    keyring = Keyring(settings.trust_dir)
    target = target or beside(notebook)
    sound = [each for each in found if _is_snapshot(each, keyring)]
    if not sound:
        receive(found[0], keyring, where=str(notebook))  # says what is wrong with it
    data = b""

    def change(before: bytes | None) -> bytes:
        nonlocal data
        if before is not None:
            receive(before, keyring, where=str(target))
        data = united([*([] if before is None else [before]), *sound], keyring)
        return data

    update(target, change, max_bytes=MAX_SNAPSHOT_BYTES)
    return Shown([f"{target}: {size(len(data))}"], {"path": str(target), "bytes": len(data)})


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
        artifacts = _stored(store, settings)
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
    baseline = chosen(settings.portable)
    restored: list[SnapshotRestored] = []
    lines: list[str] = []
    problems: list[NbcacheError] = []
    with closing(DirectoryStore(settings.dir)) as store:
        artifacts = ArtifactStore(store)
        for received in _received(source, settings):
            try:
                where = received.where
                packed = received.unlock(settings.trust)
                here = _needed_here("a snapshot", baseline)
                name = baseline_for(received.snapshot.manifests, here) if baseline is None else None
                if name is not None:
                    here = _needed_here("a snapshot", chosen(name))
                manifest, wrong = usable(received, here, _judge(settings))
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
            lines += [f"  {why}" for why, _ in left_out(received, settings.trust, _judge(settings))]
            lines += [f"  part of it is not used: {error}" for error in wrong]
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
    """Show one's own key, which is made where there is none, and who is trusted."""
    keyring = Keyring(settings.trust_dir)
    own, trusted = keyring.fingerprint(), keyring.trusted()
    rows = [(spelled(own), "you: what to tell others")]
    rows += [(spelled(signer.fingerprint), f"trusted: {signer.name or NOTHING}") for signer in trusted]
    data = {"own": own, "trusted": [_signer_json(signer) for signer in trusted]}
    return Shown([*aligned(rows, right=()), f"policy: {settings.trust.value}"], data)


def trust(action: str, signer: str, name: str, settings: Settings) -> Shown:
    """Add, remove or show one signer; `signer` is a fingerprint, or to add the source of a snapshot."""
    keyring = Keyring(settings.trust_dir)
    if action == "add":
        offered = ""
        if _is_source(signer):
            signer, offered = _signer_of(signer, settings)
        found = keyring.add(signer, name or offered)
        said = f"trusted from now on: {spelled(found.fingerprint)}"
    elif action == "remove":
        found = keyring.remove(signer)
        said = (
            f"not trusted any more: {spelled(found.fingerprint)}; kernels that start from now on use nothing "
            "that they compiled, whoever passed it on. Restart those that run"
        )
    else:
        found = keyring.find(signer)
        since = time.strftime("%Y-%m-%d", time.gmtime(found.added))
        said = f"{spelled(found.fingerprint)}  trusted since {since}"
    return Shown([said + (f" ({found.name})" if found.name else "")], _signer_json(found))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _judge(settings: Settings) -> Judge:
    return Judge(lambda: Keyring(settings.trust_dir), lambda: settings.trust)


def _stored(store: Store, settings: Settings) -> ArtifactStore:
    """Return what is stored here, as far as it may be used."""
    judge = _judge(settings)

    def admits(ref: ArtifactRef) -> bool:
        try:
            judge.admit_stored(ref)
            return True
        except TrustError:
            return False

    return ArtifactStore(store, admits=admits)


def _received(source: str, settings: Settings) -> list[Received]:
    """Return the versions of the snapshots at `source` that are whole; NbcacheError where none is."""
    found, problems = versions(source, Keyring(settings.trust_dir))
    if not found:
        raise problems[0]
    return found


def _is_snapshot(data: bytes, keyring: Keyring) -> bool:
    try:
        return bool(receive(data, keyring, where=""))
    except NbcacheError:
        return False


def _change(notebook: Path, change: Callable[[Any], bool]) -> None:
    """Write a notebook that is not open as `change` leaves it; as it was where that returns False."""
    if (server := opened_by(notebook)) is not None:
        raise SnapshotError(
            f"this notebook is open, and what is on screen would be saved over it ({server})",
            where=str(notebook),
            next_step="close it and shut its kernel down, or run `%nbcache snapshot notebook` in it",
        )

    def changed(before: bytes | None) -> bytes:
        opened = in_notebook.decode_notebook(before or b"", str(notebook))
        changed = change(opened)
        return in_notebook.encode_notebook(opened) if changed or before is None else before

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


def _signer_of(source: str, settings: Settings) -> tuple[str, str]:
    """Return who signed what is at `source`, and the name that they give themselves.

    Of several, who is not trusted yet; SnapshotError where that is nobody, or not one.
    """
    signers = {
        each.signer: each for each in _received(source, settings) if each.standing not in (None, Standing.OWN)
    }
    strangers = [each.signer for each in signers.values() if each.standing is Standing.UNKNOWN]
    if len(found := strangers or [*signers]) == 1:
        return found[0], signers[found[0]].snapshot.user
    who = [f"{spelled(signer)} {one_line(signers[signer].snapshot.user)}".strip() for signer in found]
    raise SnapshotError(
        f"several have signed what is there: {', '.join(who)}" if found else "nobody else signed this",
        where=source,
        next_step="name one by the fingerprint" if found else "nbcache inspect says whose it is",
    )


def _signer_json(signer: TrustedSigner) -> dict[str, Any]:
    return {
        "fingerprint": signer.fingerprint,
        "name": signer.name,
        "added": signer.added,
        "standing": Standing.TRUSTED.name.lower(),
    }
