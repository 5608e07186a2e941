"""torch with private parts that are missing, moved or failing, and nbcache's hooks on it: for test_parts.

All is done to the torch that is installed, in a process of its own. Where there is no Triton, those parts of
it that are hooked are made up: they are never run here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import json
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nbcache.core.patches import Intended
from nbcache.core.settings import Settings
from nbcache.kernel.session import Session
from nbcache.parts import PARTS, make_bridge
from nbcache.storage.backends.memory import MemoryStore
from nbcache.torch_bridge.bridge import TorchBridge
from nbcache.torch_bridge.hooks import Hook, Part

DRIVER = "triton.backends.nvidia.driver"
OF_FUNCTIONS = (classmethod, staticmethod)
OPTIONAL = {"put_winner", "_HEADER_DIR", "_HEADER_LOCK_DIR"}
"""Places that some releases lack, or that nobody misses where torch's default folder is safe."""


class Installed:
    """A session whose bridge is installed, and everything it has hooked."""

    def __init__(self) -> None:
        self.bridge = make_bridge()
        self.session = Session(Settings(prewarm=False), self.bridge, MemoryStore("local store"))

    def __enter__(self) -> Installed:
        self.session.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.session.close(10.0)

    @property
    def notices(self) -> list[str]:
        return self.session.notices


def import_all(*, compiling: bool) -> None:
    """Import every module that has something to be hooked; make up Triton, if need be, to be hooked."""
    with Installed() as here:
        waiting = here.bridge._imports.awaited
    import torch  # noqa: F401

    for name in waiting:
        if name != DRIVER:
            importlib.import_module(name)
    if importlib.util.find_spec("triton") is not None:
        importlib.import_module(DRIVER)
    elif not compiling:
        make_up_triton()


def make_up_triton() -> None:
    for name in (
        "",
        ".runtime",
        ".runtime.cache",
        ".backends",
        ".backends.nvidia",
        ".backends.nvidia.driver",
    ):
        module = types.ModuleType(f"triton{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module

    class FileCacheManager:
        def get_group(self, filename: str) -> None: ...

    def compile_module_from_file(src_path: str, name: str, **options: Any) -> None: ...

    FileCacheManager.__qualname__ = "FileCacheManager"
    sys.modules["triton.runtime.cache"].FileCacheManager = FileCacheManager  # type: ignore[attr-defined]
    driver: Any = sys.modules[DRIVER]
    driver.compile_module_from_file = compile_module_from_file


class Place:
    """An attribute of torch's that parts of the table replace."""

    def __init__(self, hook: Hook) -> None:
        self.owner, self.name = owner_of(hook.owner(), hook.path.rpartition(".")[2])
        self.guarded = hook.is_function
        self.found = vars(self.owner)[self.name]
        self.parts: set[str] = set()
        """Those parts, and those that need them."""
        self.is_temporary = True

    def add(self, part: Part) -> None:
        self.parts |= {part.name, *(other.name for other in PARTS if part.name in other.needs)}
        self.is_temporary &= part.is_temporary

    def __str__(self) -> str:
        return f"{getattr(self.owner, '__name__', self.owner)}.{self.name}"

    @property
    def function(self) -> Callable[..., Any]:
        return self.found.__func__ if isinstance(self.found, OF_FUNCTIONS) else self.found  # type: ignore[no-any-return]

    @contextmanager
    def missing(self) -> Iterator[None]:
        delattr(self.owner, self.name)
        try:
            yield
        finally:
            setattr(self.owner, self.name, self.found)

    @contextmanager
    def replaced(self, function: Callable[..., Any]) -> Iterator[None]:
        kind = type(self.found) if isinstance(self.found, OF_FUNCTIONS) else None
        setattr(self.owner, self.name, function if kind is None else kind(function))
        try:
            yield
        finally:
            setattr(self.owner, self.name, self.found)


def owner_of(owner: Any, name: str) -> tuple[Any, str]:
    """Return the class or module that has the attribute itself: perhaps others inherit it."""
    if isinstance(owner, type):
        owner = next(cls for cls in owner.__mro__ if name in vars(cls))
    return owner, name


def is_installed(hook: Hook) -> bool:
    """Return whether the package that has the attribute is there: installed, or made up."""
    package = hook.module.partition(".")[0]
    return package in sys.modules or importlib.util.find_spec(package) is not None


def places() -> list[Place]:
    """Return the places of the table in this torch; all that is replaced must be among them."""
    found: dict[tuple[int, str], Place] = {}
    for part in PARTS:
        for hook in part.places() if part.applies() else ():
            if not is_installed(hook) or (hook.is_optional and not hook.is_there()):
                continue
            place = Place(hook)
            if place.owner is type:  # what torch inherits from Python is there
                continue
            found.setdefault((id(place.owner), place.name), place).add(part)
    return list(found.values())


def is_of(owner: Any, of: Any) -> bool:
    """Return whether it is the owner of a place, or a class that inherits from it."""
    return owner is of or (isinstance(owner, type) and isinstance(of, type) and issubclass(owner, of))


def names_of(bridge: TorchBridge) -> set[str]:
    """Return the parts that are on."""
    return {*bridge.hooks.on} - {*bridge.hooks.lost}


def problems_of_losing(place: Place, everything: set[str]) -> list[str]:
    """Return what is wrong where parts have lost their place: they alone are off, each with one notice."""
    with Installed() as here:
        lost = everything - names_of(here.bridge)
        notices = here.notices
    if not lost and not notices:
        return []
    needy = {part.name for part in PARTS if lost & {*part.needs}}
    said = all(any(f"({part})" in each for each in notices) for part in lost - needy)
    right = lost <= place.parts and said and len(lost - needy) <= len(notices) <= len(lost)
    return [] if right else [f"{place}: {sorted(lost)} off, {notices}"]


def all_guarded() -> dict[str, Any]:
    """Return how many places there are, and functions among them that are replaced by no guarded hook."""
    with Installed() as here:
        awaited = {*here.bridge._imports.awaited}
        assert here.notices == [] and awaited <= {DRIVER}, (here.notices, awaited)
        listed = [patches for each in here.bridge.hooks.on.values() for patches in each]
        hooks = [name for patches in listed for _, name in patches.hooks]
    found = places()
    functions = {place.name for place in found if place.guarded and not place.is_temporary}
    return {"hooks": len(found), "unguarded": sorted(functions - {*hooks})}


def all_missing() -> list[str]:
    """Return what is wrong where one after another is missing."""
    problems: list[str] = []
    with Installed() as here:
        everything = names_of(here.bridge)
    for place in places():
        with place.missing():
            inherited = hasattr(place.owner, place.name)
            with Installed() as here:
                lost = everything - names_of(here.bridge)
            if lost != place.parts and not inherited and place.name not in OPTIONAL:
                problems.append(f"{place}: nobody misses it")
            problems += problems_of_losing(place, everything)
    return problems


def moved(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is called as before, and says that it takes something new in front."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    first = inspect.Parameter("something_new", inspect.Parameter.POSITIONAL_ONLY)
    called.__signature__ = inspect.Signature([first])  # type: ignore[attr-defined]
    return called


def all_moved() -> list[str]:
    """Return what is wrong where one after another takes other arguments."""
    problems: list[str] = []
    with Installed() as here:
        everything = names_of(here.bridge)
    for place in places():
        if place.guarded:
            with place.replaced(moved(place.function)):
                problems += problems_of_losing(place, everything)
    return problems


# --- whatever a hook gets ---------------------------------------------------------------------------


class Hostile:
    """Nothing can be done with it."""

    def _raise(self, *args: Any) -> Any:
        raise RuntimeError("hostile")

    __bool__ = __eq__ = __hash__ = __iter__ = __len__ = __str__ = __repr__ = __fspath__ = __getattr__ = _raise  # type: ignore[assignment]
    __getitem__ = __contains__ = __float__ = __int__ = __enter__ = _raise


class Answer:
    """What an original returns; called, as torch calls what loads a kernel, it is the kernel."""

    def __call__(self) -> Answer:
        return self


class Boom(Exception):
    """What an original raises."""


ARGUMENTS: list[tuple[list[Any], dict[str, Any]]] = [
    *(([Hostile() for _ in range(count)], {}) for count in range(12)),
    *(([object() for _ in range(count)], {}) for count in range(1, 9)),
    *(([None] * count, {}) for count in range(1, 9)),
    *((["text"] * count, {}) for count in range(1, 9)),
    *(([Hostile() for _ in range(count)], {"new_flag": Hostile()}) for count in range(9)),
    *(([object() for _ in range(count)], {"new_flag": object()}) for count in range(9)),
]


def same(found: list[Any], given: list[Any]) -> bool:
    return len(found) == len(given) and all(a is b for a, b in zip(found, given, strict=True))


def problems_of_calling(place: Place, args: list[Any], kwargs: dict[str, Any], raises: bool) -> list[str]:
    """Return what is wrong where a hook is called so: its caller must see what the original does."""
    answers, boom, calls = [Answer(), Answer()], Boom(), []
    iterates = inspect.isgeneratorfunction(place.function)

    def iterate() -> Iterator[Any]:
        yield answers[0]
        if raises:
            raise boom
        yield answers[1]

    @functools.wraps(place.function)
    def original(*args: Any, **kwargs: Any) -> Any:
        calls.append([*args, *kwargs.values()])
        if iterates:
            return iterate()
        if raises:
            raise boom
        return answers[0]

    where = f"{place} with {len(args)} {type(args[0]).__name__ if args else ''} {[*kwargs]}, raises={raises}"
    sys.modules["torch._inductor.codecache"].CppCodeCache.cache.clear()
    with place.replaced(original), Installed() as here:
        listed = [patches for each in here.bridge.hooks.on.values() for patches in each]
        hooks = [hook for patches in listed for hook in patches.hooks if hook[1] == place.name]
        owner = next(owner for owner, _ in hooks if is_of(owner, place.owner))
        hook = vars(owner)[place.name]
        before = [owner] if isinstance(hook, classmethod) else []
        hook = hook.__func__ if isinstance(hook, OF_FUNCTIONS) else hook
        got: list[Any] = []
        try:
            if iterates:
                got.extend(hook(*before, *args, **kwargs))
            else:
                got.append(hook(*before, *args, **kwargs))
        except Boom as error:
            got.append(error)
        except Intended:
            return []
        except Exception as error:
            return [f"{where}: {error!r}"]
        notices = here.notices
    if not calls and got == [None] and place.name in ("put_local_code_state", "put_winner"):
        return []  # there is nothing to store
    expected = [answers[0], boom if raises else answers[1]] if iterates else [boom if raises else answers[0]]
    if not iterates and not raises and got[0] is not answers[0] and callable(got[0]):
        got[0] = got[0]()
    wrong = []
    if not same(got, expected):
        wrong.append(f"{where}: {got}")
    # A hook may pass defaults of torch's on; a thread of torch's may call the original as well.
    given = [each for each in (*before, *args, *kwargs.values()) if each is not None]
    if not any(same([each for each in call if each is not None], given) for call in calls):
        wrong.append(f"{where}: the original got something else, {len(calls)} times")
    # What replaces headers asks for torch's default folder when it is hooked.
    most = len(place.parts) + (place.name == "default_cache_dir")
    if len([each for each in notices if "part of nbcache" in each]) > most:
        wrong.append(f"{where}: {notices}")
    return wrong


def all_called() -> list[str]:
    """Return what is wrong where hooks get arguments of any kind and number."""
    problems: list[str] = []
    for place in places():
        if place.guarded and not place.is_temporary:
            for args, kwargs in ARGUMENTS:
                for raises in (False, True):
                    problems += problems_of_calling(place, args, kwargs, raises)
    return problems


# --- a cell -----------------------------------------------------------------------------------------


def compiles(number: int) -> bool:
    """Compile a graph of its own; tell whether it computes what it should."""
    import torch

    def f(x: Any) -> Any:
        return (x * number).sin().sum()

    f.__code__ = f.__code__.replace(co_name=f"f_{number}")
    x = torch.linspace(0, 1, 7)
    torch._dynamo.reset()
    return bool(torch.allclose(torch.compile(f)(x), f(x)))


def all_compiled() -> list[str]:
    """Return what is wrong where code is compiled while one part after another has lost its place."""
    problems: list[str] = []
    for number, place in enumerate((each for each in places() if each.guarded), 2):
        with place.replaced(moved(place.function)), Installed() as here:
            right = compiles(number)
            notices, graphs = here.notices, len(here.session.graphs)
        if not right or len(notices) > len(place.parts):
            problems.append(f"{place}: right={right}, {notices}")
        if graphs != 1 and not place.parts & {"follow_spans", "follow_lookups"}:
            problems.append(f"{place}: {graphs} graphs")
    return problems


def fail(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("nothing works here")


def all_failing() -> list[str]:
    """Return what is wrong where code is compiled while something that hooks ask their session for fails."""
    methods = [
        name
        for name, value in vars(Session).items()
        if inspect.isfunction(value) and not name.startswith("_") and name not in ("notice", "start", "close")
    ]
    asked: set[str] = set()

    def followed(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            asked.add(name)
            return method(*args, **kwargs)

        return call

    with Installed() as here:
        for name in methods:
            setattr(here.session, name, followed(name, getattr(here.session, name)))
        assert compiles(100)
        for name in methods:
            delattr(here.session, name)
    problems = [] if len(asked) > 5 else [f"hooks ask for {asked} only"]
    for number, name in enumerate(sorted(asked), 101):
        with Installed() as here:
            setattr(here.session, name, fail)
            try:
                if not compiles(number):
                    problems.append(f"{name}: wrong")
            except Exception as error:
                problems.append(f"{name}: {error!r}")
            delattr(here.session, name)
    return problems


def main(what: str) -> None:
    import_all(compiling=what in ("all_compiled", "all_failing"))
    print(json.dumps(globals()[what]()))


if __name__ == "__main__":
    main(sys.argv[1])
