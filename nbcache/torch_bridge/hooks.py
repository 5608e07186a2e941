"""Define the parts of nbcache that hook torch, and install them; `nbcache.parts` lists them."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from nbcache.core.errors import UnsupportedTorch
from nbcache.core.patches import Patches, check_parameters
from nbcache.kernel.prewarming import Steps
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR

if TYPE_CHECKING:
    from nbcache.core.cpu_levels import Baseline
    from nbcache.kernel.session import Session

_PLACE = re.compile(r"(?:(?P<module>[\w.]+):)?(?P<path>[\w.]+)(?:\((?P<takes>.*)\))?(?P<optional>\?)?")
_MOVED = "differs from what nbcache knows"
_CALLED = "called it in an unknown way, or nbcache failed in it"


@dataclass(frozen=True, slots=True)
class Context:
    """The bridge's interface for parts."""

    session: Session
    serving: Callable[[], bool]
    """Return whether torch uses its caches, in a folder where nbcache may put restored artifacts."""
    owned: Callable[[], bool]
    """Return whether this user compiled all artifacts in torch's folder, in this environment."""
    baseline: Callable[[], Baseline | None]
    """Return the baseline for C++ kernels; None if they are compiled for this CPU."""
    is_lost: Callable[[str], bool] = lambda name: False
    """Return whether the part of this name is off: torch lacks an attribute for it, or it has failed."""
    disown: Callable[[], None] = lambda: None
    """From now on, treat artifacts in torch's folder as foreign."""
    why_disabled: Callable[[], str | None] = lambda: None
    """Return which setting keeps torch from looking graphs up; None without one."""
    settle: Callable[[], None] = lambda: None
    """Apply nbcache's torch settings to the thread that compiles."""


class Traces(Protocol):
    def off_because(self) -> str:
        """Return why this kernel cannot have traces, despite its setting; empty if it can."""

    def steps(self, run_sample: Callable[[], float | None]) -> Steps:
        """Yield the steps that run between cells."""


class Loss(Enum):
    """The features that are off if a part is off."""

    PART = "its own"
    PORTABLE = "its own, and `portable`"
    ENTRIES = "AOTAutograd's cache, and so traces; all, if it fails while torch calls it"
    ALL = "all: the kernel goes on as plain torch"


@dataclass(frozen=True, slots=True)
class Hook:
    """One attribute in torch that a part replaces.

    The table writes it as `module:Owner.name(parameters)`. Without parentheses the attribute is not a
    function. A final `…` allows more parameters, and `(…)` any. Some releases lack an attribute with a `?`.
    """

    module: str
    path: str
    takes: str | None
    is_function: bool
    is_optional: bool

    @classmethod
    def parse(cls, text: str, module: str) -> Hook:
        match = _PLACE.fullmatch(text)
        if match is None:
            raise ValueError(f"no hook: {text}")
        takes, is_optional = match["takes"], bool(match["optional"])
        names = None if takes is None or takes == "…" else takes.replace(",", "")
        return cls(match["module"] or module, match["path"], names, takes is not None, is_optional)

    def owner(self) -> Any:
        module = importlib.import_module(self.module)
        path = self.path.rpartition(".")[0]
        return attrgetter(path)(module) if path else module

    def is_there(self) -> bool:
        try:
            return hasattr(self.owner(), self.path.rpartition(".")[2])
        except AttributeError:
            return False

    def check(self) -> None:
        if self.is_there() or not self.is_optional:
            value = inspect.getattr_static(self.owner(), name := self.path.rpartition(".")[2])
            if self.is_function:
                check_parameters(getattr(value, "__func__", value), name, self.takes)


@dataclass(frozen=True, slots=True)
class Part:
    """A group of hooks, which are installed all or not at all."""

    install: Callable[..., None]
    """Called as `install(module, context, patches)`, with the owner first if `owner` names one."""
    modules: tuple[str, ...]
    """torch modules; the import of each installs the part there."""
    hooks: tuple[str, ...]
    """The attributes that it replaces, in the notation of `Hook`."""
    purpose: str
    without: str
    """The consequence if the part is off: a clause."""
    loss: Loss = Loss.PART
    because: str = ""
    """The reason why more than its own feature is lost."""
    owner: str = ""
    needs: tuple[str, ...] = ()
    """Other parts without which this one is off."""
    instead: str = ""
    """Another part that keeps the kernel sound if this one is off; if both are off, `Loss.ALL`."""
    flag: str = ""
    is_temporary: bool = False
    """True if the attributes are replaced only for a while; the installation only checks them."""

    @property
    def name(self) -> str:
        return self.install.__name__

    def places(self) -> list[Hook]:
        return [Hook.parse(text, self.modules[0]) for text in self.hooks]

    def applies(self) -> bool:
        return not self.flag or bool(getattr(TORCHBEHAVIOR, self.flag))


class Hooks:
    """Installs parts when torch's modules are imported, and records which parts are off."""

    def __init__(
        self,
        parts: Sequence[Part],
        owners: Mapping[str, Callable[[], Any]],
        on_loss: Callable[[Loss, UnsupportedTorch], object],
    ) -> None:
        """`owners` return the objects whose methods install parts, or None; `on_loss` gets each lost part."""
        self.parts = parts
        self._owners = owners
        self._on_loss = on_loss
        self._context: Context | None = None
        self._waiting: list[tuple[Part, ModuleType]] = []
        self.on: dict[str, list[Patches]] = {}
        """Name of a part → its patches; a part may be installed in several modules."""
        self.lost: dict[str, str] = {}
        """Name of a part that is off → the reason."""

    def actions(self, context: Context) -> dict[str, Callable[[ModuleType], None]]:
        self._context = context
        return dict.fromkeys((name for part in self.parts for name in part.modules), self.on_import)

    def on_import(self, module: ModuleType) -> None:
        for part in self.parts:
            if module.__name__ in part.modules:
                self._install(part, module)

    def install_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for part, module in waiting:
            self._install(part, module)

    def switch_off(self, owner: str) -> None:
        """Make the hooks of an owner's parts call only the original functions."""
        for part in self.parts:
            for patches in self.on.get(part.name, ()) if part.owner == owner else ():
                patches.off = True

    def restore(self) -> None:
        self._context = None
        for patches in reversed([*chain(*self.on.values())]):
            patches.restore()
        self.on.clear()
        self.lost.clear()
        self._waiting.clear()

    def _install(self, part: Part, module: ModuleType) -> None:
        owner = self._owners[part.owner]() if part.owner else None
        if part.owner and owner is None:  # torch imports this module during its own import
            self._waiting.append((part, module))
            return
        if self._context is None or not part.applies():
            return
        if lost := [name for name in part.needs if name in self.lost]:
            self.lost.setdefault(part.name, f"{lost[0]} is off")
            return
        install = partial(part.install, owner) if part.owner else part.install
        places = {place.path: place.takes for place in part.places()}
        patches = Patches(partial(self._lose, part, module, _CALLED), places)
        try:
            if part.is_temporary:
                for place in part.places():
                    place.check()
            install(module, self._context, patches)
        except Exception as error:  # after any error, the user's import must continue
            patches.restore()
            self._lose(part, module, _MOVED, error)
            return
        self.on.setdefault(part.name, []).append(patches)

    def _lose(self, part: Part, module: ModuleType, why: str, error: Exception) -> None:
        if part.name in self.lost:
            return
        self.lost[part.name] = repr(error)
        for other in self.parts:
            if part.name in other.needs:
                self.lost.setdefault(other.name, f"{part.name} is off")
                for patches in self.on.get(other.name, ()):
                    patches.off = True
        loss, without = part.loss, part.without
        # If the check of an entry has just failed, AOTAutograd may save the entry unchecked.
        unchecked = loss is Loss.ENTRIES and why is _CALLED
        if unchecked or any(other.name in self.lost and other.instead in self.lost for other in self.parts):
            loss, without = Loss.ALL, "nothing is stored or restored"
        version = getattr(sys.modules.get("torch"), "__version__", "?")
        where = f"{module.__name__} of torch {version} {why}"
        words = f"part of nbcache ({part.name}) is off, because {where}: {without}"
        self._on_loss(loss, UnsupportedTorch(words, where=repr(error)))
