"""Check all that nbcache needs, and change nothing; only in a terminal, create a missing local store."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from nbcache.core.cpu_levels import LABEL
from nbcache.core.errors import ConfigError, NbcacheError, StoreError
from nbcache.core.model import Environment
from nbcache.core.settings import Policy, Settings
from nbcache.core.text import DOT, counted, size
from nbcache.core.version import __version__
from nbcache.kernel.prewarming import Prewarming
from nbcache.kernel.session import Session
from nbcache.kernel.shared_client import SharedClient
from nbcache.kernel.snapshots import Sharing
from nbcache.launcher.forked import parent
from nbcache.launcher.protocol import ordinary
from nbcache.parts import PARTS
from nbcache.sharing.trust import Keyring, short
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.backends.open import open_shared
from nbcache.storage.compatibility import fitting
from nbcache.torch_bridge import environment, gpus, torch_behavior
from nbcache.torch_bridge.bridge import TorchBridge
from nbcache.torch_bridge.cache_folder import CacheFolder, refusal, usual_root
from nbcache.torch_bridge.cache_settings import switched_off
from nbcache.torch_bridge.hooks import Traces
from nbcache.torch_bridge.torch_behavior import MINIMUM, NEWEST, TORCHBEHAVIOR, spelled, torch_version
from nbcache.ui.display import words
from nbcache.ui.display.snapshots import arrival
from nbcache.ui.display.words import Check, CheckState, StoreFigures
from nbcache.ui.locate import Location

Checks: TypeAlias = Iterator[Check]
_Look: TypeAlias = tuple[str, Callable[[], Iterable[Check]]]
"""The name for checks without a name, and a function that returns the checks."""

_REPORT = "please report this line"
_MINIMUM, _NEWEST = spelled(MINIMUM), spelled(NEWEST)
_INSTALL = f"pip install 'torch>={_MINIMUM}', and restart the kernel"
_NOTABLE = ("sse4_2", "avx", "avx2", "fma", "avx512f", "amx_tile", "asimd", "sve", "sve2")
"""Instruction sets to show, out of a hundred: those in which CPUs differ."""
_LOOK_SECONDS = 0.5
"""The longest wait for the search for the notebook's snapshots."""
_LEAST_FREE = 10**9
"""Free bytes that each disk needs: each header that torch precompiles takes some 150 MB (2.13)."""


def in_kernel(
    session: Session,
    bridge: TorchBridge,
    sharing: Sharing,
    locate: Callable[[], Location],
    store_error: StoreError | None,
) -> list[Check]:
    """Check the needs of this kernel; `store_error` is why its store is in memory; None if it is not."""
    settings, current, lost = session.settings, session.environment, bridge.hooks.lost
    folder, chosen_by = bridge.folder.where()
    serves = current is None or bridge.folder.is_served()
    return _run_checks(
        ("kernel", _kernel),
        ("notebook", lambda: _notebook(locate())),
        ("torch", lambda: _torch(current, plain_because=bridge.plain_because)),
        ("hooks", lambda: _hooks(lost)),
        ("GPU", lambda: _gpu(current)),
        ("CPU", lambda: _cpu(current)),
        ("torch's caches", _caches),
        ("torch's folder", lambda: _torch_folder(folder, chosen_by, serves)),
        *_places(settings, folder),
        ("local store", lambda: _store(settings, session.artifacts.store, store_error)),
        ("snapshots", lambda: _snapshots(sharing, current)),
        ("shared store", lambda: _connection(settings, session.shared_client)),
        ("prewarming", lambda: _prewarming(settings, session.prewarm)),
        ("traces", lambda: _traces(settings, bridge.traces, lost)),
        ("notices", lambda: _notices(session.notices)),
    )


def in_terminal(settings: Settings) -> list[Check]:
    """Check the needs of kernels started from this terminal; imports torch, but not its compiler."""
    current: Environment | None = None
    failure: Exception | None = None
    try:
        current = environment.current()
    except Exception as error:  # absent, broken or too old
        failure = error
    folder, chosen_by = CacheFolder().where()
    return _run_checks(
        ("torch", lambda: _torch(current, failure)),
        *([] if failure else [("hooks", _tested_hooks)]),
        ("GPU", lambda: _gpu(current)),
        ("CPU", lambda: _cpu(current)),
        ("torch's caches", _caches),
        *([("torch's folder", lambda: _torch_folder(folder, chosen_by, True))] if folder else []),
        *_places(settings, folder),
        ("local store", lambda: _store(settings, DirectoryStore(settings.dir))),
        ("shared store", lambda: _reachable(settings)),
    )


def _places(settings: Settings, torch_folder: str) -> list[_Look]:
    folders = {"torch's folder": torch_folder, "the local store": str(settings.dir)}
    return [
        ("temp folder", _temp_folder),
        ("C++ compiler", _cpp_compiler),
        ("disk", lambda: _disks({name: folder for name, folder in folders.items() if folder})),
        ("trust", lambda: _policy(settings)),
        ("keys", lambda: _keys(Keyring(settings.trust_dir))),
    ]


def _run_checks(*looks: _Look) -> list[Check]:
    """Return nbcache's version and the checks of all looks; after a failing look, the others still run."""
    checks = [_ok(f"{__version__}, on Python {platform.python_version()}", "nbcache")]
    for name, look in looks:
        try:
            for check in look():  # one by one, to keep the checks before a failure
                checks.append(check if check.name else replace(check, name=name))
        except NbcacheError as error:
            checks.append(_problem(str(error), error.next_step or _REPORT, name))
        except Exception as error:
            checks.append(_problem(f"this could not be checked: {error!r}", _REPORT, name))
    return checks


def _ok(text: str, name: str = "") -> Check:
    return Check(name, CheckState.OK, text)


def _note(text: str, next_step: str, name: str = "") -> Check:
    return Check(name, CheckState.NOTE, text, next_step)


def _problem(text: str, next_step: str, name: str = "") -> Check:
    return Check(name, CheckState.PROBLEM, text, next_step)


# --- torch and the machine ----------------------------------------------------------------------


def _torch(current: Environment | None, failure: Exception | None = None, plain_because: str = "") -> Checks:
    """Check torch. `failure` is its import error, `plain_because` why nbcache leaves torch alone."""
    version = torch_version()
    if version is None:
        yield _problem("not installed: there is nothing that compiles", _INSTALL)
    elif not TORCHBEHAVIOR.is_supported:
        yield _problem(f"{version} is older than {_MINIMUM}: nbcache does nothing with it", _INSTALL)
    elif failure is not None:
        yield _problem(f"{version} is installed and fails: {failure!r}", "python -c 'import torch' says more")
    elif current is not None:
        yield _ok(f"{version}, imported")
    elif plain_because:
        off = f"{version}, and nbcache stores and restores nothing in this kernel: {plain_because}"
        yield _problem(off, "restart the kernel; if that does not help, please report this line")
    elif "torch" in sys.modules:
        text = f"{version}, imported, and nbcache could not find out what its code depends on"
        yield _problem(text, "a notice says why; please report it")
    else:
        yield _ok(f"{version}, installed and not imported yet")


def _hooks(lost: Mapping[str, str]) -> Checks:
    for part in PARTS:
        if why := lost.get(part.name):
            text = f"{part.name} is off ({why}): {part.without}"
            yield _note(text, f"install a torch from {_MINIMUM} to {_NEWEST}, or report this line", "hook")
    needed = [part.name for part in PARTS if part.applies()]
    fitting = sum(name not in lost for name in needed)
    yield _ok(f"{fitting} of {len(needed)} parts fit torch {torch_version()}")
    yield _behavior()


def _tested_hooks() -> Checks:
    """Check whether the hooks were tested with this torch; trying them would import torch's compiler."""
    installed = torch_behavior.release(torch_version() or "0.0")
    if installed > NEWEST:
        text = (
            f"torch {spelled(installed)} is newer than {_NEWEST}, the newest with which the hooks were tested"
        )
        yield _note(text, "%nbcache doctor, in a kernel that has compiled, says which parts are off")
    else:
        yield _ok(f"tested with torch {spelled(installed)}")
    yield _behavior()


def _behavior() -> Check:
    behaviors = [(name, answer) for name, _, _, answer in torch_behavior.answers() if answer is not None]
    text = DOT.join(f"{name} {'yes' if answer else 'no'}" for name, answer in behaviors)
    return _ok(text, "torch behavior")


def _cpu(current: Environment | None) -> Checks:
    values = environment.without_torch() if current is None else current.values
    instructions = set(values["cpu.features"].split())
    parts = [values["cpu.machine"], " ".join(name for name in _NOTABLE if name in instructions)]
    if "cpu.capability" in values:
        parts.append(f"torch uses {values['cpu.capability']}")
    if LABEL in values:
        parts.append(f"compiles for any {values[LABEL]} CPU")
    if values["cpu.requested"] != "default":
        parts.append(f"ATEN_CPU_CAPABILITY={values['cpu.requested']}")
    yield _ok(DOT.join(filter(None, parts)))
    yield _ok("known once torch is imported" if current is None else current.digest[:16], "environment")


def _gpu(current: Environment | None) -> Checks:
    values = environment.without_torch() if current is None else current.values
    device, triton = values["device"], values["triton.version"]  # graphs are compiled for this device
    cuda = values.get("torch.cuda")  # None before torch is imported
    devices = gpus.find()
    with_triton = "no Triton" if triton == "none" else f"Triton {triton}"
    on_cpu = "graphs compile for the CPU"
    counts = Counter(gpu.name for gpu in devices.gpus)
    cards = ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())
    if not devices.gpus:
        yield _ok(f"no NVIDIA GPU found, {with_triton}: {on_cpu}")
    elif cuda == "none":
        yield _note(f"{cards}, and torch is built without CUDA", "install torch's build for CUDA")
    elif devices.failure:
        remedy = "install what is missing; nvidia-smi says more; after an update of the driver, restart"
        yield _note(f"{cards}, and its driver cannot be asked: {devices.failure}", remedy)
    elif device == "cpu":
        hidden = f"CUDA_VISIBLE_DEVICES={gpus.variables().get('CUDA_VISIBLE_DEVICES', '')}"
        yield _ok(f"{cards}, hidden by {hidden}: {on_cpu}")
    elif triton == "none":
        without = f"{cards}, without Triton: nothing can be compiled for it"
        yield _note(without, "install torch's build for CUDA, which brings the Triton that fits")
    elif cuda and devices.cuda and devices.cuda[0] < torch_behavior.release(cuda)[0]:
        runs = f"whose driver {devices.driver} runs CUDA up to {devices.cuda[0]}.{devices.cuda[1]}"
        remedy = f"update the driver, or install torch's build for CUDA {devices.cuda[0]}"
        yield _note(f"{cards}, {runs}, and torch is built for {cuda}", remedy)
    else:
        driver, built = devices.driver and f"driver {devices.driver}", cuda and f"torch for CUDA {cuda}"
        yield _ok(DOT.join(filter(None, (cards, driver, built, with_triton))))
        name, path = gpus.c_compiler()  # at the first use of a GPU, Triton builds its launchers with it
        lost, use = "no new graph compiles for the GPU", ", for Triton"
        yield replace(_compiler(name, path, "CC", "gcc", lost, use), name="C compiler")


def _cpp_compiler() -> Checks:
    name, command = environment.compiler()
    path, lost = " ".join(command or ()), "no new graph compiles for the CPU; restored ones need none"
    yield _compiler(name, path or None, "CXX", "g++", lost)


def _compiler(name: str, path: str | None, variable: str, package: str, lost: str, use: str = "") -> Check:
    if path is None:
        remedy = f"install one (on Debian: apt install {package}), or set {variable} to one that is there"
        return _note(f"{name} is not there: {lost}", remedy)
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        remedy = "install them (on Debian: apt install python3-dev)"
        return _note(f"{path}, without Python's headers: {lost}", remedy)
    return _ok(f"{path}{use}")


def _caches() -> Checks:
    off = list(switched_off())
    for setting in off:
        state = CheckState.NOTE if setting.hits else CheckState.PROBLEM
        yield Check("torch's caches", state, f"{setting.setting}: {setting.means}", setting.remedy)
    if not off:
        yield _ok("on")


def _torch_folder(folder: str, chosen_by: str, serves: bool) -> Checks:
    if not serves:
        text = f"{folder or 'its usual one'}: nbcache only watches there, and restores nothing"
        yield _problem(text, "set TORCHINDUCTOR_CACHE_DIR to a folder of yours, and restart the kernel")
    elif not folder:
        yield _ok(chosen_by)
    else:
        remedy = "set TMPDIR, or TORCHINDUCTOR_CACHE_DIR, to another folder, and restart the kernel"
        yield _usable(folder, f"{folder} ({chosen_by})", remedy)


# --- places -------------------------------------------------------------------------------------


def _temp_folder() -> Checks:
    folder = tempfile.gettempdir()
    yield _usable(folder, folder, "set TMPDIR to another folder, and restart the kernel")
    if (error := refusal(usual_root())) is not None:
        yield _note(f"{error}: nbcache keeps torch's cache elsewhere", error.next_step or _REPORT)


def _usable(folder: str, text: str, remedy: str) -> Check:
    if any(character.isspace() for character in folder):
        return _problem(f"{text}: torch cannot compile where a name has a space", remedy)
    if why := _unwritable(Path(folder)):
        return _problem(f"{text}: {why}", remedy)
    return _ok(text)


def _unwritable(folder: Path) -> str:
    """Return why a folder cannot be written or created; empty if it can."""
    try:
        with tempfile.TemporaryFile(dir=_existing(folder), buffering=0) as file:
            file.write(b"nbcache")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _disks(folders: Mapping[str, str]) -> Checks:
    disks: dict[int, tuple[Path, list[str]]] = {}
    for name, folder in {"the temp folder": tempfile.gettempdir(), **folders}.items():
        there = _existing(Path(folder).absolute())
        disks.setdefault(there.stat().st_dev, (there, []))[1].append(name)
    for there, names in disks.values():
        free = shutil.disk_usage(there).free
        text = f"{size(free)} free for {', '.join(names)}"
        remedy = f"free {size(_LEAST_FREE)}, or choose folders on another disk"
        yield _problem(text, remedy) if free < _LEAST_FREE else _ok(text)


def store_figures(store: Store, max_bytes: int) -> StoreFigures:
    """Return a store's figures; StoreError if it fails. `max_bytes` is the local store's bound."""
    entries = sum(1 for _ in store.keys("artifact/"))
    if isinstance(store, DirectoryStore):
        return StoreFigures(store.name, entries, store.size("artifact/"), max_bytes)
    return StoreFigures(store.name, entries, 0)


def _store(settings: Settings, store: Store, error: StoreError | None = None) -> Checks:
    folder = store.path if isinstance(store, DirectoryStore) else None
    figures = words.store_parts(store_figures(store, settings.max_bytes))
    text = DOT.join([str(folder or store.name), *figures[1:]])
    if error is not None:
        text = f"{error}; the {store.name} serves instead, and the next one starts cold"
        yield _problem(text, error.next_step or _REPORT)
    elif store.read_only:
        text += ": it cannot be written to, so nbcache stores no new graph"
        yield _note(text, "set NBCACHE_DIR to a folder that you can write to, and restart the kernel")
    elif folder is not None and (why := _unwritable(folder)):
        remedy = "free disk space, or set NBCACHE_DIR to another folder, and restart the kernel"
        yield _problem(f"{text}: {why}", remedy)
    elif not settings.save:
        text += f": save=off ({settings.origin('save')}), so nbcache stores no new graph"
        yield _note(text, "%nbcache config save=on, or NBCACHE_SAVE=on")
    else:
        yield _ok(text)


# --- trust and sharing --------------------------------------------------------------------------


def _policy(settings: Settings) -> Checks:
    text = f"{settings.trust.value} ({settings.origin('trust')})"
    if settings.trust is Policy.STRICT:
        yield _ok(text)
    else:
        is_asked = settings.trust is Policy.ASK
        asks = "for each snapshot beside a notebook, nbcache asks whether you trust its signer"
        means = asks if is_asked else "anyone's snapshots run as you, with all your rights"
        yield _note(f"{text}: {means}", "%nbcache config trust=strict, or NBCACHE_TRUST=strict")


def _keys(keyring: Keyring) -> Checks:
    own, trusted = keyring.own(), keyring.trusted_signers()
    none = "you have none yet: the first snapshot makes one, or %nbcache trust"
    yours = none if own is None else f"yours is {short(own)}"
    yield _ok(f"{yours}{DOT}{counted(len(trusted), 'signer')} trusted")


def _snapshots(sharing: Sharing, current: Environment | None) -> Checks:
    if not sharing.wait_for_look(_LOOK_SECONDS):
        yield _note("those of this notebook are still being looked for", "ask again in a moment", "snapshot")
    problems, arrived = sharing.problems(), sharing.snapshots()
    for error in problems:
        yield _problem(str(error), error.next_step or "take it again, or remove it", "snapshot")
    for received in arrived:
        foreseen = current or environment.foreseen()
        text, hindrances = arrival(received, foreseen, sharing.judge, sharing.cells)
        if current is not None and fitting(received.snapshot.manifests, current) is None:
            hindrances.append(
                ("it has no graph for this environment", "%nbcache snapshot, once the cells have run")
            )
        if hindrances:
            why, next_steps = zip(*hindrances, strict=True)
            yield _note(DOT.join([text, *why]), "; ".join(next_steps), "snapshot")
        else:
            use = "used" if current else "used as soon as torch is imported"
            yield _ok(DOT.join([text, use]), "snapshot")
    if not problems and not arrived:
        yield _ok("this notebook has none")


def _connection(settings: Settings, shared_client: SharedClient | None) -> Checks:
    if shared_client is not None:
        figures, failure = shared_client.level.figures(), shared_client.level.failure
        text, remedy = DOT.join(words.shared_parts(figures)), failure and failure.next_step
        yield _problem(text, remedy or "check that it can be reached") if figures.off else _ok(text)
    elif settings.shared_url:
        yield _note("not connected, as a notice explains", "%nbcache connect")
    else:
        yield _ok("not connected to any: %nbcache connect URL")


def _reachable(settings: Settings) -> Checks:
    if not settings.shared_url:
        return
    try:
        with closing(open_shared(settings)) as store:
            store.present(["probe"])
            yield _ok(f"{store.name} answers ({settings.origin('shared_url')})")
    except (ConfigError, StoreError) as error:
        yield _problem(str(error), error.next_step or "check that it can be reached")


# --- the kernel ---------------------------------------------------------------------------------


def _kernel() -> Checks:
    last = ordinary()
    if nursery := parent():
        yield _ok(f"forked from the nursery {nursery}, with torch imported")
    elif last is not None and last["process"] == os.getpid():
        next_step = "restart the kernel: a nursery is started for the next one"
        yield _note(f"not forked from a nursery: {last['why']}", next_step)
    else:
        yield _ok("an ordinary one (`nbcache kernel install` adds one that has torch imported)")


def _notebook(location: Location) -> Checks:
    text = f"{location.path}, found by {location.found_by}"
    if not location.path:
        text = f"{location.found_by}, and nbcache looks for none of its snapshots"
        yield _note(text, "%nbcache config notebook=PATH")
    elif not os.path.isfile(location.path):
        yield _note(f"{text}, and there is no such file", "save it, or correct the path")
    else:
        yield _ok(text)


def _prewarming(settings: Settings, prewarming: Prewarming) -> Checks:
    begun = DOT.join(words.prewarming_parts(prewarming))
    if prewarming.state == "failed":
        text = "failed, as a notice explains: the first cells that compile take longer"
        yield _problem(text, "restart the kernel; if it stays so, report the notice")
    elif settings.prewarm:
        yield _ok(begun or "not begun: it is done while no cell runs, in a notebook's kernel")
    else:
        yield _ok(f"off ({settings.origin('prewarm')})")


def _traces(settings: Settings, traces: Traces | None, lost: Mapping[str, str]) -> Checks:
    why = lost.get("trace_frames", "") or ("" if traces is None else traces.off_because())
    if settings.trace == "off":
        yield _ok(f"off ({settings.origin('trace')})")
    else:
        yield _ok(f"off: {why}; functions are traced in each kernel" if why else settings.trace)


def _notices(notices: Sequence[str]) -> Checks:
    for notice in notices:
        yield _note(notice, "follow the notice; a fresh kernel shows whether it recurs", "notice")
    if not notices:
        yield _ok("none")
