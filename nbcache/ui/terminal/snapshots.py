"""What the `nbcache` command does with snapshots and signers: each verb returns what there is to show."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from nbcache.artifacts.compatibility import baseline_for
from nbcache.artifacts.history import asked_for
from nbcache.artifacts.provenance import Judge
from nbcache.artifacts.store import ArtifactStore
from nbcache.core.errors import (
    BadSignature,
    FormatError,
    NbcacheError,
    SnapshotError,
    TrustError,
)
from nbcache.core.model import SnapshotRestored
from nbcache.core.settings import Settings
from nbcache.core.text import counted, one_line, size
from nbcache.core.trust import Keyring, Policy
from nbcache.kernel.snapshots import present_cells, usable
from nbcache.snapshots.build import Draft, Origin, build_snapshot, merge, of_manifests, vouched
from nbcache.snapshots.sources import (
    beside,
    destination,
    origin,
    sources,
    versions,
    write,
)
from nbcache.snapshots.verify import Received, receive
from nbcache.stores.directory import DirectoryStore
from nbcache.torch_bridge.portable import chosen
from nbcache.ui.display.snapshots import (
    held,
    left_out,
    snapshot_json,
    snapshot_lines,
    taken_parts,
)
from nbcache.ui.terminal.shown import (
    Shown,
    cell_titles,
    judge_of,
    needed_environment,
    received_from,
    this_environment,
    usable_artifacts,
)

__all__ = ["inspect", "merge_files", "restore", "snapshot", "verify"]


def inspect(source: str, settings: Settings) -> Shown:
    """Show every version of the snapshots at `source`: a file, a notebook or a URL. Nothing is used."""
    here = this_environment()
    found, problems = versions(source, Keyring(settings.trust_dir))
    if not found:
        raise problems[0]
    judge = judge_of(settings)
    lines: list[str] = []
    for each in found:
        titles = cell_titles(each)
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
    judge = judge_of(settings)
    found, problems = versions(source, Keyring(settings.trust_dir))
    for received in found:
        refused, omitted = _checked(received, settings)
        name = one_line(received.where)
        if refused is None:
            usable += 1
            maker = received.snapshot
            whose = judge.introduce(received.signer, maker.user, maker.host) if received.signer else "nobody"
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
            for error in vouched(manifest, judge_of(settings))[1]:
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


def snapshot(notebook: Path, dest: str | None, settings: Settings, *, everything: bool = False) -> Shown:
    """Write what a notebook's cells use of what is stored here, for this environment, or `everything`."""
    target = beside(notebook) if dest is None else destination(dest)
    here = needed_environment("a snapshot", chosen(settings.portable))
    with closing(DirectoryStore(settings.dir)) as store:
        artifacts = usable_artifacts(store, settings)
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
        cells, runs = present_cells(str(notebook)), artifacts.history.read(manifest.notebook)
        current = partial(asked_for, cells=cells, runs=runs) if cells and not everything else None
        if current is not None and (present := current(manifest)).graphs:
            manifest = present
        read = partial(build_snapshot, artifacts, manifest, where)
        keeps = current if target == beside(notebook) else None
        taken = write(target, read, where, Keyring(settings.trust_dir), keeps)
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
        for received in received_from(source, settings):
            try:
                where = received.where
                packed = received.unlock(settings.trust)
                here = needed_environment("a snapshot", baseline)
                name = baseline_for(received.snapshot.manifests, here) if baseline is None else None
                if name is not None:
                    here = needed_environment("a snapshot", chosen(name))
                manifest, wrong = usable(received, here, judge_of(settings))
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
            lines += [f"  {why}" for why, _ in left_out(received, settings.trust, judge_of(settings))]
            lines += [f"  part of it is not used: {error}" for error in wrong]
        artifacts.evict(settings.max_bytes)
    if problems and not restored:
        raise problems[0]
    for problem in problems:
        lines += problem.diagnostics()
    return Shown(lines, [asdict(each) for each in restored])
