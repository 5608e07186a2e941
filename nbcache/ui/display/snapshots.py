"""Describe snapshots, as text and as JSON, without using anything of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nbcache.core.cpu_levels import LABEL
from nbcache.core.errors import TrustError, Unsigned, UntrustedSigner
from nbcache.core.key import Difference
from nbcache.core.model import Environment, GraphSummary, Manifest, Snapshot
from nbcache.core.text import DOT, NOTHING, aligned, counted, duration, one_line, size
from nbcache.sharing.provenance import Judge, authors
from nbcache.sharing.snapshots.build import Taken, makers
from nbcache.sharing.snapshots.named import Version
from nbcache.sharing.snapshots.verify import Received, is_vouched, packed_bytes
from nbcache.sharing.trust import admit, says, short, spelled
from nbcache.storage import compatibility
from nbcache.storage.compatibility import _LONGEST, baseline_for, fit_lines, fitting
from nbcache.storage.history import asked_for

_MOST_ENVIRONMENTS, _MOST_GRAPHS = 8, 40
_MOST_NAMED = 3
_TITLE = 40
"""Characters of a cell's first line that are shown."""


MEANS = "Code that a trusted signer compiled runs as you, with all your rights."
COMPARE = "Compare the fingerprint with what they tell you another way."
"""`MEANS` and `COMPARE` are part of each question whether to trust a signer."""


def contents_words(snapshot: Snapshot) -> str:
    """Return a snapshot's contents in short: graphs, seconds, artifacts, bytes."""
    graphs = _graphs(snapshot)
    parts = [counted(len(graphs), "graph"), f"{duration(_seconds(graphs))} of compiling"]
    parts.append(counted(len(snapshot.contents), "artifact"))
    return DOT.join([*parts, f"{size(_bytes(snapshot))} in {size(packed_bytes(snapshot))}"])


def written_words(name: str, written: Taken) -> str:
    """Return the contents of the new snapshot `name`, and remarks on missing or foreign parts."""
    summary = written.summary()
    parts = [f"{one_line(name)} holds {contents_words(written.draft.snapshot)}"]
    parts += [] if summary.changed else ["nothing was new"]
    parts += [f"{summary.missing} more are no longer stored"] if summary.missing else []
    if summary.left:
        beside = counted(summary.left, "version stands", "versions stand")
        parts.append(f"{beside} beside it, of others or damaged")
    return "; ".join(parts)


def snapshot_lines(
    received: Received,
    current: Environment | None = None,
    judge: Judge | None = None,
    titles: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Return a snapshot in words: its contents, signer and makers, and its differences from `current`.

    `judge` knows the user's names of signers, and whom the user trusts. `titles`: cell digest → title.
    """
    snapshot = received.snapshot
    lines = [f"{one_line(received.where)}: {contents_words(snapshot)}"]
    of = f" of {one_line(snapshot.notebook, _LONGEST)}" if snapshot.notebook else ""
    lines.append(f"  taken {_day(snapshot.created)}{of}, with {one_line(snapshot.made_by, _LONGEST)}")
    if received.standing is None:
        lines.append("  not signed")
    else:
        who = signer_words(received.signer, judge, snapshot.user, snapshot.host)
        lines.append(f"  signed by {who}")
    compiled = list(makers(snapshot).items())
    for fingerprint, maker in compiled[:_MOST_ENVIRONMENTS]:
        who = "not signed by anyone:"
        if fingerprint:
            who = f"compiled by {signer_words(fingerprint, judge, maker.user, maker.host)}:"
        lines.append(f"  {who} {counted(maker.artifacts, 'artifact')}")
    lines += _more(len(compiled) - _MOST_ENVIRONMENTS, "more signer")
    for manifest in snapshot.manifests[:_MOST_ENVIRONMENTS]:
        lines += ["", *_manifest_lines(manifest, current, titles)]
    return lines + _more(len(snapshot.manifests) - _MOST_ENVIRONMENTS, "more environment")


def arrival_line(
    received: Received, current: Environment | None, judge: Judge, cells: Collection[str] = ()
) -> str:
    """Return the result of `arrival` as one line."""
    summary, hindrances = arrival(received, current, judge, cells)
    return DOT.join([summary, *(f"{why} ({next_step})" for why, next_step in hindrances)])


def arrival(
    received: Received, current: Environment | None, judge: Judge, cells: Collection[str] = ()
) -> tuple[str, list[tuple[str, str]]]:
    """Return a summary of a received snapshot, and the obstacles to its use, each with its next step.

    `current` may lack components that only torch knows. `cells` are the digests of the notebook's cells. The
    summary counts their graphs, or all graphs if the snapshot has none of these cells.
    """
    snapshot = received.snapshot
    name = one_line(received.name, _LONGEST)
    try:
        admit(judge.policy, received.standing)
    except Unsigned as error:  # its metadata is unsigned, too: none of it is shown
        return f"{name}: a snapshot", [(f"not used: {error.what}", error.next_step or "nbcache inspect")]
    except TrustError:
        pass
    manifest, differing = _nearest(snapshot.manifests, current)
    graphs: Sequence[GraphSummary] = ()
    if manifest is not None:
        graphs = (asked_for(manifest, cells, ()).graphs if cells else ()) or manifest.graphs
    parts = [f"{name}: {counted(len(graphs), 'graph')}{_whose(received, judge)}"]
    parts += [_for_any(manifest)] if manifest is not None else []
    parts += [_day(snapshot.created), f"saves about {duration(_seconds(graphs))}"]
    hindrances = []
    if differing:
        hindrances.append((f"not all fits here: {_differing(differing)} differ", "nbcache inspect"))
    try:
        admit(judge.policy, received.standing, received.signer)
    except UntrustedSigner:
        why = f"not used yet: {short(received.signer)}, who signed it, is not trusted here"
        hindrances.append((why, "%nbcache trust"))
    except TrustError as error:
        hindrances.append((f"not used: {error.what}", error.next_step or "nbcache inspect"))
    else:
        hindrances += left_out(received, judge)
        if current is not None and (baseline := baseline_for(snapshot.manifests, current)) is not None:
            next_step = f"%nbcache config portable={one_line(baseline, _LONGEST)}"
            hindrances.append(("this kernel compiles for this CPU only", next_step))
    return DOT.join(filter(None, parts)), hindrances


def fit_words(manifests: Sequence[Manifest], current: Environment | None) -> str:
    """Return whether the manifests fit `current`, and the differences if not; empty without `current`."""
    if current is None or not manifests:
        return ""
    manifest, differing = _nearest(manifests, current)
    if differing:
        fit = "fits in part" if fitting(manifests, current) else "does not fit here"
        return f"{fit}: {_differing(differing)} differ"
    baseline = None if manifest is None else baseline_for([manifest], current)
    once = f" once this kernel compiles for any {one_line(baseline, _LONGEST)} CPU" if baseline else ""
    return f"fits here{once}"


def left_out(received: Received, judge: Judge) -> list[tuple[str, str]]:
    """Return the unusable parts of a trusted signer's snapshot, one for each maker, with the next step."""
    omitted = []
    for fingerprint, maker in makers(received.snapshot).items():
        count = counted(maker.artifacts, "artifact")
        try:
            admit(judge.policy, judge.standing(fingerprint) if fingerprint else None, fingerprint)
        except UntrustedSigner:
            why = f"{count} not used yet: {short(fingerprint)}, who compiled that, is not trusted here"
            omitted.append((why, "%nbcache trust"))
        except TrustError:
            why = f"{count} not used: nobody has signed them"
            omitted.append((why, "nbcache inspect"))
    if (more := len(omitted) - _MOST_NAMED) > 0:
        omitted[_MOST_NAMED:] = [(f"and of {counted(more, 'more signer')}", "nbcache inspect")]
    return omitted


def _whose(received: Received, judge: Judge) -> str:
    """Return the makers and the signer of a received snapshot; of a stranger's snapshot, only the signer."""
    snapshot = received.snapshot
    if not is_vouched(received.standing):
        by = says(snapshot.user, snapshot.host)
        return f" of a stranger ({by})" if by else " of a stranger"
    compiled = makers(snapshot)
    taken_by = judge.introduce(received.signer, snapshot.user, snapshot.host)
    if compiled.keys() <= {received.signer}:
        return f" of {taken_by}"
    names = [
        judge.introduce(fingerprint, maker.user, maker.host) if fingerprint else "nobody known"
        for fingerprint, maker in compiled.items()
    ]
    more = f" and {counted(len(names) - _MOST_NAMED, 'other')}" if len(names) > _MOST_NAMED else ""
    return f" of {', '.join(dict.fromkeys(names[:_MOST_NAMED]))}{more}, taken by {taken_by}"


def signer_words(fingerprint: str, judge: Judge | None, user: str = "", host: str = "") -> str:
    """Return a signer's fingerprint, standing or name given by the user, and stated user and host."""
    name, standing = "", ""
    if judge is not None:
        name, standing = judge.name(fingerprint), judge.standing(fingerprint).value
    parts = [spelled(fingerprint), f"trusted: {name}" if name else standing, says(user, host)]
    return ", ".join(filter(None, parts))


def _nearest(
    manifests: Sequence[Manifest], current: Environment | None
) -> tuple[Manifest | None, list[Difference]]:
    """Return the manifest whose environment is nearest to `current`, and their differences."""
    if current is None or not manifests:
        return next(iter(manifests), None), []
    pairs = [(manifest, compatibility.foreseen_differences(manifest, current)) for manifest in manifests]

    def distance(pair: tuple[Manifest, list[Difference]]) -> tuple[int, list[str], str]:
        manifest, differing = pair
        return len(differing), [part.label for part in differing], _for_any(manifest)

    return min(pairs, key=distance)


def _differing(differences: Sequence[Difference]) -> str:
    """Return the labels of the first differing components; for the device, also both values."""
    names = []
    for part in differences[:4]:
        there, local = compatibility._value(part.old), compatibility._value(part.new)
        values = f" ({there} there, {local} here)" if part.label == "device" else ""
        names.append(f"{one_line(part.label)}{values}")
    return ", ".join(names)


def snapshot_json(
    received: Received, current: Environment | None = None, judge: Judge | None = None
) -> dict[str, Any]:
    """Return a snapshot's description as JSON values; docs/json.md documents the fields."""
    snapshot, standing = received.snapshot, received.standing
    return {
        "source": received.where,
        **{name: getattr(snapshot, name) for name in ("notebook", "created", "made_by", "user", "host")},
        "signer": received.signer or None,
        "standing": None if standing is None else standing.name.lower(),
        "makers": [
            {
                "signer": fingerprint or None,
                "standing": judge.standing(fingerprint).name.lower() if judge and fingerprint else None,
                **{name: getattr(maker, name) for name in ("user", "host", "artifacts")},
            }
            for fingerprint, maker in makers(snapshot).items()
        ],
        "bytes": _bytes(snapshot),
        "packed_bytes": packed_bytes(snapshot),
        "manifests": [_manifest_json(manifest, snapshot, current) for manifest in snapshot.manifests],
    }


def _manifest_json(manifest: Manifest, snapshot: Snapshot, current: Environment | None) -> dict[str, Any]:
    parts = None if current is None else compatibility.differences(manifest, current)
    return {
        "environment": manifest.environment.values,
        "differences": parts
        and [{"component": part.label, "there": part.old, "here": part.new} for part in parts],
        "graphs": [graph.to_json() for graph in manifest.graphs],
        "artifacts": [
            {
                **{name: getattr(ref, name) for name in ("type", "key", "digest")},
                "bytes": ref.size,
                "packed_bytes": snapshot.contents[ref.digest].packed_size,
                "cell": ref.cell,
                "function": ref.function,
                "maker": maker or None,
            }
            for ref, (maker, _) in zip(manifest.artifacts, authors(manifest.artifacts), strict=True)
        ],
    }


def version_lines(versions: Iterable[Version], judge: Judge) -> list[str]:
    """Return a store's named snapshots as a table, one row a version, followed by their problems."""
    rows = [["name", "graphs", "artifacts", "bytes", "saves", "signer", "", "states", "taken"]]
    problems: list[str] = []
    for version in versions:
        name = one_line(version.name or version.key)
        if (received := version.received) is None:
            rows.append([name, *[NOTHING] * 5, "cannot be used", *[NOTHING] * 2])
            problems += version.problem.diagnostics() if version.problem is not None else []
            continue
        values, snapshot, signer = version_json(version), received.snapshot, received.signer
        trusted = judge.name(signer) if received.standing else ""
        standing = received.standing.value if received.standing else "not signed"
        row = [name, str(values["graphs"]), str(values["artifacts"]), size(values["packed_bytes"])]
        row += [duration(values["seconds"]), short(signer) if signer else NOTHING]
        row.append(f"trusted: {trusted}" if trusted else standing)
        rows.append([*row, says(snapshot.user, snapshot.host) or NOTHING, _day(snapshot.created)])
    return [*aligned(rows, right=(1, 2, 3, 4)), *problems]


def version_json(version: Version) -> dict[str, Any]:
    received = version.received
    snapshot = received.snapshot if received else None
    graphs = _graphs(snapshot) if snapshot else []
    return {
        "name": version.name or None,
        "version": version.key.rpartition("/")[2],
        "problem": version.problem and str(version.problem),
        "graphs": len(graphs),
        "seconds": float(_seconds(graphs)),
        "artifacts": len(snapshot.contents) if snapshot else 0,
        "packed_bytes": packed_bytes(snapshot) if snapshot else 0,
        "signer": (received.signer or None) if received else None,
        "standing": received.standing.name.lower() if received and received.standing else None,
        **{name: getattr(snapshot, name, None) for name in ("notebook", "user", "host", "created")},
    }


def _manifest_lines(manifest: Manifest, current: Environment | None, titles: Mapping[str, str]) -> list[str]:
    values = manifest.environment.values
    shown = [
        f"torch {values.get('torch.version', '?')}",
        values.get("device", "?"),
        _for_any(manifest) or values.get("cpu.capability", "?"),
        values.get("python.abi", "?"),
    ]
    lines = ["  " + DOT.join(one_line(value, _LONGEST) for value in shown)]
    if current is not None:
        lines += ["    " + line for line in fit_lines(compatibility.differences(manifest, current))]
    rows = [("function", "direction", "cell", "when taken", "compiling", "artifacts")]
    sizes = {ref.digest: ref.size for ref in manifest.artifacts}
    for graph in manifest.graphs[:_MOST_GRAPHS]:
        rows.append(
            (
                one_line(graph.function, _LONGEST) or NOTHING,
                graph.direction.value,
                one_line(titles.get(graph.cell, graph.cell), _TITLE) or NOTHING,
                graph.outcome.value,
                duration(graph.seconds),
                f"{len(graph.artifacts)}, {size(sum(sizes[digest] for digest in graph.artifacts))}",
            )
        )
    if manifest.graphs:
        lines += ["    " + line for line in aligned(rows, right=(4,))]
    return lines + _more(len(manifest.graphs) - _MOST_GRAPHS, "more graph")


def _more(count: int, noun: str) -> list[str]:
    """Return a line with the number of rows that are left out; no line if that is 0."""
    return [f"  and {counted(count, noun)} (--json has all)"] if count > 0 else []


def _for_any(manifest: Manifest) -> str:
    """Return the CPU baseline that a manifest was compiled for; empty if it was compiled for one CPU only."""
    baseline = manifest.environment.values.get(LABEL)
    return f"for any {one_line(baseline, _LONGEST)} CPU" if baseline is not None else ""


def _graphs(snapshot: Snapshot) -> list[GraphSummary]:
    return [graph for manifest in snapshot.manifests for graph in manifest.graphs]


def _bytes(snapshot: Snapshot) -> int:
    return sum(content.size for content in snapshot.contents.values())


def _seconds(graphs: Iterable[GraphSummary]) -> float:
    return sum(graph.seconds for graph in graphs)


def _day(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):  # a year that no calendar has
        return "at no time that there is"
