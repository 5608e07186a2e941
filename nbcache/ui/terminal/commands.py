"""The commands of the terminal: one function for each."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from nbcache.core import errors
from nbcache.core.cpu_levels import Baseline
from nbcache.core.errors import NbcacheError, SnapshotError, TrustError
from nbcache.core.files import read, update
from nbcache.core.model import Artifact, ArtifactRef, Environment, Manifest, SnapshotRestored
from nbcache.core.settings import Policy, Settings
from nbcache.core.text import DOT, NOTHING, ago, aligned, counted, one_line, size
from nbcache.kernel.explain.stats import lifetime
from nbcache.kernel.snapshots import present_cells, usable
from nbcache.launcher import kernel_spec
from nbcache.launcher.protocol import ordinary
from nbcache.sharing.gc import MAX_AGE_SECONDS, remove_unused
from nbcache.sharing.provenance import Judge
from nbcache.sharing.snapshots import build, in_notebook
from nbcache.sharing.snapshots.file import MAX_SNAPSHOT_BYTES
from nbcache.sharing.snapshots.named import GRACE_SECONDS, open_named
from nbcache.sharing.snapshots.sources import MAX_NOTEBOOK_BYTES, beside, destination, origin, versions, write
from nbcache.sharing.snapshots.verify import Received, receive
from nbcache.sharing.trust import Keyring, Standing, TrustedSigner, is_fingerprint, spelled
from nbcache.storage import mega_cache as mega
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.compatibility import baseline_for
from nbcache.storage.encoding import unpack
from nbcache.storage.history import asked_for
from nbcache.storage.store import ArtifactStore
from nbcache.storage.types import BUNDLED
from nbcache.torch_bridge.cache_settings import CacheSetting
from nbcache.torch_bridge.portable import baseline_of
from nbcache.ui.display import snapshots as display
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.reports import render_checks, render_settings
from nbcache.ui.display.stats import render_lifetime
from nbcache.ui.display.words import CheckState, missed_lines, store_parts
from nbcache.ui.doctor import in_terminal, store_figures
from nbcache.ui.locate import opened_by
from nbcache.ui.terminal import headless
from nbcache.ui.terminal.shown import Shown, agree, cell_titles, is_snapshot, judge_of, received_from, say

_LONGEST_NOTICE = 600
"""Characters of a notice that are shown; its next step is at its end."""


def inspect(source: str, settings: Settings) -> Shown:
    """Show every version of the snapshots at `source`: a file, a notebook or a URL. None of them is used."""
    current, judge = this_environment(), judge_of(settings)
    readable, problems = versions(source, Keyring(settings.trust_dir))
    if not readable:
        raise problems[0]
    texts = [display.snapshot_lines(received, current, judge, cell_titles(received)) for received in readable]
    texts += [problem.diagnostics() for problem in problems]
    lines = [line for text in texts for line in ("", *text)][1:]
    wrong = [{"source": problem.where, "problem": str(problem)} for problem in problems]
    return Shown(lines, [*(display.snapshot_json(received, current, judge) for received in readable), *wrong])


def verify(source: str, settings: Settings, traces: bool = False) -> Shown:
    """Check all versions of the snapshots at `source`: lengths, digests, signatures, and usable contents.

    The answer is yes if at least one version is usable, and none that the user or a trusted signer has signed
    is damaged. With `traces`, run a notebook and check its traces instead.
    """
    if traces:
        return _verify_traces(Path(source), settings)
    lines: list[str] = []
    data: list[dict[str, Any]] = []
    usable = wrong = 0
    judge = judge_of(settings)
    readable, problems = versions(source, Keyring(settings.trust_dir))
    for received in readable:
        refused, omitted = _check(received, settings.trust, judge)
        if refused is None:
            usable += 1
            user, host = received.snapshot.user, received.snapshot.host
            whose = judge.introduce(received.signer, user, host) if received.signer else "nobody"
            lines.append(f"{one_line(received.where)}: sound; its signer: {whose}")
            lines += [f"  left out: {error}" for error in omitted]
        else:
            wrong += not isinstance(refused, TrustError) or isinstance(refused, errors.BadSignature)
            lines += refused.diagnostics()
        verdict = {"source": received.where, "signer": received.signer or None, "sound": refused is None}
        problem, left_out = refused and str(refused), [str(error) for error in omitted]
        data.append({**verdict, "problem": problem, "left_out": left_out})
    for error in problems:
        wrong += error.of_trusted
        lines += error.diagnostics()
        verdict = {"source": error.where, "signer": None, "sound": False}
        data.append({**verdict, "problem": str(error), "left_out": []})
    return Shown(lines, data, ok=usable > 0 and wrong == 0)


def _check(
    received: Received, policy: Policy, judge: Judge
) -> tuple[NbcacheError | None, list[NbcacheError]]:
    """Return why a version is unusable; or None, and the errors of parts whose makers are untrusted."""
    omitted: dict[str, NbcacheError] = {}
    try:
        received.unpack_all(policy)
        for manifest in received.snapshot.manifests:
            for error in build.admitted_part(manifest, judge)[1]:
                if isinstance(error, errors.FormatError | errors.BadSignature):
                    error.where = received.where
                    raise error
                omitted.setdefault(error.what, error)
    except NbcacheError as error:
        return error, []
    return None, [*omitted.values()]


def merge(sources: Sequence[str], output: Path, settings: Settings) -> Shown:
    """Merge trusted snapshots into one that the user signs; each artifact keeps its maker."""
    keyring = Keyring(settings.trust_dir)
    judge = Judge(lambda: keyring, lambda: Policy.STRICT)
    drafts = []
    problems: list[NbcacheError] = []
    for place in sources:
        readable, damaged = versions(place, keyring)
        refused: list[NbcacheError] = []
        for received in readable:
            try:
                received.unpack_all(Policy.STRICT)  # the user will sign its contents
            except NbcacheError as error:
                refused.append(error)
                continue
            admitted = [build.admitted_part(manifest, judge) for manifest in received.snapshot.manifests]
            problems += [error for _, unsigned in admitted for error in unsigned]
            drafts.append(build.draft_of(received, [manifest for manifest, _ in admitted]))
        if len(refused) == len(readable):
            raise [*refused, *damaged][0]
        problems += [*refused, *damaged]
    omitted = {error.what: error for error in problems}
    names = {draft.snapshot.notebook for draft in drafts}
    where_from = origin(names.pop() if len(names) == 1 else "", settings)
    draft = build.merge(drafts, where_from)
    if not draft.snapshot.contents:
        raise next(iter(omitted.values()), SnapshotError("these snapshots are empty"))
    result = write(output, lambda content: draft, where_from, keyring)
    count = len(result.draft.packed)
    counts = f"{counted(count, 'artifact')} of {counted(len(drafts), 'snapshot')}"
    lines = [f"{output}: {counts}, {size(len(result.data))}"]
    lines += [f"  left out: {error}" for error in omitted.values()]
    return Shown(lines, {"path": str(output), "artifacts": count, "left_out": [*omitted]})


def snapshot(notebook: Path, dest: str | None, all: bool, settings: Settings) -> Shown:
    """Write the stored artifacts that a notebook's cells use in this environment, or `all` of them."""
    target = beside(notebook) if dest is None else destination(dest)
    current = require_environment("a snapshot", baseline_of(settings.portable))
    with closing(DirectoryStore(settings.dir)) as store:
        artifacts = usable_artifacts(store, settings)
        paths = dict.fromkeys([os.path.abspath(notebook), os.path.realpath(notebook)])
        manifests = filter(None, (artifacts.load_manifest(current, path) for path in paths))
        manifest = next((manifest for manifest in manifests if manifest.artifacts), None)
        if manifest is None:
            raise SnapshotError(
                "no compiled graph of this notebook is stored for this environment",
                where=str(notebook),
                next_step="run it in Jupyter, or by `nbcache warm`; a kernel that cannot tell which notebook "
                "it runs takes its own: %nbcache snapshot",
            )
        where = origin(notebook.name, settings)
        cells, runs = present_cells(str(notebook)), artifacts.history.read(manifest.notebook)
        select = partial(asked_for, cells=cells, runs=runs) if cells and not all else None
        if select is not None and (present := select(manifest)).graphs:
            manifest = present
        read = partial(build.build_snapshot, artifacts, manifest, where)
        keeps = select if target == beside(notebook) else None
        result = write(target, read, where, Keyring(settings.trust_dir), keeps)
    return Shown([display.written_words(result.where, result)], asdict(result.summary()))


def restore(source: str, settings: Settings) -> Shown:
    """Store the fitting parts of the trusted snapshots at `source`, so that the next kernel hits."""
    baseline, judge = baseline_of(settings.portable), judge_of(settings)
    restored: list[SnapshotRestored] = []
    lines: list[str] = []
    problems: list[NbcacheError] = []
    with closing(DirectoryStore(settings.dir)) as store:
        artifacts = ArtifactStore(store)
        for received in received_from(source, settings):
            try:
                packed = received.unlock(settings.trust)
                env = require_environment("a snapshot", baseline)
                name = baseline_for(received.snapshot.manifests, env) if baseline is None else None
                if name is not None:
                    env = require_environment("a snapshot", baseline_of(name))
                manifest, wrong = usable(received, env, judge)
            except NbcacheError as error:
                problems.append(error)
                continue
            refs = [ref.not_after(time.time()) for ref in manifest.artifacts]
            for ref in refs:
                artifacts.adopt(env.digest, ref, packed[ref.digest])
            artifacts.save_manifest(replace(manifest, environment=env, notebook="", artifacts=tuple(refs)))
            done = SnapshotRestored(received.where, len(manifest.graphs), len(manifest.digests))
            restored.append(done)
            counts = f"{counted(done.graphs, 'graph')}, {counted(done.artifacts, 'artifact')}"
            used_by = f"; used by kernels with NBCACHE_PORTABLE={name}" if name else ""
            lines.append(f"{one_line(done.where)}: restored {counts}{used_by}")
            lines += [f"  {why}" for why, _ in display.left_out(received, judge)]
            lines += [f"  part of it is not used: {error}" for error in wrong]
        artifacts.evict(settings.max_bytes)
    if problems and not restored:
        raise problems[0]
    lines += [line for problem in problems for line in problem.diagnostics()]
    return Shown(lines, [*map(asdict, restored)])


def this_environment(baseline: Baseline | None = None) -> Environment | None:
    """Return the environment of kernels that compile for `baseline`; None without torch."""
    try:
        from nbcache.torch_bridge import environment

        return environment.current(baseline)
    except ImportError:
        return None


def require_environment(subject: str, baseline: Baseline | None = None) -> Environment:
    """Return `this_environment`; SnapshotError without torch. `subject` is the thing that needs it."""
    current = this_environment(baseline)
    if current is None:
        raise SnapshotError(
            f"torch is not installed here, so nbcache cannot tell which environment {subject} is for",
            next_step="run this where the notebook's kernel runs",
        )
    return current


def usable_artifacts(store: DirectoryStore, settings: Settings) -> ArtifactStore:
    judge = judge_of(settings)

    def admits(ref: ArtifactRef) -> bool:
        try:
            judge.admit_stored(ref)
        except TrustError:
            return False
        return True

    return ArtifactStore(store, admits=admits)


# --- stores --------------------------------------------------------------------------------------


def status(settings: Settings) -> Shown:
    """Show the figures of the local store, and its graphs by notebook."""
    graphs: Counter[str] = Counter()
    with closing(DirectoryStore(settings.dir)) as store:
        figures = store_figures(store, settings.max_bytes)
        for manifest in ArtifactStore(store).manifests().values():
            graphs[manifest.notebook] += len(manifest.graphs)
    lines = [DOT.join([*store_parts(figures), str(settings.dir)])]
    for notebook, count in graphs.most_common():
        whose = one_line(notebook) or "kernels without a known notebook"
        lines.append(f"  {counted(count, 'graph')} of {whose}")
    return Shown(lines, {"store": asdict(figures), "graphs": dict(graphs)})


def stats(settings: Settings) -> Shown:
    """Show what restoring saved in all remembered kernels."""
    with closing(DirectoryStore(settings.dir)) as store:
        runs = ArtifactStore(store).history.everything()
    return _as_text(render_lifetime(lifetime([replace(run, reason="") for run in runs], now=time.time())))


def setting_rows(settings: Settings) -> list[CacheSetting]:
    return [
        CacheSetting(name, settings.text(name), settings.origin(name), settings.help(name))
        for name in settings.names()
    ]


def config(settings: Settings) -> Shown:
    return _as_text(render_settings(setting_rows(settings)))


def clear(yes: bool, settings: Settings) -> Shown:
    """Remove everything from the local store; torch's own folder stays."""
    if not yes:
        agree(f"Remove all that nbcache stores in {settings.dir}? [y/N] ", "nothing was removed")
    with closing(DirectoryStore(settings.dir)) as store:
        removed = ArtifactStore(store).clear()
    line = f"removed {counted(removed, 'entry', 'entries')}; torch's own folder stays"
    return Shown([line], {"removed": removed})


def ls(url: str, settings: Settings) -> Shown:
    """Show the named snapshots in a store; none of them is used."""
    with open_named(url, Keyring(settings.trust_dir)) as snapshots:
        versions = snapshots.versions()
        data = [*map(display.version_json, versions)]
        if not versions:
            return Shown([f"{snapshots.name}: no snapshots"], data)
    return Shown(display.version_lines(versions, judge_of(settings)), data)


def rm(source: str, all_signers: bool, yes: bool, settings: Settings) -> Shown:
    """Remove the user's versions of a named snapshot, or those of all signers; artifacts stay until `gc`."""
    target = destination(source)
    if isinstance(target, Path):
        raise errors.ConfigError(
            "only named snapshots in a store can be removed",
            where=source,
            next_step="write URL#NAME; to remove a file, use rm",
        )
    with open_named(target.url, Keyring(settings.trust_dir)) as snapshots:
        where = snapshots.where(target.name)
        if all_signers and not yes:
            agree(f"{one_line(where)}: remove the versions of all signers? [y/N] ", "nothing was removed")
        removed, left = snapshots.remove(target.name, all_signers=all_signers)
    line = f"{one_line(where)}: removed, {counted(removed, 'version')}; nbcache gc removes what only it named"
    if left:
        line += f"; {counted(left, 'version')} of others, or damaged, left (--all-signers removes all)"
    return Shown([line], {"source": where, "versions": removed, "others": left})


def gc(url: str, grace: float | None, unused_days: float | None, settings: Settings) -> Shown:
    """Remove artifacts that no snapshot has named for `grace` seconds, and shared ones unused for 30 days."""
    max_age = MAX_AGE_SECONDS if unused_days is None else unused_days * 86400
    with open_named(url, Keyring(settings.trust_dir)) as snapshots:
        done = snapshots.collect_garbage(GRACE_SECONDS if grace is None else grace)
        live = remove_unused(snapshots.store, max_age)
        name = snapshots.name
    lines = [f"{name}: removed {counted(done.removed, 'artifact')} that no snapshot named"]
    if done.problems:
        lines = [f"{name}: nothing was removed, because some snapshots do not tell which artifacts they use"]
    elif done.due is not None:
        due = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(done.due))
        marked = counted(done.waiting, "more is", "more are")
        lines.append(
            f"{marked} marked, since no snapshot names them; `nbcache gc` removes the first from {due} on"
        )
    lines += [line for problem in done.problems for line in problem.diagnostics()]
    if live.problems:
        lines.append("no live entry was removed, because some notebooks do not tell which ones they use")
    else:
        artifacts, publishers = counted(live.artifacts, "artifact"), counted(live.publishers, "publisher")
        unused = f"that no kernel has used for {max_age / 86400:g} days"
        lines.append(
            f"live: removed {artifacts} {unused}, and those of {publishers}; {live.kept} artifacts stay"
        )
    lines += [line for problem in live.problems for line in problem.diagnostics()]
    data = {
        "removed": done.removed,
        "marked": done.waiting,
        "due": done.due,
        "live": {"removed": live.artifacts, "kept": live.kept, "publishers": live.publishers},
        "problems": [str(problem) for problem in (*done.problems, *live.problems)],
    }
    return Shown(lines, data, ok=not data["problems"])


# --- torch's own bundles --------------------------------------------------------------------------


def export_mega(file: Path, source: str | None, settings: Settings) -> Shown:
    """Write a bundle for torch, of trusted snapshots or of all artifacts stored for this environment."""
    current = require_environment("a bundle")
    artifacts = []
    if source is None:
        stored = usable_artifacts(DirectoryStore(settings.dir), settings)
        artifacts = [*filter(None, map(stored.get, stored.everything(current).artifacts))]
    else:
        judge = Judge(lambda: Keyring(settings.trust_dir), lambda: Policy.STRICT)
        problems: list[NbcacheError] = []
        for received in received_from(source, settings):
            try:
                packed = received.unlock(Policy.STRICT)
                manifest, _ = usable(received, current, judge)
            except errors.EnvironmentMismatch:
                continue
            except TrustError as error:
                problems.append(error)
                continue
            for ref in manifest.artifacts:
                content = unpack(packed[ref.digest], size=ref.size, digest=ref.digest)
                artifacts.append(Artifact(ref.type, ref.key, content))
        if problems and not artifacts:
            raise problems[0]
    bundled = [artifact for artifact in artifacts if mega.fits_in_bundle(artifact)]
    if not bundled:
        nothing = "there is nothing to put into a bundle: no graph there fits this machine"
        raise SnapshotError(nothing, where=source or str(settings.dir))
    data = mega.encode_bundle(bundled)
    update(file, lambda content: data, max_bytes=MAX_SNAPSHOT_BYTES)
    line = f"{file}: {counted(len(bundled), 'artifact')}, {size(len(data))}"
    return Shown([line], {"path": str(file), "artifacts": len(bundled), "bytes": len(data)})


def import_mega(file: Path, assume_same_cpu: bool, yes: bool, settings: Settings) -> Shown:
    """Store torch's bundle for this environment; CPU graphs only with `assume_same_cpu`."""
    current = require_environment("a bundle")
    try:
        artifacts = mega.decode_bundle(read(file, max_bytes=MAX_SNAPSHOT_BYTES))
    except NbcacheError as error:
        error.where = str(file)
        raise
    sound = [artifact for artifact in artifacts if mega.fits_in_bundle(artifact)]
    accepted = [artifact for artifact in sound if assume_same_cpu or not mega.holds_cpu_code(artifact)]
    if accepted and not yes:
        agree(f"{file} is not signed: its code runs as you, with all your rights. Store it? [y/N] ")
    stored = ArtifactStore(DirectoryStore(settings.dir))
    refs = []
    for artifact in accepted:
        refs.append(stored.put(current.digest, artifact))
        if artifact.type == "inductor" and mega.holds_cpu_code(artifact):
            stored.put(current.digest, Artifact(BUNDLED, artifact.key, artifact.digest.encode()))
    if refs:
        stored.save_manifest(Manifest(current, "", tuple(refs)))
    left, refused = len(sound) - len(accepted), len(artifacts) - len(sound)
    lines = [f"{file}: {counted(len(accepted), 'artifact')} stored for this machine"]
    if left:
        lines.append(
            f"{counted(left, 'artifact')} left alone: CPU code, and a bundle does not tell for which CPU. "
            "If it was made on this one, or one just like it: --assume-same-cpu"
        )
    if refused:
        lines.append(
            f"{counted(refused, 'artifact')} refused: torch makes none of that type, or with such a key"
        )
    return Shown(lines, {"stored": len(accepted), "left": left, "refused": refused}, ok=bool(accepted))


# --- signers -----------------------------------------------------------------------------------------


def signers(settings: Settings) -> Shown:
    """Show the user's own key, which the first call creates, and the trusted signers."""
    keyring = Keyring(settings.trust_dir)
    own, trusted = keyring.fingerprint(), keyring.trusted_signers()
    rows = [(spelled(own), "yours: tell others this fingerprint")]
    rows += [(spelled(signer.fingerprint), f"trusted: {signer.name or NOTHING}") for signer in trusted]
    data = {"own": own, "trusted": [_signer_json(signer) for signer in trusted]}
    return Shown([*aligned(rows, right=()), f"policy: {settings.trust.value}"], data)


def trust(action: str, signer: str | None, name: str, settings: Settings) -> Shown:
    """Show, add or remove signers; `signer` is a fingerprint. `add` also takes the source of a snapshot."""
    if action == "list":
        return signers(settings)
    if not signer:
        raise errors.ConfigError(
            f"nbcache trust {action} needs a signer",
            next_step="give a fingerprint, as `nbcache trust list` and `nbcache inspect FILE` show them",
        )
    keyring = Keyring(settings.trust_dir)
    if action == "add":
        # A valid fingerprint is never read as a path, even if a file has this name.
        is_place = "://" in signer or "#" in signer or Path(signer).is_file()
        if is_place and not is_fingerprint(signer):
            signer = _signer_of(signer, settings)
        entry = keyring.add(signer, name)
        line = f"trusted from now on: {spelled(entry.fingerprint)}"
    elif action == "remove":
        entry = keyring.remove(signer)
        line = (
            f"no longer trusted: {spelled(entry.fingerprint)}; kernels that start from now on use nothing "
            "that they compiled, whoever passed it on. Restart those that run"
        )
    else:
        entry = keyring.find(signer)
        since = time.strftime("%Y-%m-%d", time.gmtime(entry.added))
        line = f"{spelled(entry.fingerprint)}  trusted since {since}"
    return Shown([line + (f" ({entry.name})" if entry.name else "")], _signer_json(entry))


def _signer_of(source: str, settings: Settings) -> str:
    """Return the only other signer of the snapshots at `source`; SnapshotError if there is not just one."""
    judge = judge_of(settings)
    versions = received_from(source, settings)
    # Unsigned versions have no standing.
    signed = {version.signer: version for version in versions if version.standing is not None}
    foreign = [signer for signer, received in signed.items() if received.standing is not Standing.OWN]
    if len(foreign) == 1:
        return foreign[0]
    if not foreign:
        raise SnapshotError(
            "only you signed this", where=source, next_step="nbcache inspect shows the signer"
        )
    words = (
        display.signer_words(signer, judge, received.snapshot.user, received.snapshot.host)
        for signer, received in sorted(signed.items(), key=lambda pair: pair[1].standing is Standing.UNKNOWN)
    )
    raise SnapshotError(
        f"it has versions of several signers: {'; '.join(words)}",
        where=source,
        next_step=f"name one by the fingerprint. {display.COMPARE}",
    )


def _signer_json(signer: TrustedSigner) -> dict[str, Any]:
    return {**asdict(signer), "standing": Standing.TRUSTED.name.lower()}


# --- notebooks -----------------------------------------------------------------------------------


def attach(notebook: Path, snapshot: Path | None, settings: Settings) -> Shown:
    """Put a snapshot, by default the one beside the notebook, into a notebook that is not open."""
    source = snapshot or beside(notebook)
    keyring = Keyring(settings.trust_dir)
    data = read(source, max_bytes=MAX_SNAPSHOT_BYTES)
    receive(data, keyring, where=str(source))  # a damaged snapshot is not attached

    def change(opened: Any) -> int:
        attached = [part for part in in_notebook.attachments_of(opened) if is_snapshot(part, keyring)]
        merged = build.united([*attached, data], keyring)
        in_notebook.attach(opened, merged)
        return len(merged)

    length = _change(notebook, change)
    line = f"{notebook}: carries {source.name} now ({size(length)})"
    return Shown([line], {"notebook": str(notebook), "snapshot": str(source), "bytes": length})


def detach(notebook: Path, settings: Settings) -> Shown:
    """Take attached snapshots out of a notebook that is not open."""
    count = _change(notebook, in_notebook.detach)
    line = f"{notebook}: {counted(count, 'snapshot')} taken out"
    return Shown([line], {"notebook": str(notebook), "snapshots": count}, ok=count > 0)


def extract(notebook: Path, output: Path | None, settings: Settings) -> Shown:
    """Write the snapshot that a notebook carries into a file, by default the one beside the notebook."""
    snapshots, _ = in_notebook.snapshots_of(read(notebook, max_bytes=MAX_NOTEBOOK_BYTES))
    if not snapshots:
        raise SnapshotError(
            "this notebook carries no snapshot", where=str(notebook), next_step="nbcache attach puts one in"
        )
    keyring, target = Keyring(settings.trust_dir), output or beside(notebook)
    sound = [snapshot for snapshot in snapshots if is_snapshot(snapshot, keyring)]
    if not sound:
        receive(snapshots[0], keyring, where=str(notebook))  # raises the error that says what is wrong

    def change(content: bytes | None) -> bytes:
        if content is not None:
            receive(content, keyring, where=str(target))
        return build.united([*([] if content is None else [content]), *sound], keyring)

    update(target, change, max_bytes=MAX_SNAPSHOT_BYTES)
    length = target.stat().st_size
    return Shown([f"{target}: {size(length)}"], {"path": str(target), "bytes": length})


def warm(notebook: Path, portable: str | None, settings: Settings) -> Shown:
    """Run a notebook without a person, and write the snapshot beside it; `portable` is its CPU baseline."""
    if portable is not None:
        baseline_of(portable)  # raises for a wrong name, with which the kernel would compile for this CPU
        settings = settings.with_value("portable", portable, origin="--portable")
    target = beside(notebook)
    done = headless.run(notebook, settings.to_env(), snapshot=str(target.resolve()), say=say)
    lines = [f"{done.snapshot}".strip()] if done.error is None else []
    return _answer(done, lines, {"snapshot": str(target)}, ok=True)


def run(notebook: Path, require_hit: bool, settings: Settings) -> Shown:
    """Run a notebook without a person, and show its hits; with `require_hit`, any miss is a failure."""
    done = headless.run(notebook, settings.to_env(), say=say)
    missed = [graph for graph in done.graphs if graph["outcome"] != "hit"]
    lines = [f"{notebook}: {len(done.graphs) - len(missed)} of {counted(len(done.graphs), 'graph')} hit"]
    for graph in missed:
        cell = graph["cell"] and graph["cell"]["execution_count"]
        where = f"In[{cell}] " if cell is not None else ""
        lines.append(
            f"  {where}{graph['function']} {graph['compile_id']} {graph['direction']}: "
            f"{graph['outcome']}, {one_line(graph['reason'] or NOTHING)}"
        )
    lines += [f"  {line}" for line in missed_lines(done.missed_unchanged)]
    data = {"hits": len(done.graphs) - len(missed), "missed_unchanged": done.missed_unchanged}
    return _answer(done, lines, data, ok=not (require_hit and missed))


def _verify_traces(notebook: Path, settings: Settings) -> Shown:
    """Run a notebook without a person, and audit its traces; it fails unless one agrees and none differs."""
    audited = settings.with_value("trace", "audit", origin="--traces")
    done = headless.run(notebook, audited.to_env(), say=say)
    graphs = [graph for graph in done.graphs if graph["direction"] != "backward"]
    agree = sum(graph["trace"] == "agrees" for graph in graphs)
    differ = [graph for graph in graphs if graph["trace"] == "differs"]
    count = counted(agree + len(differ), "trace")
    lines = [f"{notebook}: {agree} of {count} agree with what torch traces now"]
    lines += [f"  {graph['function']} {graph['compile_id']}: {graph['reason']}" for graph in differ]
    if not agree and not differ and done.error is None:
        next_step = "run this again, as functions that can have one have it now"
        lines.append(f"  none was stored that fits. Next: {next_step}")
    data = {"agree": agree, "differ": len(differ)}
    return _answer(done, lines, data, ok=agree > 0 and not differ)


def _answer(done: headless.Run, lines: list[str], data: dict[str, Any], *, ok: bool) -> Shown:
    """Return the answer about a run: `lines`, the kernel's warnings, and the cell that failed."""
    lines += [f"  ! {one_line(notice, _LONGEST_NOTICE)}" for notice in done.notices]
    lines += [done.error] if done.error is not None else []
    data = {**data, "error": done.error, "graphs": done.graphs, "notices": done.notices}
    return Shown(lines, data, ok=ok and done.error is None)


def _change(notebook: Path, change: Callable[[Any], int]) -> int:
    """Apply `change` to a notebook that is not open; return its number. If that is 0, write nothing."""
    if (server := opened_by(notebook)) is not None:
        raise SnapshotError(
            f"this notebook is open, and saving it in Jupyter would overwrite the change ({server})",
            where=str(notebook),
            next_step="close it and shut its kernel down, or run `%nbcache snapshot notebook` in it",
        )
    if not notebook.exists():
        raise SnapshotError("there is no such notebook", where=str(notebook), next_step="check the path")
    numbers = []

    def rewrite(content: bytes | None) -> bytes:
        opened = in_notebook.decode_notebook(content or b"", str(notebook))
        numbers.append(change(opened))
        return in_notebook.encode_notebook(opened) if numbers[-1] or content is None else content

    update(notebook, rewrite, max_bytes=MAX_NOTEBOOK_BYTES)
    return numbers[-1]


# --- kernels -------------------------------------------------------------------------------------


def doctor(settings: Settings) -> Shown:
    checks = in_terminal(settings)
    sound = all(check.state is not CheckState.PROBLEM for check in checks)
    return replace(_as_text(render_checks(checks)), ok=sound)


def _as_text(rendered: Rendered) -> Shown:
    return Shown(rendered.text.splitlines(), rendered.data)


def kernel(action: str, user: bool, settings: Settings) -> Shown:
    """Install, show, start, stop or uninstall the Jupyter kernel that starts with torch imported."""
    match action:
        case "install":
            folder = kernel_spec.install(user=user)
            choose = "choose the kernel `Python 3 (nbcache)` in Jupyter"
            how = f"{choose}: from its second start on, it finds torch imported"
            return Shown([f"installed: {folder}", how], {"folder": str(folder)})
        case "uninstall":
            stopped, folder = _stop(), kernel_spec.uninstall()
            return Shown([f"removed: {folder}", *stopped.lines], {"folder": str(folder), **stopped.data})
        case "start":
            nursery = kernel_spec.start()
            return Shown([f"ready: nursery {nursery['process']}, for kernels with this environment"], nursery)
        case "stop":
            return _stop()
        case _:
            return _status()


def _stop() -> Shown:
    stopped, unknown = kernel_spec.stop()
    lines = [f"ended: {counted(len(stopped), 'nursery', 'nurseries')}"]
    lines += [f"not ended: {lock} names no nursery of yours" for lock in unknown]
    return Shown(lines, {"stopped": stopped})


def _status() -> Shown:
    folder, nurseries = kernel_spec.spec_folder(), kernel_spec.nurseries()
    lines = [f"kernel: {folder}" if folder else "kernel: not installed (nbcache kernel install)"]
    for nursery in nurseries:
        lines.append(
            f"nursery {nursery['process']}: {counted(nursery['kernels'], 'kernel')} forked, started "
            f"{ago(time.time() - nursery['since'])}, {size(nursery['bytes'])} ({nursery['python']})"
        )
    if not nurseries:
        lines.append("no nursery: the next kernel starts one, and the one after it is forked from it")
    if (last := ordinary()) is not None:
        lines.append(f"last kernel that was not forked: {ago(time.time() - last['time'])}, {last['why']}")
    return Shown(lines, {"folder": folder and str(folder), "nurseries": nurseries, "ordinary": last})


_COMMANDS: tuple[Callable[..., Shown], ...] = (
    *(attach, clear, config, detach, doctor, export_mega, extract, gc, import_mega, inspect, kernel, ls),
    *(merge, restore, rm, run, snapshot, stats, status, trust, verify, warm),
)
RUNS = {command.__name__.replace("_", "-"): command for command in _COMMANDS}
"""Name → command, which takes the settings, and the arguments of its usage line as keywords."""
