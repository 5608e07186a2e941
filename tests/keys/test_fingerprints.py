"""Fingerprints: what a value does is told apart, and what changes nothing is not."""

from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from nbcache.keys.fingerprints.digests import Fingerprint
from nbcache.keys.fingerprints.known_code import KnownPackages
from nbcache.keys.fingerprints.objects import Unknown

BASE = """
    import functools, math, threading
    from dataclasses import dataclass
    K = 2
    TABLE = {"a": 1, "b": [2, 3]}
    LOCK = threading.Lock()
    def helper(x, by=3):
        return x * by + K
    class Base:
        scale = 2
        def __init__(self):
            self.state = {1, 2}
        def apply(self, x):
            return helper(x) * self.scale
    class Derived(Base):
        @property
        def half(self): return 0.5
        @staticmethod
        def zero(): return 0
    @dataclass
    class Options:
        rate: float = 0.5
        def twice(self): return self.rate * 2
    OPTIONS = Options()
    NAMES = frozenset({"x", "y"})
    def outer(n):
        def inner(x):
            return x + n
        return inner
    closed = outer(4)
    half = functools.partial(helper, by=0.5)
    @functools.lru_cache
    def cached(x): return x - 1
    @functools.wraps(helper)
    def wrapped(x): return math.floor(helper(x))
    def target(x, y=1, *, z=2):
        '''What it does.'''
        # a comment
        with LOCK:
            total = helper(x) + y
        if total > z and "x" in NAMES:
            return Derived().apply(total) + OPTIONS.twice() + closed(half(cached(wrapped(x))))
        values = [item * TABLE["a"] for item in TABLE["b"]]
        return sum(values, start=math.pi)
"""

CHANGES = [
    ("K = 2", "K = 3"),
    ("K = 2", "K = 2.0"),
    ("K = 2", "K = True"),
    ('{"a": 1, "b": [2, 3]}', '{"a": 1, "b": [2, 4]}'),
    ('{"a": 1, "b": [2, 3]}', '{"a": 1, "b": (2, 3)}'),
    ("return x * by + K", "return x * by - K"),
    ("by=3", "by=4"),
    ("scale = 2", "scale = 3"),
    ("self.state = {1, 2}", "self.state = {1, 3}"),
    ("return helper(x) * self.scale", "return helper(x) + self.scale"),
    ("class Derived(Base):", "class Derived(Base, Options if False else object):"),
    ("return 0.5", "return 0.25"),
    ("def zero(): return 0", "def zero(): return 1"),
    ("@staticmethod", "@classmethod"),
    ("rate: float = 0.5", "rate: float = 0.7"),
    ("return self.rate * 2", "return self.rate * 3"),
    ("OPTIONS = Options()", "OPTIONS = Options(0.1)"),
    ('{"x", "y"}', '{"x", "z"}'),
    ("return x + n", "return x - n"),
    ("outer(4)", "outer(5)"),
    ("by=0.5)", "by=0.25)"),
    ("def cached(x): return x - 1", "def cached(x): return x - 2"),
    ("math.floor", "math.ceil"),
    ("y=1", "y=2"),
    ("*, z=2", "*, z=3"),
    ("*, z=2", "z=2"),
    ("helper(x) + y", "helper(x) - y"),
    ("total > z", "total >= z"),
    ("total > z and", "total > z or"),
    ('"x" in NAMES', '"x" not in NAMES'),
    ("math.pi", "math.e"),
    ("start=math.pi", "begin=math.pi"),
    ("def helper", "math = __import__('cmath')\n    def helper"),
    ("def helper", "sum = max\n    def helper"),
    ("class Derived(Base):", "class Child(Base): pass\n    class Derived(Child):"),
]

SAME = [
    ("# a comment", "# another"),
    ("'''What it does.'''", "'''What it really does.'''"),
    ("        '''What it does.'''\n", ""),
    ("total = helper(x) + y", "total = helper(x) + \\\n                y"),
    ("K = 2", "\n\n\n    K = 2"),
    ("K = 2", "UNUSED = 5; K = 2"),
    ("def helper(x, by=3):", "def helper(x: int, by: int = 3) -> int:"),
    ("rate: float", "rate: int"),
    ('frozenset({"x", "y"})', 'frozenset(["y", "x"])'),
]
RENAMED = [
    ("helper", "assistant"),
    ("total", "subtotal"),
    ("TABLE", "ROWS"),
    ("Derived", "Child"),
    ("K", "Q"),
]


HIDDEN = {
    "int": ("class Size(int): pass\nK = Size({})\ndef target(x): return x * K", "2", "3"),
    "str": ("class Name(str): pass\nK = Name({})\ndef target(x): return x[K]", "'a'", "'b'"),
    "generator": ("import random\nK = random.Random({})\ndef target(x): return K.random()",),
    "exception": ("K = ValueError({})\ndef target(x): return K.args",),
    "text": ("import io\nK = io.StringIO({})\ndef target(x): return K.read()", "'1'", "'2'"),
    "generic": ("K = list[{}]\ndef target(x): return K.__args__", "int", "str"),
    "private slot": (
        (
            "class S:\n  __slots__ = ('__k',)\n  def __init__(s, k): s.__k = k\n  def get(s): return s.__k\n"
            "K = S({})\ndef target(x): return K.get()"
        ),
    ),
    "name of a class": (
        (
            "class {}: pass\nMade = A if 'A' in globals() else B\n"
            "TABLE = {{'A': 1, 'B': 2}}\ndef target(x): return TABLE[Made.__name__]"
        ),
        *("A", "B"),
    ),
    "docstring": ("def h():\n  {}\ndef target(x): return len(h.__doc__)", "'one'", "'three'"),
    "docstrings of two": (
        "def f(): {}\ndef target(x): return f.__doc__, g.__doc__",
        *("'1\\n\\n2'\ndef g(): '3'", "'1'\ndef g(): '2\\n\\n3'"),
    ),
    "name of an inner function": (
        (
            "TABLE = {{'a': 1, 'b': 2}}\n"
            "def target(x):\n  def {0}(): pass\n  f = {0}\n  return TABLE[f.__name__]"
        ),
        *("a", "b"),
    ),
    "order": ("class A:\n  {}\ndef target(x): return list(vars(A))", "a = 1; b = 1", "b = 1; a = 1"),
    "metadata": (
        (
            "from dataclasses import dataclass, field, fields\n@dataclass\nclass A:\n"
            "  a: int = field(default=1, metadata={{'k': {}}})\ndef target(x): return fields(A)[0].metadata"
        ),
    ),
    "property": (
        "class P(property):\n  k = {}\nclass A:\n  @P\n  def f(s): return 1\ndef target(x): return A.f.k",
    ),
    "static method": (
        (
            "class P(staticmethod):\n  def __get__(s, *a): return lambda: {}\n"
            "class A:\n  @P\n  def f(): return 1\ndef target(x): return A.f()"
        ),
    ),
    "partial": (
        "import functools\nclass P(functools.partial):\n  k = {}\nK = P(max, 1)\ndef target(x): return K.k",
    ),
    "attributes as keys": (
        "class A(dict):\n  __getattr__ = dict.__getitem__\nK = A(k={})\ndef target(x): return K.k",
    ),
    "methods that raise": (
        (
            "class A(dict):\n  def items(s): raise ValueError\n  __len__ = __iter__ = __bool__ = items\n"
            "  def __getattribute__(s, name): raise ValueError\nK = A(k={})\ndef target(x): return K['k']"
        ),
    ),
    "protocol": (
        (
            "import typing\n@typing.runtime_checkable\nclass P(typing.Protocol):\n  {}: float\n"
            "class A: k = 2.0\ndef target(x): return isinstance(A(), P)"
        ),
        *("k", "j"),
    ),
    "digits of a number": ("K = 10 ** 5000 + {}\ndef target(x): return x * K",),
    "digits of a member": ("class N(int): pass\nK = N(10 ** 5000 + {})\ndef target(x): return x * K",),
    "sign of a NaN": ("K = {}\ndef target(x): return x * K", *("float('nan')", "-float('nan')")),
    "registry": (
        (
            "class B:\n  made = set()\n  def __init_subclass__(c): B.made.add(c)\nclass C(B): k = {}\n"
            "class D(B): k = 9\ndef target(x): return sum(c.k for c in B.made)"
        ),
    ),
}
"""Sources whose values differ in neither attributes, code nor elements; two texts for them, or 1 and 2."""


def known() -> KnownPackages:
    return KnownPackages([])


def target_of(source: str) -> types.FunctionType:
    scope: dict[str, object] = {"__name__": "somebodys", "__builtins__": __builtins__}
    sys.modules["somebodys"] = types.ModuleType("somebodys")
    exec(compile(textwrap.dedent(source), "<cell>", "exec"), scope)
    found = scope["target"]
    assert isinstance(found, types.FunctionType)
    return found


def fingerprint(value: object) -> str:
    state = Fingerprint(known())
    state.add(value)
    return state.digest


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_what_changes_what_a_function_does_changes_its_fingerprint(old: str, new: str) -> None:
    changed = BASE.replace(old, new, 1)

    assert changed != BASE
    assert fingerprint(target_of(changed)) != fingerprint(target_of(BASE))


def test_a_number_that_python_refuses_to_write_hides_nothing_beside_it() -> None:
    source = "def make(table):\n  def target(x): return x * table[10**5000]\n  return target\n"

    def digest(factor: int) -> str | None:
        try:
            return fingerprint(target_of(f"{source}target = make({{10**5000: {factor}}})"))
        except (Unknown, ValueError):  # the graph has no key, and is not stored
            return None

    assert digest(2) is None or digest(2) != digest(3)


@pytest.mark.parametrize(("old", "new"), SAME)
def test_what_changes_nothing_changes_no_fingerprint(old: str, new: str) -> None:
    changed = BASE.replace(old, new)

    assert changed != BASE
    assert fingerprint(target_of(changed)) == fingerprint(target_of(BASE))


@pytest.mark.parametrize(("old", "new"), RENAMED)
def test_names_of_globals_and_locals_do_not_count(old: str, new: str) -> None:
    import re

    changed = re.sub(rf"\b{old}\b", new, BASE)

    assert changed != BASE
    assert fingerprint(target_of(changed)) == fingerprint(target_of(BASE))


def test_another_process_with_another_hash_seed_finds_the_same() -> None:
    program = textwrap.dedent(
        """
        import sys
        sys.path.insert(0, {folder!r})
        from test_fingerprints import BASE, fingerprint, target_of
        print(fingerprint(target_of(BASE)))
        """
    ).format(folder=str(__file__).rpartition("/")[0])
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    ]

    assert found == [fingerprint(target_of(BASE))] * 2


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("return open('x').read()", "`open`"),
        ("return eval('x')", "`eval`"),
        ("import os; return os.environ['A']", "`environ`"),
        ("import os; return os.getenv('A')", "`getenv`"),
        ("return ROWS.send(None)", "`ROWS`"),
        ("import sys; return sys._getframe().f_globals['K']", "`_getframe`"),
        ("return helper.__globals__['K']", "`__globals__`"),
        ("return helper.__annotations__['x']", "`__annotations__`"),
        ("import pathlib; return pathlib.PurePath('x').read_text()", "`read_text`"),
        ("import pathlib; return pathlib.Path('x').name", "`pathlib.Path`"),
        ("return PATH.open().read()", "`open` of `pathlib.Path`"),
        ("import os; return os.path.exists('x')", "`genericpath.exists`"),
        ("import os; return os.environb[b'A']", "`os._Environ`"),
        ("import time; return time.time()", "`time.time`"),
        ("import configparser; return configparser.ConfigParser()", "`configparser"),
        ("import decimal; return decimal.Decimal(1) / 7", "`decimal.Decimal`"),
        ("import random; return random.SystemRandom().random()", "`SystemRandom`"),
        ("import datetime; return datetime.datetime.now().year", "`now` of `datetime.datetime`"),
        ("return LOG.isEnabledFor(10)", "`isEnabledFor` of `logging.Logger`"),
        ("return cached(x)", "cached results"),
        ("return A.__subclasses__()", "`__subclasses__`"),
        ("return A.__orig_bases__", "`__orig_bases__`"),
        ("import inspect; return inspect.signature(helper)", "`inspect.signature`"),
        ("import inspect; return inspect.getdoc(helper)", "`inspect.getdoc`"),
        ("import dataclasses; return dataclasses.fields(x)[0].type", "`type` of `dataclasses.fields`"),
        ("import weakref; return PROXY.f()", "weak proxy"),
        ("import numpy; return UFUNC(x)", "_ufunc_inspect_signature_builder"),
        ("from . import other; return other.f(x)", "relative to an unknown package"),
        ("return TEXT[x]", "large text"),
        ("import no_such_module; return no_such_module.f(x)", "`no_such_module`"),
    ],
)
def test_what_cannot_be_told_is_unknown_and_named(body: str, named: str) -> None:
    source = (
        "import functools, logging, pathlib\nPATH, LOG = pathlib.Path('x'), logging.getLogger('x')\n"
        "@functools.lru_cache\ndef cached(x): return x\ncached(1)\n"
        "import numpy, weakref\nclass A: pass\nHELD = A()\nPROXY = weakref.proxy(HELD)\n"
        "UFUNC = numpy.frompyfunc(lambda x: x, 1, 1)\nTEXT = ' ' * 2_000_000\n"
        f"ROWS = (item for item in [1])\ndef helper(x):\n    {body}\ndef target(x):\n    return helper(x)\n"
    )

    with pytest.raises(Unknown, match=named):
        fingerprint(target_of(source))


def test_an_import_within_a_function_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[str] = [
        "import pack.part\n    return pack.part.f(x)",
        "import pack.part as p\n    return p.f(x)",
        "from pack import part\n    return part.f(x)",
        "from pack.part import f\n    return f(x)",
        "from pack.part import f as g, K\n    return g(x)",
        "import pack.part as p\n    return sum(p.f(each) for each in x)",
        "from pack import part\n    return (lambda: part.f(x))()",
        "def inner():\n        return p.f(x)\n    import pack.part as p\n    return inner()",
        "import pack\n    class A:\n        y = pack.part.f(1)\n    return A",
        "try:\n        import pack.part as p\n    except ImportError: import math as p\n    return p.f(x)",
    ]

    def imported(result: str) -> None:
        package, part = types.ModuleType("pack"), types.ModuleType("pack.part")
        package.__dict__["part"] = part
        exec(compile(f"K = 1\ndef f(x): return {result}", "<part>", "exec"), part.__dict__)
        monkeypatch.setitem(sys.modules, "pack", package)
        monkeypatch.setitem(sys.modules, "pack.part", part)

    for way in ways:
        function = target_of(f"def target(x):\n    {way}\n")
        imported("x + 1")
        before = fingerprint(function)
        imported("x + 1")
        assert fingerprint(function) == before
        imported("x + 2")
        assert fingerprint(function) != before, way


def test_a_decorator_of_a_known_package_is_looked_through() -> None:
    source = "import contextlib\n@contextlib.contextmanager\ndef target(x):\n    yield x + {}\n"

    assert fingerprint(target_of(source.format(1))) == fingerprint(target_of(source.format(1)))
    assert fingerprint(target_of(source.format(1))) != fingerprint(target_of(source.format(2)))
    assert not known().is_library_code(target_of(source.format(1)))


def test_a_known_function_counts_by_its_name_unless_it_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    import statistics

    source = "import statistics\ndef target(x):\n    return statistics.mean(x)\n"
    before = fingerprint(target_of(source))
    monkeypatch.setattr(statistics, "mean", lambda x: 0)

    assert known().is_library_code(statistics.median)
    assert fingerprint(target_of(source)) != before


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("str(kind)", True),
        ("repr(kind)", True),
        ("f'{kind}'", True),
        ("'%s' % kind", True),
        ("b'%a' % kind", True),
        ("'{}'.format(kind)", True),
        ("len([kind])", False),
        ("5 % len([kind])", False),
    ],
)
@pytest.mark.parametrize("value", ["Kind", "Kind()"])
def test_names_count_where_code_makes_texts_of_values(text: str, counts: bool, value: str) -> None:
    kind = f"from dataclasses import dataclass\n@dataclass\nclass Kind:\n    a: int = 1\nkind = {value}\n"
    source = f"{kind}def target(x):\n    return {text}\n"
    renamed = source.replace("Kind", "Sort")
    documented = source.replace("class Kind:", "class Kind:\n    'All of them.'")

    assert (fingerprint(target_of(source)) != fingerprint(target_of(renamed))) is counts
    assert fingerprint(target_of(source)) == fingerprint(target_of(documented))


@pytest.mark.parametrize("read", ["str(WHICH['x'])", "WHICH['x'].__name__", "f'{[*ALL]}'"])
def test_which_of_two_has_which_name_counts(read: str) -> None:
    source = (
        "class Fast: pass\nclass Slow: pass\nWHICH = {'x': Fast, 'y': Slow}\nALL = {Fast, Slow}\n"
        f"def target(x):\n    return {read} if WHICH else ALL\n"
    )
    swapped = source.replace("'x': Fast, 'y': Slow", "'x': Slow, 'y': Fast")

    assert fingerprint(target_of(source)) != fingerprint(target_of(swapped))
    assert fingerprint(target_of(source)) == fingerprint(target_of(source))


def test_names_count_that_a_helper_reads_for_a_repr() -> None:
    source = (
        "def tell(it): return type(it).__name__\nSIZES = {'C': 1, 'D': 2}\nclass C:\n"
        "    def __repr__(self): return tell(self)\n    def size(self): return SIZES[tell(self)]\n"
        "it = C()\ndef target(x):\n    return it.size()\n"
    )
    renamed = source.replace("class C", "class D").replace("it = C", "it = D")

    assert fingerprint(target_of(source)) != fingerprint(target_of(renamed))


@pytest.mark.parametrize(("text", "counts"), [("vars(K)", True), ("K.a", False)])
def test_the_order_of_attributes_counts_where_code_reads_it(text: str, counts: bool) -> None:
    source = f"class A: pass\nK = A()\nK.a = 1; K.b = 2\ndef target(x):\n    return {text}\n"
    other = source.replace("K.a = 1; K.b = 2", "K.b = 2; K.a = 1")

    assert (fingerprint(target_of(source)) != fingerprint(target_of(other))) is counts


def test_what_is_registered_for_an_abstract_class_counts() -> None:
    source = (
        "from abc import ABC\nclass Kind(ABC): pass\nclass A: pass\nclass B:\n    size = 2\n"
        "Kind.register({})\ndef target(x):\n    return isinstance(x, Kind)\n"
    )

    assert fingerprint(target_of(source.format("A"))) == fingerprint(target_of(source.format("A")))
    assert fingerprint(target_of(source.format("A"))) != fingerprint(target_of(source.format("B")))


def test_values_that_hold_themselves_end() -> None:
    rows: list[object] = [1]
    rows.append(rows)
    other: list[object] = [1]
    other.append(other)

    assert fingerprint(rows) == fingerprint(other)
    assert fingerprint(rows) != fingerprint([1, [1]])


def test_more_than_can_be_looked_at_is_unknown() -> None:
    deep: list[object] = []
    for _ in range(1000):
        deep = [deep]
    sets: frozenset[object] = frozenset()
    for _ in range(50):
        sets = frozenset({sets, (sets, 1)})
    for value in (deep, sets, [[number] for number in range(30_000)]):
        with pytest.raises(Unknown, match="more code than"):
            fingerprint(value)


@pytest.mark.parametrize("name", HIDDEN)
def test_what_values_hold_elsewhere_counts_and_code_of_theirs_does_not_run(name: str) -> None:
    source, one, two = (*HIDDEN[name], "1", "2")[:3]
    first, again, other = (fingerprint(target_of(source.format(text))) for text in (one, one, two))

    assert first == again
    assert first != other


@pytest.mark.parametrize(
    "source", ["list(range(5_000_000))", "set(range(5_000_000))", "dict.fromkeys(range(5_000_000))"]
)
def test_a_large_value_takes_no_longer_than_the_bound_allows(source: str) -> None:
    value = eval(source)
    started = time.process_time()

    with pytest.raises(Unknown, match="more code than"):
        fingerprint(value)

    assert time.process_time() - started < 1


def test_a_module_that_loads_its_parts_when_asked_is_not_asked() -> None:
    source = (
        "import types\nASKED = []\nclass Lazy(types.ModuleType):\n"
        "    def __getattr__(self, name):\n        ASKED.append(name)\n        return lambda x: x\n"
        "lazy = Lazy('lazy')\ndef target(x): return lazy.part(x)\n"
    )
    function = target_of(source)

    with pytest.raises(Unknown, match="`part` of `lazy`, which the module loads"):
        fingerprint(function)

    assert function.__globals__["ASKED"] == []


def test_it_counts_under_which_name_a_global_is_read_where_code_rebinds_some() -> None:
    source = "A = B = 1.0\ndef target(x):\n    global A\n    A = 5.0\n    return x * B\n"
    other = source.replace("x * B", "x * A")
    only_read = [each.replace("    global A\n    A = 5.0\n", "") for each in (source, other)]

    assert fingerprint(target_of(source)) == fingerprint(target_of(source))
    assert fingerprint(target_of(source)) != fingerprint(target_of(other))
    assert len({fingerprint(target_of(each)) for each in only_read}) == 1


def test_a_logger_counts_by_its_name_and_by_what_is_set_on_it() -> None:
    plain, levelled, scaled = (logging.Logger("a") for _ in range(3))
    levelled.setLevel(logging.DEBUG)
    scaled.scale = 2.0  # type: ignore[attr-defined]

    assert fingerprint(plain) == fingerprint(levelled)
    assert len({fingerprint(each) for each in (plain, scaled, logging.Logger("b"))}) == 3


def test_where_a_program_prints_does_not_count() -> None:
    def target(x: object) -> None:
        print(x, file=sys.stderr)

    before = fingerprint(target)
    with contextlib.redirect_stderr(io.StringIO("another")):
        assert fingerprint(target) == before


def test_a_path_counts_by_what_it_names_and_not_by_its_hash() -> None:
    path, hashed = Path("a"), Path("a")
    hash(hashed)

    assert fingerprint(path) == fingerprint(hashed) != fingerprint(Path("b"))


@pytest.mark.parametrize(
    "body",
    [
        "import os; return os.path.join('a', os.sep)",
        "import logging; LOG.info('called'); return x",
        "import json; return json.loads('[1]')",
        "import re; return re.sub('a', 'b', x)",
        "import copy; return copy.deepcopy(x)",
        "import sys; return sys.version_info >= (3, 11) and sys.platform",
        "import warnings; warnings.warn('rarely'); return x",
        "import datetime; return datetime.timedelta(seconds=1).total_seconds()",
        "from collections import Counter, namedtuple; return Counter(x).most_common(1)",
        "import itertools, operator, string; return [*itertools.chain(x)], operator.neg(x), string.digits",
        "from contextlib import suppress\n    with suppress(KeyError): return PATH.name",
        "print('called'); return x",
    ],
)
def test_what_the_standard_library_only_computes_is_told(body: str) -> None:
    source = (
        "import logging, pathlib\nPATH, LOG = pathlib.Path('x'), logging.getLogger('x')\n"
        f"def target(x):\n    {body}\n"
    )

    assert fingerprint(target_of(source)) == fingerprint(target_of(source))


def test_a_function_that_keeps_answers_it_has_given_since_it_was_seen_is_told() -> None:
    target = target_of(
        "import functools\nK = 1\n@functools.lru_cache\ndef f(x): return x + K\ndef target(x): return f(x)"
    )
    before = fingerprint(target)
    target(1)

    assert fingerprint(target) == before

    target.__globals__["K"] = 2
    with pytest.raises(Unknown, match="cached results"):
        fingerprint(target)


def test_a_function_that_keeps_its_answers_and_calls_itself_is_told() -> None:
    source = (
        "import functools\n@functools.lru_cache\ndef f(x): return x and f(x - 1) + 1\n"
        "def target(x): return f(x)"
    )

    assert fingerprint(target_of(source)) == fingerprint(target_of(source))
    assert fingerprint(target_of(source)) != fingerprint(target_of(source.replace("+ 1", "+ 2")))


def test_rules_of_the_caller_come_first() -> None:
    def told(state: Fingerprint, value: object) -> bool:
        if isinstance(value, slice):
            state.note("a slice")
            return True
        return False

    def digest(value: object, rules: list[Callable[[Fingerprint, object], bool]]) -> str:
        state = Fingerprint(known(), rules)
        state.add(value)
        return state.digest

    assert digest([slice(1)], [told]) == digest([slice(2)], [told])
    assert digest([slice(1)], []) != digest([slice(2)], [])


def test_numpy_functions_count_by_numpys_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy

    source = "import numpy as np\nA = np.arange({})\ndef target(x):\n    return np.prod(x) + np.exp(x) + A\n"
    before = fingerprint(target_of(source.format(3)))

    assert fingerprint(target_of(source.format(3))) == before
    assert fingerprint(target_of(source.format(4))) != before
    monkeypatch.setattr(numpy, "__version__", "0")
    assert fingerprint(target_of(source.format(3))) != before
