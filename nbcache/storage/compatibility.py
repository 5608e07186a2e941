"""The environments that an artifact fits, and the differences between two environments."""

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


def differences(manifest: Manifest, here: Environment) -> list[Difference]:
    """Return what differs between two environments. A baseline fits each CPU that has its features."""
    there = manifest.environment.values
    found = diff(manifest.environment.components, here.components)
    if (baseline := BASELINES.get(there.get(LABEL, ""))) is None:
        return found
    claimed, has = (set(values.get(_FEATURES, "").split()) for values in (there, here.values))
    needed = claimed | baseline.features
    found = [each for each in found if each.label not in (LABEL, "cpu.capability", _FEATURES)]
    if lacking := needed - has:
        found.append(Difference(_FEATURES, " ".join(sorted(lacking)), None))
    return found


def foreseen_differences(manifest: Manifest, here: Environment) -> list[Difference]:
    """Return what differs of those components that `here` holds: some of them, before torch is imported."""
    labels = {part.label for part in here.components}
    return [
        difference
        for difference in differences(manifest, here)
        if difference.label in labels
        and not (difference.label == "torch.version" and _same_release(difference))
    ]


def _same_release(version: Difference) -> bool:
    """Return whether two versions differ only in that one names no build: wheels' metadata often do not."""
    there, here = version.old or "", version.new or ""
    return there.partition("+")[0] == here.partition("+")[0] and not ("+" in there and "+" in here)


def baseline_for(manifests: Sequence[Manifest], here: Environment) -> str | None:
    """Return the baseline that a kernel must compile for to use these; None where none is needed or helps."""
    fits = [manifest for manifest in manifests if not foreseen_differences(manifest, here)]
    names = [manifest.environment.values.get(LABEL) for manifest in fits]
    return None if here.values.get(LABEL) in names else next(filter(None, names), None)


def fitting(manifests: Iterable[Manifest], here: Environment) -> Manifest | None:
    """Return the part of a snapshot that may be used here: most of one environment's manifest, or None.

    An artifact's type says what it depends on; code for a GPU does not depend on the CPU. Only kernels that
    compile for a baseline find code for it.
    """
    baseline = here.values.get(LABEL)
    alike = [manifest for manifest in manifests if manifest.environment.values.get(LABEL) == baseline]
    parts = [_fitting(manifest, here) for manifest in alike]
    useful = [part for part in parts if any(type_of(ref.type).is_useful_alone for ref in part.artifacts)]
    return max(useful, key=lambda part: (part.environment == here, len(part.artifacts)), default=None)


def unfit_line(manifests: Sequence[Manifest], environment: Environment, cells: Collection[str]) -> str:
    """Return a line on the graphs of `cells`, or without cells of all, that do not fit here."""
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
    """Return a digest of what an artifact of this type depends on: the same where it can be shared.

    A graph beside a GPU may be for the CPU, which its key does not tell. So all graphs depend on the `cpu`.
    """
    parts = environment.components
    known = type_of(type)
    if (bound := known.bound_to) is not None:
        if known.is_graph or (known.is_timed and _has_no_gpu(environment)):
            bound = bound | {"cpu"}
        if not cpu:
            bound = bound - {"cpu"}
        parts = tuple(part for part in parts if part.label.partition(".")[0] in bound)
    return Environment(parts).digest


def may_be_for_cpu(type: str, environment: Environment) -> bool:
    return type_of(type).is_graph and not _has_no_gpu(environment)


def _has_no_gpu(environment: Environment) -> bool:
    return environment.values.get("device") == "cpu"


def _fitting(manifest: Manifest, here: Environment) -> Manifest:
    differing = {difference.label.partition(".")[0] for difference in differences(manifest, here)}
    if not differing:
        return manifest
    # Which graphs run a C++ kernel is not told, and one kernel may serve several: so all are taken for such.
    timed_on_cpu = _has_no_gpu(manifest.environment)
    on_cpu = timed_on_cpu or any(ref.type == "cpp_kernel" for ref in manifest.artifacts)

    def fits(ref: ArtifactRef) -> bool:
        known = type_of(ref.type)
        if (bound := known.bound_to) is None:
            return False
        if (known.is_graph and on_cpu) or (known.is_timed and timed_on_cpu):
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


def fit_lines(found: list[Difference], baseline: str | None = None) -> list[str]:
    """Return what differs between two environments, and what to do; `baseline` is `baseline_for` it."""
    if not found and baseline is not None:
        return [f"fits once the kernel compiles for it: %nbcache config portable={_value(baseline)}"]
    if not found:
        return ["fits this machine"]
    rows = [("differs", "there", "here", "what to do")]
    for each in found[:_MOST_DIFFERENCES]:
        remedy = _REMEDIES.get(each.label.partition(".")[0], "take a snapshot here")
        remedy = _remedy_for_device(each) if each.label == "device" else remedy
        there, here = telling(each)
        rows.append((_value(each.label), _value(there), _value(here), remedy))
    lines = aligned(rows, right=())
    if (more := len(found) - _MOST_DIFFERENCES) > 0:
        lines.append(f"and {counted(more, 'more difference')} (--json has all)")
    return lines


def _remedy_for_device(each: Difference) -> str:
    if each.new == "cpu":
        return "it was made for a GPU, and none is seen here (`nbcache doctor`): take a snapshot here"
    made = "without a GPU" if each.old == "cpu" else "for another GPU"
    return f"it was made {made}: take a snapshot here, or use it where the device is that"


def telling(each: Difference) -> tuple[str | None, str | None]:
    """Return the two values of a component; of two sets of CPU features the part that the other lacks."""
    if each.label != "cpu.features" or each.old is None or each.new is None:
        return each.old, each.new
    there, here = set(each.old.split()), set(each.new.split())
    return " ".join(sorted(there - here)) or None, " ".join(sorted(here - there)) or None


def _value(value: str | None) -> str:
    return NOTHING if value is None else one_line(value, _LONGEST)
