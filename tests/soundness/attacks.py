"""Programs by which somebody who had not seen the code got stale answers from traces, and their edits.

Each was mended: no edit may be answered by a trace of before.
"""

from __future__ import annotations

from soundness.subjects import Subject, edit, subject

__all__ = ["ATTACKS"]

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
}
