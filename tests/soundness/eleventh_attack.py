"""Programs of the eleventh attack, by somebody who looked for what Python or C reads deep within objects."""

from __future__ import annotations

from soundness.subjects import Subject, edit, subject

__all__ = ["ELEVENTH"]

_HOLDS = """
import abc, codecs, enum, operator, tempfile, typing
@typing.runtime_checkable
class Holds(typing.Protocol):
    kayy: int
class A(abc.ABC): pass
class A1(A): pass
class B: pass
cfg = types.SimpleNamespace(i=A1())
cfg.kayy = 2
"""
_DATA = """
import dataclasses, typing
@dataclasses.dataclass(frozen=True)
class Inner: p: float
@dataclasses.dataclass(frozen=True)
class Outer: inner: Inner
a, b = Outer(Inner(2.0)), Outer(Inner(2.0))
"""
_NAMESPACES = """
N = types.SimpleNamespace
torch._dynamo.allow_c_slot(N)
a, b = N(m=N(k=2.0)), N(m=N(k=2.0))
"""


def asks(before: str, made: str, condition: str) -> str:
    return f"""{before}{made}
def f(x): return x * 2 if {condition} else x * 3
results = infer(f, X)
"""


def wrapping(made: str, condition: str = "isinstance(part, Holds)") -> Subject:
    """Return a program that asks what hands on what it wraps, and edits after which that lacks something."""
    gone = [edit("cfg.kayy = 2", "cfg.jayy = 2"), edit("cfg.kayy = 2", "cfg.kayy = None")]
    return subject(asks(_HOLDS, made, condition), [*gone, edit("i=A1()", "i=B()")])


def lacking(made: str) -> Subject:
    """Return a program that asks for what is not there, and an edit after which it is."""
    return subject(
        asks(_HOLDS.replace("cfg.kayy = 2", "cfg.jayy = 2"), made, "isinstance(part, Holds)"),
        [edit("cfg.jayy = 2", "cfg.kayy = 2"), edit("jayy", "encoding"), edit("jayy", "mode")],
    )


def compared(before: str, made: str, condition: str) -> Subject:
    """Return a program that compares or prints what has something deep within, and an edit of that."""
    return subject(
        asks(before, made, condition), [edit("a, b = Outer(Inner(2.0))", "a, b = Outer(Inner(3.0))")]
    )


def equal(made: str, condition: str) -> Subject:
    return subject(asks(_NAMESPACES, made, condition), [edit("a, b = N(m=N(k=2.0))", "a, b = N(m=N(k=3.0))")])


_ATTRIBUTES = {
    "an attribute of classes": 'types.DynamicClassAttribute(operator.attrgetter("cfg.kayy"))',
    "a property of enumerations": 'enum.property(operator.attrgetter("cfg.kayy"))',
    "a cached property": 'functools.cached_property(operator.attrgetter("cfg.kayy"))',
    "a property of the library": "property(tempfile.SpooledTemporaryFile.mode.fget)",
}
_WRAPPERS = {
    "a reader": "codecs.StreamReader(cfg)",
    "a writer": "codecs.StreamWriter(cfg)",
    "both": "codecs.StreamReaderWriter(cfg, codecs.StreamReader, codecs.StreamWriter)",
    "a temporary file": "tempfile._TemporaryFileWrapper(cfg, 'n', delete=False)",
}
_UNIONS = {
    "is equal": "ga == gb",
    "differs": "not ga != gb",
    "in a list": "ga in [gb]",
    "a key": "ga in {gb: 1}",
    "a text": "'2.0' in str(ga)",
    "its repr": "'2.0' in repr(ga)",
    "formatted": "'2.0' in f'{ga}'",
    "by percent": "'2.0' in '%s' % ga",
}
ELEVENTH = {
    **{f"{name} wraps": wrapping(f"part = {made}") for name, made in _WRAPPERS.items()},
    **{f"{name} lacks": lacking(f"part = {made}") for name, made in _WRAPPERS.items()},
    "a wrapper held by a module": wrapping(
        "part = torch.nn.Module(); part.file = codecs.StreamWriter(cfg)", "isinstance(part.file, Holds)"
    ),
    "a wrapper that is matched": wrapping(
        "part = codecs.StreamWriter(cfg)\n"
        "def fits(each):\n"
        "    match each:\n"
        "        case Holds(): return True\n",
        "fits(part)",
    ),
    **{
        f"{name} {what}": make(f"class C: kayy = {made}\npart = C(); part.cfg = part._file = cfg")
        for name, made in _ATTRIBUTES.items()
        for what, make in (("finds", wrapping), ("lacks", lacking))
    },
    "a class by an attribute of classes": wrapping(
        'class C: __class__ = types.DynamicClassAttribute(operator.attrgetter("cfg.i.__class__"))\n'
        "part = C(); part.cfg = cfg",
        "isinstance(part, A)",
    ),
    "a borrowed method": lacking(
        "class C: __getattr__ = codecs.StreamReader.__getattr__\npart = C(); part.stream = cfg"
    ),
    **{
        f"a union {name}": compared(_DATA, "ga, gb = int | list[a], int | list[b]", condition)
        for name, condition in _UNIONS.items()
    },
    "unions of classes": compared(
        _DATA, "class P: g = int | list[a]\nclass Q: g = int | list[b]", "P.g == Q.g"
    ),
    "a union of an instance": compared(
        _DATA, "p = types.SimpleNamespace(g=None | dict[str, (a,)])", "p.g == (None | dict[str, (b,)])"
    ),
    "an alias that may be compared": compared(
        _DATA,
        "torch._dynamo.allow_c_slot(types.GenericAlias)\nga, gb = list[a], list[b]",
        "ga == gb",
    ),
    "a proxy of data": compared(
        _DATA, "ga, gb = types.MappingProxyType({'k': a}), types.MappingProxyType({'k': b})", "ga == gb"
    ),
    "namespaces that may be compared": equal("", "a == b"),
    "namespaces in a list": equal("", "a in [b]"),
    "namespaces deeper": equal("a, b = N(n=a), N(n=b)", "a == b"),
}
