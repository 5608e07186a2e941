"""Compare environments, and select the artifacts of a manifest that fit an environment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from nbcache.core.cpu_levels import BASELINES, LABEL
from nbcache.core.key import Difference, diff
from nbcache.core.model import ArtifactRef, Environment, Manifest
from nbcache.core.text import NOTHING, aligned, counted, one_line
from nbcache.storage.manifests import restricted
from nbcache.storage.types import type_of

_FEATURES = "cpu.features"
_MOST_LABELS = 4


def differences(manifest: Manifest, current: Environment) -> list[Difference]:
    """Return the differences that matter: a manifest for a baseline fits each CPU with its features."""
    stored = manifest.environment.values
    differing = diff(manifest.environment.components, current.components)
    if (baseline := BASELINES.get(stored.get(LABEL, ""))) is None:
        return differing
    claimed, present = (set(values.get(_FEATURES, "").split()) for values in (stored, current.values))
    needed = claimed | baseline.features
    differing = [part for part in differing if part.label not in (LABEL, "cpu.capability", _FEATURES)]
    if lacking := needed - present:
        differing.append(Difference(_FEATURES, " ".join(sorted(lacking)), None))
    return differing


def foreseen_differences(manifest: Manifest, current: Environment) -> list[Difference]:
    """Return the differences in components that `current` has: before torch is imported, it has only some."""
    labels = {part.label for part in current.components}
    return [
        difference
        for difference in differences(manifest, current)
        if difference.label in labels
        and not (difference.label == "torch.version" and _same_release(difference))
    ]


def _same_release(version: Difference) -> bool:
    """Return whether the releases are equal and a version lacks its build (`+cu130`), as in most metadata."""
    old, new = version.old or "", version.new or ""
    return old.partition("+")[0] == new.partition("+")[0] and not ("+" in old and "+" in new)


def baseline_for(manifests: Sequence[Manifest], current: Environment) -> str | None:
    """Return the baseline that makes a kernel in `current` fit a manifest; None if it fits one or cannot."""
    fits = [manifest for manifest in manifests if not foreseen_differences(manifest, current)]
    names = [manifest.environment.values.get(LABEL) for manifest in fits]
    return None if current.values.get(LABEL) in names else next(filter(None, names), None)


def fitting(manifests: Iterable[Manifest], current: Environment) -> Manifest | None:
    """Return the part of one manifest that may be used in `current`, the largest of all; None without any.

    An artifact's type states its dependencies; code for a GPU does not depend on the CPU. A kernel that
    compiles for a baseline uses manifests for this baseline only, and other kernels use none of them.
    """
    baseline = current.values.get(LABEL)
    alike = [manifest for manifest in manifests if manifest.environment.values.get(LABEL) == baseline]
    parts = [_fitting(manifest, current) for manifest in alike]
    useful = [part for part in parts if any(type_of(ref.type).is_useful_alone for ref in part.artifacts)]
    return max(useful, key=lambda part: (part.environment == current, len(part.artifacts)), default=None)


def unfit_line(manifests: Sequence[Manifest], environment: Environment, cells: Collection[str]) -> str:
    """Return a line on graphs that do not fit `environment`: of `cells`, or of all cells if it is empty."""
    best = fitting(manifests, environment)
    fits = {graph.identity[:3] for graph in best.graphs} if best else set()
    labels: dict[str, None] = {}
    unfit = set()
    for manifest in manifests:
        graphs = {graph.identity[:3] for graph in manifest.graphs if not cells or graph.cell in cells}
        if graphs - fits:
            unfit |= graphs - fits
            labels |= dict.fromkeys(_value(part.label) for part in differences(manifest, environment))
    if not unfit:
        return ""
    named = ", ".join([*labels][:_MOST_LABELS])
    why = f"{named} differ{'s' * (len(labels) == 1)}" if labels else "this kernel compiles for this CPU only"
    whose = " of unchanged cells" if cells else ""
    return f"{counted(len(unfit), 'graph')}{whose} not restored: {why} (nbcache inspect)"


def scope(environment: Environment, type: str, *, cpu: bool = True) -> str:
    """Return the digest of the components on which this type depends: equal wherever artifacts can be shared.

    With a GPU, too, a graph may be for the CPU, and its key leaves that out. So all graphs depend on `cpu`.
    """
    parts = environment.components
    artifact_type = type_of(type)
    if (bound := artifact_type.bound_to) is not None:
        if artifact_type.is_graph or (artifact_type.is_timed and _has_no_gpu(environment)):
            bound = bound | {"cpu"}
        if not cpu:
            bound = bound - {"cpu"}
        parts = tuple(part for part in parts if part.label.partition(".")[0] in bound)
    return Environment(parts).digest


def may_be_for_cpu(type: str, environment: Environment) -> bool:
    return type_of(type).is_graph and not _has_no_gpu(environment)


def _has_no_gpu(environment: Environment) -> bool:
    return environment.values.get("device") == "cpu"


def _fitting(manifest: Manifest, current: Environment) -> Manifest:
    differing = {difference.label.partition(".")[0] for difference in differences(manifest, current)}
    if not differing:
        return manifest
    # A manifest does not say which graphs run a C++ kernel. So if it has one, all graphs may run it.
    timed_on_cpu = _has_no_gpu(manifest.environment)
    on_cpu = timed_on_cpu or any(ref.type == "cpp_kernel" for ref in manifest.artifacts)

    def fits(ref: ArtifactRef) -> bool:
        artifact_type = type_of(ref.type)
        if (bound := artifact_type.bound_to) is None:
            return False
        if (artifact_type.is_graph and on_cpu) or (artifact_type.is_timed and timed_on_cpu):
            bound = bound | {"cpu"}
        return not bound & differing

    return restricted(manifest, filter(fits, manifest.artifacts))


_REMEDIES = {
    "torch": "install that torch here, or take a snapshot with this one",
    "triton": "install that Triton here, or take a snapshot with this one",
    "python": "use that Python here, or take a snapshot with this one",
    "compiler": "it was made on another Linux: C++ kernels are compiled again",
    "cpu": "it was made for another CPU: take one here, or there with `nbcache warm --portable x86-64-v3`",
}
_MOST_DIFFERENCES = 40
_LONGEST = 60


def fit_lines(differing: list[Difference], baseline: str | None = None) -> list[str]:
    """Return a table of differences with remedies; `baseline` is the result of `baseline_for`."""
    if not differing and baseline is not None:
        return [f"fits once the kernel compiles for it: %nbcache config portable={_value(baseline)}"]
    if not differing:
        return ["fits this machine"]
    rows = [("differs", "there", "here", "what to do")]
    for part in differing[:_MOST_DIFFERENCES]:
        remedy = _REMEDIES.get(part.label.partition(".")[0], "take a snapshot here")
        remedy = _remedy_for_device(part) if part.label == "device" else remedy
        old, new = differing_values(part)
        rows.append((_value(part.label), _value(old), _value(new), remedy))
    lines = aligned(rows, right=())
    if (more := len(differing) - _MOST_DIFFERENCES) > 0:
        lines.append(f"and {counted(more, 'more difference')} (--json has all)")
    return lines


def _remedy_for_device(device: Difference) -> str:
    if device.new == "cpu":
        return "it was made for a GPU, and none is seen here (`nbcache doctor`): take a snapshot here"
    origin = "without a GPU" if device.old == "cpu" else "for another GPU"
    return f"it was made {origin}: take a snapshot here, or use it where the device is that"


def differing_values(part: Difference) -> tuple[str | None, str | None]:
    """Return a component's two values; for CPU features, only those that the other side lacks."""
    if part.label != "cpu.features" or part.old is None or part.new is None:
        return part.old, part.new
    old, new = set(part.old.split()), set(part.new.split())
    return " ".join(sorted(old - new)) or None, " ".join(sorted(new - old)) or None


def _value(value: str | None) -> str:
    return NOTHING if value is None else one_line(value, _LONGEST)
