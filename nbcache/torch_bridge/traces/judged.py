"""Judges the code that Python, and not Dynamo, ran while Dynamo traced: what it has read has no guard."""

from __future__ import annotations

import functools
import os
import re
import sys
import types
from collections.abc import Iterable, Iterator

from nbcache.core.installed import module_of_stdlib
from nbcache.torch_bridge.traces.gate import is_users

__all__ = ["TORCHS", "Judged"]

_MADE = ("<eval_with_key", "<lambdify")
"""Where code is that torch makes."""
TORCHS = frozenset(
    {
        *("IPython", "comm", "filelock", "fsspec", "functorch", "ipykernel", "jinja2", "jupyter_client"),
        *("markupsafe", "mpmath", "networkx", "numpy", "optree", "psutil", "sympy", "tornado", "torch"),
        *("torchgen", "traitlets", "triton", "typing_extensions", "zmq"),
    }
)
"""Packages that torch and a kernel run of their own accord."""
_OF_STDLIB = frozenset(
    {
        *("_collections_abc", "abc", "copyreg", "enum", "functools", "inspect", "os", "pathlib", "re"),
        *("traceback", "typing", "uuid", "weakref"),
    }
)
"""Modules of Python's with methods that torch has Python run of its own accord, while it traces."""
_COMPARE = ("__eq__", "__ge__", "__gt__", "__hash__", "__le__", "__lt__", "__repr__")
"""Methods that `dataclass` makes, which read all that is within an object."""
_MAKE = frozenset(
    f"__{name}__"
    for name in (
        *("class_getitem", "del", "delattr", "delitem", "enter", "exit", "getnewargs", "init"),
        *("init_subclass", "missing", "new", "post_init", "prepare", "set_name", "setattr", "setitem"),
    )
)
"""Methods that tell nothing of what the objects within an object hold."""
_HAND_ON = ("__getattr__", "__getattribute__")
_DISTRIBUTED = os.path.join("torch", "distributed", "")


class Judged:
    """What of some code may have read what no fact tells."""

    def __init__(self, codes: Iterable[types.CodeType]) -> None:
        self.refused: set[types.CodeType] = set()
        """The user's, and what reads objects of the user's."""
        self.of_packages: dict[types.CodeType, str] = {}
        """Code of installed packages, with the name of its module; empty for none."""
        ours = os.path.dirname(os.path.abspath(str(sys.modules["nbcache"].__file__))) + os.sep
        modules = {
            str(object.__getattribute__(module, "__dict__").get("__file__")): name
            for name, module in [*sys.modules.items()]
            if issubclass(type(module), types.ModuleType)
        }
        made = {id(code) for code in _of_dataclasses()}
        for code in codes:
            package = _package_of(code.co_filename)
            if code.co_name == "__getattr__" and _DISTRIBUTED in code.co_filename:
                self.refused.add(code)  # of wrappers, which hand on what they wrap
            if package in TORCHS or code.co_filename.startswith((ours, *_MADE)):
                continue
            if package:
                self.of_packages[code] = modules.get(code.co_filename, "")
            elif id(code) in made or _is_users(code) or _tells_of_objects(code):
                self.refused.add(code)


@functools.cache
def _package_of(file: str) -> str:
    """Return the installed package that a file belongs to; empty for any other file."""
    found = re.search("/(?:dist|site)-packages/([^/.]+)", file)
    return found[1] if found else ""


def _is_users(code: types.CodeType) -> bool:
    """Tell whether code that Python ran is the user's, who may have made it of a text.

    Methods that `dataclass` and `namedtuple` make are not: see `_of_dataclasses`. Nor is a text that is run
    as a whole, since the code that runs it counts.
    """
    if code.co_filename != "<string>":
        return is_users(code)
    made = code.co_name == "<module>" or code.co_qualname.startswith("__create_fn__")
    return not (made or code in {*_of_namedtuples()})


def _tells_of_objects(code: types.CodeType) -> bool:
    """Tell whether code is a method of the standard library's that compares objects, or reads them.

    What is held by the objects within is no fact. Methods that torch calls of its own accord don't count.
    """
    name, module = code.co_name, module_of_stdlib(code.co_filename)
    if not module or not (name.startswith("__") and name.endswith("__")) or name in _MAKE:
        return False
    return module not in ("enum", "typing") if name in _HAND_ON else module not in _OF_STDLIB


def _of_dataclasses() -> Iterator[types.CodeType]:
    """Return the code that `dataclass` has made for classes of the user's to compare and to print objects."""
    classes: list[type] = [object]
    met: set[type] = set()
    known = {*TORCHS, *sys.stdlib_module_names, "nbcache"}
    while classes:
        new: set[type] = {*type.__subclasses__(classes.pop())} - met
        met |= new
        classes += new
    for cls in met:
        attributes = vars(cls)
        if "__dataclass_fields__" not in attributes:
            continue
        if str(attributes.get("__module__")).partition(".")[0] in known:
            continue
        for name in _COMPARE:
            method = attributes.get(name)
            if type(method) is types.FunctionType:
                method = vars(method).get("__wrapped__", method)  # of `__repr__`
            code = getattr(method, "__code__", None) if type(method) is types.FunctionType else None
            if code is not None and code.co_filename == "<string>":
                yield code


def _of_namedtuples() -> Iterator[types.CodeType]:
    """Return the code that `namedtuple` has made."""
    for cls in tuple.__subclasses__():
        new = getattr(vars(cls).get("__new__"), "__func__", None)
        if not isinstance(new, types.FunctionType):
            continue
        if str(new.__globals__.get("__name__")).startswith("namedtuple_"):
            yield new.__code__
