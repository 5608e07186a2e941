"""Programs by which somebody who had not seen the code got stale answers from traces, and their edits.

Each was mended: no edit may be answered by a trace of before.
"""

from __future__ import annotations

from soundness.subjects import Edit, Subject, edit, subject

__all__ = ["ATTACKS"]


def with_package(top: str, decides: str, changes: list[Edit], holding: str = "") -> Subject:
    """Return a subject that asks an installed package's class whether something is an instance of it."""
    source = f'''\
import os, tempfile
folder = os.path.join(tempfile.mkdtemp(), "site-packages")
os.makedirs(folder)
with open(os.path.join(folder, "nbcache_settings.py"), "w") as file: file.write("FLAG = True")
with open(os.path.join(folder, "nbcache_package.py"), "w") as file: file.write("""
{top}
class Meta(type):
    def __instancecheck__(cls, it): {decides}
class Base(metaclass=Meta): pass
""")
sys.path.append(folder)
import nbcache_package, nbcache_settings
class It: pass
it = It()
{holding}
def f(x): return x * 2 if isinstance(it, nbcache_package.Base) else x * 3
results = infer(f, X)
'''
    return subject(source, changes)


ATTACKS: dict[str, Subject] = {
    "abc register": subject(
        """\
        import abc
        class Proto(abc.ABC): pass
        class Th: pass
        th = Th()
        def f(x): return x * 2 if isinstance(th, Proto) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "Proto.register(Th)\nresults ="),
            edit("results =", "class Th2(Proto): pass\nth = Th2()\nresults ="),
        ],
    ),
    "instancecheck global": subject(
        """\
        FLAG = True
        class M(type):
            def __instancecheck__(cls, o): return FLAG
        class C(metaclass=M): pass
        class D: pass
        d = D()
        def f(x): return x * 2 if isinstance(d, C) else x * 3
        results = infer(f, X)
        """,
        [
            edit("FLAG = True", "FLAG = False"),
            edit("return FLAG", "return not FLAG"),
        ],
    ),
    "subclasshook": subject(
        """\
        import abc
        SEEN = {"D"}
        class C(abc.ABC):
            @classmethod
            def __subclasshook__(cls, o): return o.__name__ in SEEN
        class D: pass
        d = D()
        def f(x): return x * 2 if isinstance(d, C) else x * 3
        results = infer(f, X)
        """,
        [
            edit('SEEN = {"D"}', 'SEEN = {"E"}'),
            edit("in SEEN", "not in SEEN"),
        ],
    ),
    "redefined class": subject(
        """\
        class A:
            k = 2.0
        o = A()
        def f(x): return x * 2 if isinstance(o, A) else x * 3
        results = infer(f, X)
        """,
        [
            edit("o = A()", "o = A()\nclass A:\n    k = 2.0"),
        ],
    ),
    "redefined base": subject(
        """\
        class Base:
            k = 2.0
        class A(Base): pass
        o = A()
        def f(x): return x * 2 if isinstance(o, Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit("o = A()", "o = A()\nclass Base:\n    k = 2.0"),
        ],
    ),
    "issubclass again": subject(
        """\
        class Base: pass
        class A(Base): pass
        def f(x): return x * 2 if issubclass(A, Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit("def f", "class Base: pass\ndef f"),
        ],
    ),
    "try module attr": subject(
        """\
        plug = types.ModuleType("nbcache_plug")
        sys.modules["nbcache_plug"] = plug
        plug.K = 2.0
        def f(x):
            try:
                return plug.fast(x)
            except AttributeError:
                return x * plug.K
        results = infer(f, X)
        """,
        [
            edit("results =", "plug.fast = lambda x: x * 7\nresults ="),
            edit("results =", "plug.fast = torch.sin\nresults ="),
        ],
    ),
    "getattr default listed": subject(
        """\
        plug = types.ModuleType("nbcache_plug")
        sys.modules["nbcache_plug"] = plug
        plug.K = 2.0
        NAMES = ["fast", "K"]
        def f(x):
            for n in NAMES: x = x * getattr(plug, n, 3.0)
            return x
        results = infer(f, X)
        """,
        [
            edit("results =", "plug.fast = 7.0\nresults ="),
        ],
    ),
    "hasattr listed": subject(
        """\
        plug = types.ModuleType("nbcache_plug")
        sys.modules["nbcache_plug"] = plug
        plug.K = 2.0
        NAMES = ["fast", "K"]
        def f(x):
            for n in NAMES: x = x * 2 if hasattr(plug, n) else x * 5
            return x
        results = infer(f, X)
        """,
        [
            edit("results =", "plug.fast = 7.0\nresults ="),
            edit("results =", "del plug.K\nresults ="),
        ],
    ),
    "hasattr made": subject(
        """\
        plug = types.ModuleType("nbcache_plug")
        sys.modules["nbcache_plug"] = plug
        plug.K = 2.0
        def f(x):
            return x * 2 if hasattr(plug, "fa" + str("st")) else x * plug.K * 4
        results = infer(f, X)
        """,
        [
            edit("results =", "plug.fast = 7.0\nresults ="),
        ],
    ),
    "module dict in": subject(
        """\
        plug = types.ModuleType("nbcache_plug")
        sys.modules["nbcache_plug"] = plug
        plug.K = 2.0
        NAME = "fast"
        def f(x):
            return x * 2 if NAME in plug.__dict__ else x * plug.K * 4
        results = infer(f, X)
        """,
        [
            edit("results =", "plug.fast = 7.0\nresults ="),
        ],
    ),
    "enum missing": subject(
        """\
        import enum
        G = 2.0
        class E(enum.Enum):
            A = 1.0
            B = 6.0
            @classmethod
            def _missing_(cls, v): return cls.A if G > 1 else cls.B
        def f(x): return x * E(4.0).value
        results = infer(f, X)
        """,
        [
            edit("G = 2.0", "G = 0.5"),
            edit("G > 1", "G < 1"),
        ],
    ),
    "shared cells": subject(
        """\
        def make():
            n = 1.0
            def inc():
                nonlocal n
                n = n + 1.0
            def get(): return n
            return inc, get
        inc, get = make()
        def f(x):
            inc()
            return x * get()
        results = infer(f, X)
        """,
        [
            edit("def f", "_, get = make()\ndef f"),
            edit("n = 1.0", "n = 4.0"),
        ],
    ),
    "meta len in": subject(
        """\
        G = 2
        class M(type):
            def __len__(c): return G
            def __contains__(c, v): return G > 2
            def __iter__(c): return iter([1.0, G])
            def __bool__(c): return G > 2
        class A(metaclass=M): pass
        def f(x): return x * len(A) + (1 if 3 in A else 2)
        def g(x):
            for v in A: x = x * 2 + v
            return x
        def h(x): return x * 2 if A else x * 3
        def results(compile):
            with torch.no_grad(): return [compile(j)(X) for j in (f, g, h)]
        """,
        [
            edit("G = 2", "G = 3"),
        ],
    ),
    "torch attr names": subject(
        """\
        class Net(torch.nn.Module):
            def __init__(s, act="relu"):
                super().__init__()
                s.act = act
            def forward(s, x):
                for mod in (torch.nn.functional, torch):
                    if hasattr(mod, s.act): return getattr(mod, s.act)(x) * 2
                return x * 3
        m = Net("nbswish")
        results = infer(m, X)
        """,
        [
            edit("results =", "torch.nn.functional.nbswish = torch.sin\nresults ="),
            edit("results =", "torch.nbswish = torch.cos\nresults ="),
            edit('"nbswish")', '"cos")'),
        ],
    ),
    "isinstance tuple union": subject(
        """\
        import numbers, collections.abc
        class Num: pass
        class L:
            def __len__(s): return 1
        n, l = Num(), L()
        def f(x):
            x = x * 2 if isinstance(n, (numbers.Number, int)) else x * 3
            return x + 1 if isinstance(l, collections.abc.Sized) else x + 5
        results = infer(f, X)
        """,
        [
            edit("results =", "numbers.Number.register(Num)\nresults ="),
            edit("results =", "numbers.Complex.register(Num)\nresults ="),
            edit("__len__", "__lenn__"),
            edit("results =", "del L.__len__\nresults ="),
        ],
    ),
    "issubclass abc": subject(
        """\
        import abc
        class B(abc.ABC): pass
        class C: pass
        def f(x): return x * 2 if issubclass(C, B) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "B.register(C)\nresults ="),
        ],
    ),
    "regex": subject(
        """\
        import re
        PAT = re.compile("a+")
        def f(x):
            m = PAT.match("aab")
            return x * len(m.group(0)) if m else x * 9
        results = infer(f, X)
        """,
        [
            edit('"a+"', '"a"'),
            edit('"a+"', '"b"'),
            edit('"a+"', '"A+", re.I'),
        ],
    ),
    "regex nested": subject(
        """\
        import re
        class H:
            pats = {"k": re.compile("a+")}
            def __init__(s): s.own = [re.compile("b+")]
        h = H()
        def f(x):
            m = h.pats["k"].match("aab"); n = h.own[0].search("aabbb")
            return x * m.end() + n.end() if m and n else x * 9
        results = infer(f, X)
        """,
        [
            edit('"a+"', '"a"'),
            edit('"b+"', '"b"'),
            edit('"b+"', '"c"'),
        ],
    ),
    "shared cell alias": subject(
        """\
        def make():
            box = [1.0]
            def push(v): box.append(v)
            def get(): return sum(box)
            return push, get
        push, get = make()
        def f(x):
            push(2.0)
            return x * get()
        results = infer(f, X)
        """,
        [
            edit("def f", "_, get = make()\ndef f"),
            edit("[1.0]", "[3.0]"),
        ],
    ),
    "shared cell class": subject(
        """\
        def make():
            n = 1.0
            class Inc:
                def go(self):
                    nonlocal n
                    n = n + 3.0
            class Get:
                def go(self): return n
            return Inc(), Get()
        inc, get = make()
        def f(x):
            inc.go()
            return x * get.go()
        results = infer(f, X)
        """,
        [
            edit("def f", "_, get = make()\ndef f"),
            edit("n = 1.0", "n = 4.0"),
            edit("+ 3.0", "- 3.0"),
        ],
    ),
    "shared list defaults": subject(
        """\
        D = [1.0]
        def push(v, box=D): box.append(v)
        def get(box=D): return sum(box)
        def f(x):
            push(2.0)
            return x * get()
        results = infer(f, X)
        """,
        [
            edit("def get(box=D)", "def get(box=[1.0])"),
            edit("D = [1.0]", "D = [2.0]"),
            edit("def get(box=D)", "def get(box=[*D])"),
        ],
    ),
    "shared attr alias": subject(
        """\
        class A:
            def __init__(s, box): s.box = box
        box = [1.0]
        a, b = A(box), A(box)
        def f(x):
            a.box.append(2.0)
            return x * sum(b.box)
        results = infer(f, X)
        """,
        [
            edit("A(box), A(box)", "A(box), A([1.0])"),
            edit("A(box), A(box)", "A([1.0]), A(box)"),
        ],
    ),
    "torch attr absent": subject(
        """\
        def f(x):
            try: return torch.nbcache_fast_op(x)
            except AttributeError: return x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.nbcache_fast_op = torch.sin\nresults ="),
        ],
    ),
    "F hasattr list": subject(
        """\
        F = torch.nn.functional
        CANDIDATES = ("swish9", "silu")
        def f(x):
            for n in CANDIDATES:
                g = getattr(F, n, None)
                if g is not None: return g(x)
            return x
        results = infer(f, X)
        """,
        [
            edit("results =", "F.swish9 = torch.sin\nresults ="),
            edit("results =", "F.silu = torch.sin\nresults ="),
        ],
    ),
    "env by closure": subject(
        """\
        import os
        def make(env):
            def f(x): return x * 2 if env.get("NBX", "0") == "0" else x * 3
            return f
        results = infer(make(os.environ), X)
        """,
        [
            edit("results =", 'os.environ["NBX"] = "1"\nresults ='),
            edit("results =", 'os.environ["NBX"] = "0"\nresults ='),
        ],
    ),
    "env by arg": subject(
        """\
        import os
        def rd(e, k): return e.get(k, "0")
        class H: pass
        h = H(); h.e = os.environ
        def f(x): return x * 2 if rd(h.e, "NBX") == "0" else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", 'os.environ["NBX"] = "1"\nresults ='),
        ],
    ),
    "env fstring": subject(
        """\
        import os
        S = "X"
        def f(x):
            return x * 2 if os.environ.get(f"NB{S}", "0") == "0" else x * 3
        results = infer(f, X)
        """,
        [
            edit("def f", 'os.environ["NBX"] = "1"\ndef f'),
            edit('S = "X"', 'S = "Y"\nos.environ["NBY"] = "1"'),
        ],
    ),
    "env fstring2": subject(
        """\
        import os
        S = "X"
        def f(x):
            return x * 2 if os.environ.get("NB" + S, "0") == "0" else x * 3
        results = infer(f, X)
        """,
        [
            edit("def f", 'os.environ["NBX"] = "1"\ndef f'),
        ],
    ),
    "env import from": subject(
        """\
        import os

        def f(x):
            from os import environ
            return x * 2 if environ.get("NBX", "0") == "0" else x * 3
        results = infer(f, X)
        """,
        [
            edit("def f", 'os.environ["NBX"] = "1"\ndef f'),
        ],
    ),
    "env class attr": subject(
        """\
        import os
        class C: e = os.environ
        def f(x):
            return x * 2 if C.e.get("NBX", "0") == "0" else x * 3
        results = infer(f, X)
        """,
        [
            edit("def f", 'os.environ["NBX"] = "1"\ndef f'),
        ],
    ),
    "env default arg": subject(
        """\
        import os
        def rd(x, e=os.environ): return x * 2 if e.get("NBX", "0") == "0" else x * 3
        def f(x):
            return rd(x)
        results = infer(f, X)
        """,
        [
            edit("def f", 'os.environ["NBX"] = "1"\ndef f'),
        ],
    ),
    "except base": subject(
        """\
        class E(Exception): pass
        class E2(E): pass
        def f(x):
            try: raise E2("a")
            except E: return x * 2
            except Exception: return x * 3
        results = infer(f, X)
        """,
        [
            edit("def f", "class E(Exception): pass\ndef f"),
            edit("E2(E)", "E2(Exception)"),
        ],
    ),
    "match base": subject(
        """\
        class E:
            def __init__(s, k): s.k = k
        class E2(E): pass
        o = E2(3.0)
        def f(x):
            match o:
                case E(k=k): return x * k
                case _: return x * 9
        results = infer(f, X)
        """,
        [
            edit("def f", "class E:\n    def __init__(s, k): s.k = k\ndef f"),
            edit("E2(E): pass", "E2(E): k = 1"),
            edit("E2(3.0)", "E2(4.0)"),
        ],
    ),
    "enum format": subject(
        """\
        import enum
        G = 1
        class E(enum.Enum):
            A = 1
            def __str__(s): return "a" * G
        def f(x): return x * len(f"{E.A}")
        results = infer(f, X)
        """,
        [
            edit("G = 1", "G = 2"),
        ],
    ),
    "enum missing2": subject(
        """\
        import enum
        ALIAS = {"relu": "RELU", "sine": "SIN"}
        class Act(enum.Enum):
            RELU = 1
            SIN = 2
            @classmethod
            def _missing_(cls, v): return cls[ALIAS[v]]
        def f(x): return torch.relu(x) if Act("relu") is Act.RELU else torch.sin(x)
        results = infer(f, X)
        """,
        [
            edit('"relu": "RELU"', '"relu": "SIN"'),
        ],
    ),
    "cells three": subject(
        """\
        def make():
            n, m = 1.0, 5.0
            def inc():
                nonlocal n
                n = n + 1.0
            def dec():
                nonlocal m
                m = m - 1.0
            def get(): return n * m
            return inc, dec, get
        inc, dec, get = make()
        class H: pass
        h = H(); h.inc = inc; h.dec = dec; h.get = get
        def f(x):
            h.inc(); h.dec()
            return x * h.get()
        results = infer(f, X)
        """,
        [
            edit("h.dec = dec", "h.dec = make()[1]"),
            edit("h.inc = inc", "h.inc = make()[0]"),
            edit("h.get = get", "h.get = make()[2]"),
        ],
    ),
    "regex sub": subject(
        """\
        import re
        PAT = re.compile("a+")
        TAB = {"b": 2.0, "aab": 3.0, "ab": 4.0}
        def f(x): return x * TAB[PAT.sub("", "aab")] + len(PAT.pattern)
        results = infer(f, X)
        """,
        [
            edit('"a+"', '"c"'),
            edit('"a+"', '"^a"'),
            edit('"a+"', '"A+", re.I'),
        ],
    ),
    "heap types": subject(
        """\
        import re, operator, functools
        PATS = {"skip": re.compile("zz")}
        NAMES = ["aa", "bb"]
        def f(x):
            for n in NAMES:
                if PATS["skip"].search(n): continue
                x = x * 2 + 1
            return x
        results = infer(f, X)
        """,
        [
            edit('"zz"', '"a"'),
            edit('"zz"', '"b|a"'),
        ],
    ),
    "heap attr pattern": subject(
        """\
        import re
        P1 = re.compile("ab")
        def f(x): return x * len(P1.pattern) + P1.flags + P1.groups
        results = infer(f, X)
        """,
        [
            edit('"ab"', '"abc"'),
            edit('"ab"', '"a(b)"'),
            edit('"ab"', '"ab", re.I'),
        ],
    ),
    "try attr submodule": subject(
        """\
        import torch.nn.functional as F
        class Net(torch.nn.Module):
            def forward(s, x):
                try: act = F.brand_new
                except AttributeError: act = F.relu
                return act(x) + 1
        m = Net()
        results = infer(m, X)
        """,
        [
            edit("results =", "F.brand_new = torch.sin\nresults ="),
            edit("results =", "F.relu = torch.sin\nresults ="),
        ],
    ),
    "getattr from config": subject(
        """\
        import torch.nn.functional as F
        class Cfg: act = "nbnew"
        cfg = Cfg()
        def f(x): return getattr(F, cfg.act, F.relu)(x) + getattr(torch, cfg.act, torch.cos)(x)
        results = infer(f, X)
        """,
        [
            edit("results =", "F.nbnew = torch.sin\nresults ="),
            edit("results =", "torch.nbnew = torch.sin\nresults ="),
            edit('act = "nbnew"', 'act = "sigmoid"'),
        ],
    ),
    "getattr fstring": subject(
        """\
        import torch.nn.functional as F
        VER = 2
        def f(x): return x * 2 if not hasattr(F, f"nbnew_v{VER}") else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "F.nbnew_v2 = torch.sin\nresults ="),
            edit("VER = 2", "VER = 3\nF.nbnew_v3 = 1"),
        ],
    ),
    "user module backends": subject(
        """\
        be = types.ModuleType("nbatk_be"); sys.modules["nbatk_be"] = be
        be.gelu = lambda x: x * 2
        def pick(n):
            try: return getattr(be, n)
            except AttributeError: return be.gelu
        def f(x): return pick("fast_gelu")(x)
        results = infer(f, X)
        """,
        [
            edit("results =", "be.fast_gelu = lambda x: x * 3\nresults ="),
            edit("x * 2", "x * 4"),
        ],
    ),
    "isinstance hook abc": subject(
        """\
        import collections.abc
        class Coll:
            def __init__(s): s.v = [1.0, 2.0]
            def __iter__(s): return iter(s.v)
        c = Coll()
        def f(x):
            if isinstance(c, collections.abc.Mapping): return x * 3
            if isinstance(c, collections.abc.Iterable): return x * 2
            return x
        results = infer(f, X)
        """,
        [
            edit("results =", "collections.abc.Mapping.register(Coll)\nresults ="),
            edit("results =", "Coll.__iter__ = None\nresults ="),
        ],
    ),
    "dataclass identity": subject(
        """\
        import dataclasses
        @dataclasses.dataclass
        class Cfg:
            a: float = 2.0
        @dataclasses.dataclass
        class Big(Cfg):
            b: float = 3.0
        cfg = Big()
        def f(x):
            if isinstance(cfg, Cfg): return x * cfg.a
            return x * 7
        def g(x): return x * 2 if cfg == Big() else x * 3
        def results(compile):
            with torch.no_grad(): return [compile(f)(X), compile(g)(X)]
        """,
        [
            edit("def f", "@dataclasses.dataclass\nclass Cfg:\n    a: float = 2.0\ndef f"),
            edit("def f", "@dataclasses.dataclass\nclass Big(Cfg):\n    b: float = 3.0\ndef f"),
            edit("a: float = 2.0", "a: float = 4.0"),
        ],
    ),
    "isinstance module list": subject(
        """\
        nn = torch.nn
        class Base(nn.Module): pass
        class A(Base):
            def forward(s, x): return x * 2
        ml = nn.ModuleList([A(), nn.ReLU()])
        def f(x):
            for m in ml:
                if isinstance(m, (Base, nn.Identity)): x = m(x) + 3
                else: x = m(x)
            return x
        results = infer(f, X)
        """,
        [
            edit("results =", "class Base(nn.Module): pass\nresults ="),
            edit("results =", "nn.Identity = nn.ReLU\nresults ="),
        ],
    ),
    "property native enumlike": subject(
        """\
        import enum
        W = {"A": 2.0, "B": 3.0}
        class E(str, enum.Enum):
            A = "A"
            B = "B"
            def __eq__(s, o): return W["A"] > 2.5
            def __hash__(s): return hash(W["A"])
        e = E.A
        def f(x): return x * 2 if e == "A" else x * 3
        def g(x): return x * {"A": 4.0}.get(e, 9.0)
        def h(x): return x * 2 if e in ("A", "B") else x * 5
        def results(compile):
            with torch.no_grad(): return [compile(j)(X) for j in (f, h)]
        """,
        [
            edit('"A": 2.0', '"A": 4.0'),
        ],
    ),
    "str hash": subject(
        """\
        def f(x): return x * ("abc".__hash__() % 7 + 1) + ("qr".__hash__() % 5)
        results = infer(f, X)
        """,
        [
            edit('"abc"', '"abd"'),
        ],
    ),
    "tuple hash": subject(
        """\
        def f(x): return x * (("abc", 1).__hash__() % 7 + 1)
        results = infer(f, X)
        """,
        [
            edit('"abc"', '"abd"'),
        ],
    ),
    "enum format2": subject(
        """\
        import enum
        NAMES = {"A": "x"}
        class E(enum.Enum):
            A = 1
            def __format__(s, spec): return NAMES[s.name]
        TAB = {"k_x": 2.0, "k_y": 3.0}
        def f(x): return x * TAB[f"k_{E.A}"]
        def g(x): return x * TAB["k_{}".format(E.A)]
        def h(x): return x * TAB["k_%s" % format(E.A)]
        def results(compile):
            with torch.no_grad(): return [compile(j)(X) for j in (f, g)]
        """,
        [
            edit('"A": "x"', '"A": "y"'),
        ],
    ),
    "enum str join": subject(
        """\
        import enum
        NAMES = {"A": "x"}
        class E(str, enum.Enum):
            A = "a"
            def __str__(s): return NAMES[s.name]
        TAB = {"k_x": 2.0, "k_y": 3.0, "k_a": 4.0}
        def f(x): return x * TAB["k_" + str(E.A)]
        def g(x): return x * TAB["k_%s" % E.A]
        def h(x): return x * TAB["_".join(["k", E.A])]
        def results(compile):
            with torch.no_grad(): return [compile(j)(X) for j in (f, g, h)]
        """,
        [
            edit('"A": "x"', '"A": "y"'),
        ],
    ),
    "module getattr": subject(
        """\
        plug = types.ModuleType("nbcache_plug")
        sys.modules["nbcache_plug"] = plug
        K = 2.0
        def ask(name):
            if name == "dyn": return K
            raise AttributeError(name)
        plug.__getattr__ = ask
        def f(x): return x * plug.dyn + (1 if hasattr(plug, "dyn2") else 5)
        results = infer(f, X)
        """,
        [
            edit("K = 2.0", "K = 3.0"),
            edit('== "dyn"', 'in ("dyn", "dyn2")'),
            edit("results =", "plug.dyn = 9.0\nresults ="),
        ],
    ),
    "order of an ordered dict": subject(
        """\
        from collections import OrderedDict
        OD = OrderedDict(a=2.0, b=3.0)
        m = torch.nn.Linear(4, 4)
        m.register_forward_hook(lambda m, i, o: o * 2.0)
        m.register_forward_hook(lambda m, i, o: o + 5.0)
        def f(x):
            for k, v in OD.items(): x = x * 2 + v
            return m(x)
        results = infer(f, X)
        """,
        [
            edit("results =", 'OD.move_to_end("a")\nresults ='),
            edit("o + 5.0)", "o + 5.0, prepend=True)"),
        ],
    ),
    "order of a set of ints": subject(
        """\
        S = set([0, 8])
        FS = frozenset([1, 9])
        def f(x):
            for v in S: x = x * 2 + v
            for v in FS: x = x * 2 + v
            return x
        results = infer(f, X)
        """,
        [edit("[0, 8]", "[8, 0]"), edit("[1, 9]", "[9, 1]")],
    ),
    "variables with names that are computed": subject(
        """\
        import os
        def f(x): return x * 2 if os.environ.get("nbx".upper()) is None else x * 3
        results = infer(f, X)
        """,
        [edit("results =", 'os.environ["NBX"] = "1"\nresults =')],
    ),
    "who else is a Proto": subject(
        """\
        import abc
        class Proto(abc.ABC): pass
        class Th: pass
        Proto.register(Th)
        th, other = Th(), [1]
        def f(x):
            x = x * 2 if isinstance(th, Proto) else x * 3
            return x + 1 if isinstance(other, Proto) else x
        results = infer(f, X)
        """,
        [
            edit("th, other", "Old = Th\nclass Th: pass\nth, other"),
            edit(
                "results =",
                "class S(Proto):\n    @classmethod\n    def __subclasshook__(cls, o): return True\nresults =",
            ),
        ],
    ),
    "tables of the standard library": subject(
        """\
        import logging, calendar
        logging.addLevelName(15, "FOO")
        def f(x): return x * len(logging.getLevelName(15)) + calendar.mdays[2]
        results = infer(f, X)
        """,
        [edit('"FOO"', '"FOOBAR"'), edit("results =", "calendar.mdays[2] = 40\nresults =")],
    ),
    "attributes whose names are no identifiers": subject(
        """\
        plug = types.ModuleType("nbcache_test_plug")
        sys.modules["nbcache_test_plug"] = plug
        def f(x):
            y = x * 3 if hasattr(plug, "a-b") else x
            return y + getattr(plug, "0x", 2.0)
        results = infer(f, X)
        """,
        [
            edit("results =", 'setattr(plug, "a-b", 3.0)\nresults ='),
            edit("results =", 'setattr(plug, "0x", 3.0)\nresults ='),
        ],
    ),
    "code that was made of a text, and answers that are kept": subject(
        """\
        import enum
        NAMES = {"A": "x"}
        class E(enum.Enum):
            A = 1
        class K(enum.Enum):
            A = 1
            @functools.lru_cache
            def __str__(s): return NAMES[s.name]
        exec("def fmt(s, spec): return NAMES[s.name]")
        E.__format__ = fmt
        str(K.A)
        TAB = {"k_x": 2.0, "k_y": 3.0}
        def f(x): return x * TAB[f"k_{E.A}"]
        def g(x): return x * TAB["k_" + str(K.A)]
        def results(compile):
            with torch.no_grad(): return [compile(each)(X) for each in (f, g)]
        """,
        [edit('"A": "x"', '"A": "y"')],
    ),
    "lines, and names that are held": subject(
        """\
        NAME = "__annotations__"
        def g(x: int): return x
        def f(x):
            try: raise ValueError
            except ValueError as e: return x * e.__traceback__.tb_lineno
        def h(x): return g(x) * len(getattr(g, NAME))
        def results(compile):
            with torch.no_grad(): return [compile(each)(X) for each in (f, h)]
        """,
        [edit("def f", "\n\n\ndef f"), edit("g(x: int)", "g(x: int) -> int")],
    ),
    "the very same number": subject(
        """\
        A = float("2.5")
        B = float("2.5")
        def f(x): return x * 2 if A is B else x * 3
        results = infer(f, X)
        """,
        [edit('B = float("2.5")', "B = A")],
    ),
    "the very same number, by a function": subject(
        """\
        import operator
        A = float("2.5")
        B = float("2.5")
        def f(x): return x * 2 if operator.is_(A, B) else x * 3
        results = infer(f, X)
        """,
        [edit('B = float("2.5")', "B = A")],
    ),
    "a protocol's annotation": subject(
        """\
        from typing import Protocol, runtime_checkable
        class Base(Protocol):
            k: float
        @runtime_checkable
        class P(Base, Protocol):
            def go(self): ...
        class O:
            k = 2.0
            def go(self): return 2.0
        o = O()
        def f(x): return x * 2 if isinstance(o, P) else x * 3
        results = infer(f, X)
        """,
        [edit("k: float", "z: float")],
    ),
    "which NaN it is": subject(
        """\
        NAN = float("nan")
        L = [NAN, 1.0]
        def f(x): return x * 2 if NAN in L else x * 3
        results = infer(f, X)
        """,
        [edit("[NAN", '[float("nan")')],
    ),
    "the sign of a NaN": subject(
        """\
        import math
        K = float("nan")
        def f(x): return x * math.copysign(2.0, K)
        results = infer(f, X)
        """,
        [edit('float("nan")', '-float("nan")')],
    ),
    "an object's address": subject(
        """\
        class O: pass
        o = O()
        told = []
        def f(x):
            told.append(repr(o))
            return x * 2
        def results(compile):
            with torch.no_grad(): found = compile(f)(X)
            return [found, torch.tensor(told[0] == repr(o))]
        """,
        [edit("x * 2", "x * 3")],
    ),
    "the qualified name of a function that is made": subject(
        """\
        def make():
            def f(x):
                def inner(y): return y * 2
                return x * len(inner.__qualname__)
            return f
        results = infer(make(), X)
        """,
        [edit("make", "making_of_more")],
    ),
    "the module of a function that is made": subject(
        """\
        def f(x):
            def inner(y): return y * 2
            return x * len(inner.__module__)
        results = infer(f, X)
        """,
        [edit("results =", '__name__ = "another_module"\nresults =')],
    ),
    "a module that a package reads": with_package(
        "import nbcache_settings as settings",
        "return settings.FLAG",
        [edit("results =", "nbcache_settings.FLAG = False\nresults =")],
    ),
    "a module that a package imports as it runs": with_package(
        "",
        "import nbcache_settings as settings; return settings.FLAG",
        [edit("results =", "nbcache_settings.FLAG = False\nresults =")],
    ),
    "the working directory that a package reads": with_package(
        "import os",
        "return len(os.getcwd()) < 3",
        [edit("results =", 'os.chdir("/")\nresults ='), edit("results =", 'os.chdir("/usr")\nresults =')],
    ),
    "a text is the same as one in the code": subject(
        """\
        KIND = "fast"
        def f(x):
            kind = "fast"
            return x * 2 if KIND is kind else x * 3
        results = infer(f, X)
        """,
        [edit('KIND = "fast"', 'KIND = "".join(["fa", "st"])')],
    ),
    "a text of a class is the same as one that is made": subject(
        """\
        class C: KIND = "fast"
        def f(x): return x * 2 if C().KIND is sys.intern("fast") else x * 3
        results = infer(f, X)
        """,
        [edit('C: KIND = "fast"', 'C: KIND = "".join(["fa", "st"])')],
    ),
    "a module that is a default of a method": subject(
        """\
        plug = types.ModuleType("plug")
        sys.modules["plug"] = plug
        plug.K = 2.0
        class C:
            def go(s, x, p=plug): return x * p.K
        def f(x): return C().go(x)
        results = infer(f, X)
        """,
        [edit("plug.K = 2.0", "plug.K = 3.0")],
    ),
    "a module that a dataclass holds": subject(
        """\
        import dataclasses
        plug = types.ModuleType("plug")
        sys.modules["plug"] = plug
        plug.K = 2.0
        @dataclasses.dataclass
        class C:
            a: float
            mod: object = plug
        def f(x): return x * C(3.0).mod.K
        results = infer(f, X)
        """,
        [edit("plug.K = 2.0", "plug.K = 3.0")],
    ),
    "registered by way of another class": subject(
        """\
        import abc, numbers
        class Other(abc.ABC): pass
        class Th: pass
        th = Th()
        def f(x): return x * 2 if isinstance(th, numbers.Number) else x * 3
        results = infer(f, X)
        """,
        [edit("results =", "numbers.Number.register(Other); Other.register(Th)\nresults =")],
    ),
    "an order of bases that code makes": subject(
        """\
        G = True
        class M(type):
            def mro(cls):
                found = type.mro(cls)
                return found if G else [found[0], found[2], found[1], *found[3:]]
        class B:
            def go(s, x): return x + 1
        class D:
            def go(s, x): return x - 1
        class A(B, D, metaclass=M):
            def go(s, x): return super().go(x) * 2
        def f(x): return A().go(x)
        results = infer(f, X)
        """,
        [edit("G = True", "G = False")],
    ),
    "a constant among the built-in names": subject(
        """\
        import builtins
        builtins.NBK = 2.0
        def f(x): return x * NBK
        results = infer(f, X)
        """,
        [edit("NBK = 2.0", "NBK = 3.0"), edit("NBK = 2.0", "NBK = True")],
    ),
    "an instance that an instance of a package holds": with_package(
        "class S: pass\nsettings = S(); settings.inner = S(); settings.inner.FLAG = True",
        "return settings.inner.FLAG",
        [edit("results =", "nbcache_package.settings.inner.FLAG = False\nresults =")],
    ),
    "an instance that a package is asked about": with_package(
        "",
        "return it.inner.flag",
        [edit("flag = True", "flag = False")],
        holding="it.inner = It(); it.inner.flag = True",
    ),
    "an instance that a class of a package holds": with_package(
        "class S: pass\nstate = S(); state.inner = S(); state.inner.FLAG = True",
        "return cls.state.inner.FLAG",
        [edit("results =", "nbcache_package.state.inner.FLAG = False\nresults =")],
        holding="nbcache_package.Base.state = nbcache_package.state",
    ),
    "members of a flag that tracing makes": subject(
        """\
        import enum
        class P(enum.Flag):
            R = 1
            W = 2
        def f(x):
            n = len(P._value2member_map_)
            y = P.R | P.W
            return x * n + y.value
        results = infer(f, X)
        """,
        [edit("results =", "P.R | P.W\nresults =")],
    ),
    "how long a text of digits may be": subject(
        """\
        N = 1000
        def f(x):
            try: return x * len(str(10 ** N))
            except ValueError: return x * 3
        results = infer(f, X)
        """,
        [edit("results =", "sys.set_int_max_str_digits(700)\nresults =")],
    ),
    "a text that formats attributes": subject(
        """\
        class H: pass
        class C: inner = H()
        C.inner.deep = H()
        C.inner.deep.k = "x"
        TAB = {"x": 2.0, "y": 3.0}
        def f(x): return x * TAB["{0.inner.deep.k}".format(C)]
        results = infer(f, X)
        """,
        [edit('k = "x"', 'k = "y"')],
    ),
    "the limit of recursion by another name": subject(
        """\
        LIM = sys.getrecursionlimit
        def f(x): return x * LIM()
        results = infer(f, X)
        """,
        [edit("results =", "sys.setrecursionlimit(7000)\nresults =")],
    ),
    "the limit of recursion by a name that is made": subject(
        """\
        def f(x): return x * getattr(sys, "getrecursion" + "limit")()
        results = infer(f, X)
        """,
        [edit("results =", "sys.setrecursionlimit(7000)\nresults =")],
    ),
    "a codec that somebody registers": subject(
        """\
        import codecs
        codecs.register_error("nbx", lambda error: ("aa", error.end))
        def f(x): return x * len("\u00e4".encode("ascii", "nbx"))
        results = infer(f, X)
        """,
        [edit('"aa", error', '"aaa", error')],
    ),
    "numbers that are too small": subject(
        """\
        def f(x):
            k = 1e-200
            return x * (3 if k * 1e-115 != 0.0 else 4)
        results = infer(f, X)
        """,
        [edit("results =", "torch.set_flush_denormal(True)\nresults =")],
    ),
}
