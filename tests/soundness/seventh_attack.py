"""Programs of the seventh attack, whose traces answered for others, or after an edit."""

from __future__ import annotations

from soundness.subjects import Subject, edit, subject

__all__ = ["SEVENTH"]

DOUBLES = """class Mo(torch.overrides.TorchFunctionMode):
    def __torch_function__(s, f, t, a=(), k=None):
        r = f(*a, **(k or {}))
        return r * 2 if f is torch.Tensor.sin else r
"""
PASSES = """class Mo(torch.overrides.TorchFunctionMode):
    def __torch_function__(s, f, t, a=(), k=None): return f(*a, **(k or {}))
"""


def around(returned: str, scope: str) -> Subject:
    """Return a program that calls a function twice, and its edit: the first call is in another scope."""
    return subject(
        f"""\
        import contextlib
        scope = contextlib.nullcontext
        def f(x): {returned}
        def results(compile):
            g = compile(f)
            with torch.no_grad():
                with scope(): a = g(X)
                return [a, g(X)]
        """,
        [edit("scope = contextlib.nullcontext", scope)],
    )


SEVENTH: dict[str, Subject] = {
    "lazy tuple": subject(
        """\
        TABLE = {(int, str): 2.0}
        PAIR = (str, int)
        def f(x): return x * TABLE.get(PAIR, 9.0)
        results = infer(f, X)
        """,
        [edit("PAIR = (str, int)", "PAIR = (int, str)")],
    ),
    "lazy tuple in a module": subject(
        """\
        nn = torch.nn
        FUSIONS = {(nn.Linear, nn.ReLU): 2.0, (nn.Linear, nn.GELU): 3.0}
        KINDS = (nn.Linear, nn.Tanh)
        class M(nn.Module):
            def forward(s, x): return x * FUSIONS[KINDS] if KINDS in FUSIONS else x * 9.0
        results = infer(M(), X)
        """,
        [edit("nn.Tanh", "nn.GELU")],
    ),
    "lazy key of a table by no name": subject(
        """\
        class A: pass
        class B: pass
        class Desc:
            def __get__(s, obj, owner=None): return KEY in owner.table
        class C: table, d = {A: 1.0}, Desc()
        c, KEY = C(), B
        def f(x): return x * 2 if c.d else x * 3
        results = infer(f, X)
        """,
        [edit("C(), B", "C(), A")],
    ),
    "lazy set literal": subject(
        """\
        class A: pass
        class B: pass
        P, Q = (A, B), (B, A)
        def f(x): return x * len({P: 0, Q: 0})
        results = infer(f, X)
        """,
        [edit("(A, B), (B, A)", "(A, B), (A, B)")],
    ),
    "registered dataclass": subject(
        """\
        import torch.utils._pytree as pytree, dataclasses
        @dataclasses.dataclass
        class Batch: a: Tensor
        b = Batch(torch.ones(4, 4))
        def double(o): return o * 2 if isinstance(o, Tensor) else o
        def f(x): return x + pytree.tree_map(double, [b])[0].a
        results = infer(f, X)
        """,
        [edit("results =", "pytree.register_dataclass(Batch)\nresults =")],
    ),
    "registered constant": subject(
        """\
        import torch.utils._pytree as pytree, dataclasses
        @dataclasses.dataclass(frozen=True)
        class C: k: float = 2.0
        c = C()
        def f(x):
            r = pytree.tree_map(lambda o: 5.0, [c])[0]
            return x * (r if isinstance(r, float) else 3.0)
        results = infer(f, X)
        """,
        [edit("results =", "pytree.register_constant(C)\nresults =")],
    ),
    "pytree constant": subject(
        """\
        import torch.utils._pytree as pytree, dataclasses
        @dataclasses.dataclass(frozen=True)
        class In: v: int
        @dataclasses.dataclass(frozen=True)
        class Out: i: In
        pytree.register_constant(Out)
        A, B = Out(In(2)), Out(In(2))
        def f(x): return x * 2 if A in (B,) else x * 3
        results = infer(f, X)
        """,
        [edit("Out(In(2)), Out(In(2))", "Out(In(2)), Out(In(3))")],
    ),
    "pytree constant in an enum": subject(
        """\
        import torch.utils._pytree as pytree, dataclasses, enum
        @dataclasses.dataclass(frozen=True)
        class In: v: int
        @dataclasses.dataclass(frozen=True)
        class Out: i: In
        pytree.register_constant(Out)
        class E(enum.Enum):
            P = Out(In(2))
            Q = Out(In(3))
        A = Out(In(2))
        def f(x): return x * len(E(A).name) + (5 if E(A) is E.P else 7)
        results = infer(f, X)
        """,
        [edit("A = Out(In(2))", "A = Out(In(3))")],
    ),
    "name of a str enum in torch": subject(
        """\
        import enum
        class Act(enum.StrEnum):
            MINE = enum.auto()
            relu = enum.auto()
        ACT = Act.MINE
        def f(x): return getattr(torch, ACT, torch.sin)(x)
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.mine = lambda x: x * 5\nresults ="),
            edit("ACT = Act.MINE", "ACT = Act.relu"),
        ],
    ),
    "module in a default": subject(
        """\
        plug = types.ModuleType("nbcache_plug7")
        sys.modules["nbcache_plug7"] = plug
        plug.K, plug.J = 2.0, 1.0
        class C:
            def go(s, x, p=plug): return x * p.K
        def f(x): return C().go(x) + plug.J
        results = infer(f, X)
        """,
        [edit("2.0, 1.0", "3.0, 1.0")],
    ),
    "module in a dict of a closure": subject(
        """\
        plug = types.ModuleType("nbcache_plug7")
        sys.modules["nbcache_plug7"] = plug
        plug.K, plug.J = 2.0, 1.0
        def make(d):
            class C:
                def go(s, x): return x * d["m"].K
            return C
        C = make({"m": plug})
        def f(x): return C().go(x) + plug.J
        results = infer(f, X)
        """,
        [edit("2.0, 1.0", "3.0, 1.0")],
    ),
    "module of an enum": subject(
        """\
        plug = types.ModuleType("nbcache_plug7")
        sys.modules["nbcache_plug7"] = plug
        plug.K, plug.J = 2.0, 1.0
        import enum
        class E(enum.Enum): A = plug
        def f(x):
            for e in E: x = x * e.value.K
            return x + plug.J
        results = infer(f, X)
        """,
        [edit("2.0, 1.0", "3.0, 1.0")],
    ),
    "flag of a module": subject(
        """\
        plug = types.ModuleType("nbcache_plug7")
        sys.modules["nbcache_plug7"] = plug
        plug.K, plug.J = 2.0, 1.0
        plug.FLAG = True
        class Layer(torch.nn.Module):
            def forward(s, x, conf=plug): return x * 2 if conf.FLAG else x * 3
        def f(x): return Layer()(x) + plug.J
        results = infer(f, X)
        """,
        [edit("FLAG = True", "FLAG = False")],
    ),
    "list of a module": subject(
        """\
        plug = types.ModuleType("nbcache_plug7")
        sys.modules["nbcache_plug7"] = plug
        plug.K, plug.J = 2.0, 1.0
        plug.L = [2.0]
        class C:
            def go(s, x, p=plug): return x * p.L[0]
        def f(x): return C().go(x) + plug.J
        results = infer(f, X)
        """,
        [edit("[2.0]", "[3.0]")],
    ),
    "attribute of an operator": subject(
        """\
        op = torch.ops.aten.sin.default
        def f(x): return op(x) * getattr(op, "flag", 3.0)
        results = infer(f, X)
        """,
        [edit("results =", "op.flag = 2.0\nresults =")],
    ),
    "overload of an operator": subject(
        """\
        torch.library.define("nbcache7::one", "(Tensor x) -> Tensor")
        op = torch.ops.nbcache7.one
        def f(x): return x * 2 if hasattr(op, "out") else x * 3
        results = infer(f, X)
        """,
        [
            edit(
                "results =",
                'OUT = "(Tensor x, *, Tensor(a!) out) -> Tensor(a!)"\n'
                'torch.library.define("nbcache7::one.out", OUT)\nresults =',
            )
        ],
    ),
    "attribute of a higher order operator": subject(
        """\
        op = torch.ops.higher_order.cond
        def f(x): return x * 2 if hasattr(op, "flag") else x * 3
        results = infer(f, X)
        """,
        [edit("results =", "op.flag = 2.0\nresults =")],
    ),
    "attribute of a function of Dynamo's": subject(
        """\
        g = torch._dynamo.graph_break
        def f(x): return x * 2 if hasattr(g, "flag") else x * 3
        results = infer(f, X)
        """,
        [edit("results =", "g.flag = 2.0\nresults =")],
    ),
    "attribute of a static method": subject(
        """\
        class C:
            @staticmethod
            def g(x): return x
        def f(x): return x * 2 if hasattr(C.__dict__["g"], "flag") else x * 3
        results = infer(f, X)
        """,
        [edit("results =", "C.__dict__['g'].flag = 1\nresults =")],
    ),
    "ignored names": subject(
        """\
        def g(x): return x + 1
        def f(x): return getattr(g, "_torchdynamo_orig_callable", g)(x)
        results = infer(f, X)
        """,
        [edit("results =", "g._torchdynamo_orig_callable = lambda x: x * 5\nresults =")],
    ),
    "annotated": subject(
        """\
        import typing
        A = typing.Annotated[float, types.SimpleNamespace(v=2)]
        B = typing.Annotated[float, types.SimpleNamespace(v=2)]
        def f(x): return x * 2 if A == B else x * 3
        results = infer(f, X)
        """,
        [edit("v=2)]\ndef", "v=3)]\ndef")],
    ),
    "annotated text": subject(
        """\
        import dataclasses, typing
        @dataclasses.dataclass(frozen=True)
        class Conf: v: int
        A = typing.Annotated[float, Conf(2)]
        def f(x): return x * len(str(A))
        results = infer(f, X)
        """,
        [edit("Conf(2)", "Conf(222)")],
    ),
    "cells": subject(
        """\
        def cell(c): return (lambda: c).__closure__[0]
        N = types.SimpleNamespace
        A, B = cell(N(h=N(v=2))), cell(N(h=N(v=2)))
        def f(x): return x * 2 if A == B else x * 3
        results = infer(f, X)
        """,
        [edit("v=2)))\ndef", "v=3)))\ndef")],
    ),
    "annotated nested key": subject(
        """\
        import typing, dataclasses
        @dataclasses.dataclass
        class Conf: v: int
        A = typing.Annotated[float, Conf(2)]
        L = [typing.Annotated[float, Conf(2)], typing.Annotated[float, Conf(3)]]
        def f(x): return x * (2 + L.index(A)) if A in L else x * 9
        results = infer(f, X)
        """,
        [edit("A = typing.Annotated[float, Conf(2)]", "A = typing.Annotated[float, Conf(3)]")],
    ),
    "static marks": subject(
        """\
        T = torch.ones(4)
        def f(x): return x * 2 if hasattr(T, "_dynamo_weak_dynamic_indices") else x * 3
        results = infer(f, X)
        """,
        [edit("results =", "torch._dynamo.maybe_mark_dynamic(T, 0)\nresults =")],
    ),
    "nested doc after break": subject(
        """\
        def f(x):
            z = x * 2
            print("b")
            def g(y):
                "one"
                return y + 1
            return z + 1, g
        def results(compile):
            with torch.no_grad():
                y, g = compile(f)(X)
            line = g.__code__.co_firstlineno - f.__code__.co_firstlineno
            return [y, torch.tensor(len(g.__doc__)), torch.tensor(line)]
        """,
        [edit('"one"', '"number two"'), edit('print("b")', 'print("b")\n    # more\n')],
    ),
    "code equal": subject(
        r"""
        SRC = "def h(x): return x\n"
        exec(SRC); A = h
        exec(SRC); B = h
        def f(x): return x * 2 if A.__code__ == B.__code__ else x * 3
        results = infer(f, X)
        """,
        [edit("exec(SRC); B", 'exec("\\n" + SRC); B'), edit("exec(SRC); B", "B")],
    ),
    "script after break": subject(
        """\
        def f(x):
            x = x * 2
            print("b")
            def g(y: torch.Tensor):
                return y + 1
            return x, torch.jit.script(g)
        # HERE
        def results(compile):
            with torch.no_grad():
                y, g = compile(f)(X)
                return [y, g(y)]
        """,
        [edit("y + 1", "y + 2")],
    ),
    "source after break": subject(
        """\
        import inspect
        def f(x):
            x = x * 2
            print("b")
            def g(y):
                return y + 1
            return x, g
        # HERE
        def results(compile):
            with torch.no_grad():
                y, g = compile(f)(X)
                return [y, torch.tensor(len(inspect.getsource(g)))]
        """,
        [edit("y + 1", "y + 2"), edit('print("b")', 'print("b")\n    # one')],
    ),
    "code equal two cells": subject(
        """\
        first = 1
        # %%
        def A(x): return x
        first = A
        # %%
        def A(x): return x
        # %%
        def f(x): return x * 2 if first.__code__ == A.__code__ else x * 3
        # HERE
        results = infer(f, X)
        """,
        [
            edit("# %%\ndef A(x): return x\n# %%\n", "# %%\n\n\ndef A(x): return x\n# %%\n"),
            edit("# %%\ndef A(x): return x\n# %%\n", "# %%\n# a comment\ndef A(x): return x\n# %%\n"),
        ],
    ),
    "mode around": subject(
        """\
        import contextlib
        scope = contextlib.nullcontext
        def f(x): return x.sin() + 1
        # HERE
        def results(compile):
            g = compile(f)
            with torch.no_grad(), scope(): return [g(X)]
        """,
        [
            edit(
                "# HERE",
                DOUBLES + "scope = Mo\n# HERE",
            )
        ],
    ),
    "mode around train": subject(
        """\
        import contextlib
        scope = contextlib.nullcontext
        def f(x): return x.sin() + 1
        # HERE
        def results(compile):
            g = compile(f)
            x = X.clone().requires_grad_()
            with scope(): y = g(x)
            y.sum().backward()
            return [y.detach(), x.grad]
        """,
        [
            edit(
                "# HERE",
                DOUBLES + "scope = Mo\n# HERE",
            ),
            edit(
                "# HERE",
                DOUBLES + "mode = Mo()\nscope = lambda: mode\n# HERE",
            ),
            edit("# HERE", "scope = lambda: torch.device('cpu')\n# HERE"),
        ],
    ),
    "device meta": around(
        "return x * (2 if torch.ones(4).device.type == 'cpu' else 3)", "scope = lambda: torch.device('meta')"
    ),
    "default device meta": around(
        "return x * (2 if torch.ones(4).device.type == 'cpu' else 3)",
        "torch.set_default_device('meta'); X = X.cpu()\nscope = contextlib.nullcontext",
    ),
    "asks for modes": around(
        "return x * (2 if torch._C._is_torch_function_mode_enabled() else 3)", PASSES + "scope = Mo"
    ),
    "stack asked": around(
        "return x * (2 + len(torch.overrides._get_current_function_mode_stack()))", PASSES + "scope = Mo"
    ),
    "functorch around": subject(
        """\
        def f(x): return x.sin() * K
        K = 2.0
        # HERE
        def results(compile):
            g = compile(f)
            with torch.no_grad(): return [g(X[0])]
        """,
        [
            edit("[g(X[0])]", "[torch.vmap(g)(X)]"),
            edit("[g(X[0])]", "[torch.func.grad(lambda x: g(x).sum())(X[0])]"),
            edit("[g(X[0])]", "[torch.func.jvp(g, (X[0],), (X[1],))[1]]"),
            edit("[g(X[0])]", "[torch.func.jacrev(g)(X[0])]"),
        ],
    ),
    "forward ad": subject(
        """\
        import torch.autograd.forward_ad as fw
        def f(x): return x.sin() * K
        K = 2.0
        # HERE
        def results(compile):
            g = compile(f)
            with torch.no_grad(): return [g(X)]
        """,
        [
            edit(
                "[g(X)]",
                "[fw.unpack_dual(g(fw.make_dual(X, W))).tangent]",
                "with torch.no_grad():",
                "with fw.dual_level():",
            )
        ],
    ),
    "line of comprehension": subject(
        """\
        import traceback
        def h(v): raise ValueError("q")
        def f(x):
            x = x * 2
            print("b")
            y = x + 1
            l = [
                h(v) for v in [1]]
            return y
        # HERE
        def results(compile):
            with torch.no_grad():
                try: compile(f)(X)
                except ValueError as e:
                    steps = traceback.extract_tb(e.__traceback__)
                    lines = [s.lineno for s in steps]
                    return [torch.tensor(lines[-3:])]
        """,
        [],
    ),
    "line of lambda": subject(
        """\
        import traceback
        def f(x):
            x = x * 2
            print("b")
            y = x + 1
            return y, (lambda:
                1 / 0)
        # HERE
        def results(compile):
            with torch.no_grad():
                y, g = compile(f)(X)
                try: g()
                except ZeroDivisionError as e:
                    return [y, torch.tensor([s.lineno for s in traceback.extract_tb(e.__traceback__)][-1:])]
        """,
        [],
    ),
    "functions after a break": subject(
        """\
        def f(x):
            x = x * 2
            print("b")
            ks = [k * 2 for k in (1, 2)]
            g = lambda: "doc"
            h = lambda: "doc"
            print("c")
            class C:
                "doc of C"
                def go(s, y): return y * 3
            return x * sum(ks), g, h, C
        def results(compile):
            with torch.no_grad():
                y, g, h, C = compile(f)(X)
            line = f.__code__.co_firstlineno
            lines = [each.__code__.co_firstlineno - line for each in (g, h, C.go)]
            return [y, C().go(y), torch.tensor([len(g()), len(C.__doc__), *lines])]
        """,
        [
            edit('"doc of C"', '"another doc of C"'),
            edit('print("b")', '# one\n    print("b")'),
            edit('print("c")', '# one\n    print("c")'),
            edit("k * 2", "k * 3"),
            edit("y * 3", "y * 4"),
        ],
        [edit("def f", "# one\ndef f")],
    ),
    "a helper makes a function": subject(
        """\
        def make(k):
            def g(y):
                "doc"
                return y * k
            return g
        def f(x): return x * 2, make(3.0)
        def results(compile):
            with torch.no_grad(): y, g = compile(f)(X)
            return [y, g(y), torch.tensor([len(g.__doc__)])]
        """,
        [edit('"doc"', '"docs"'), edit("y * k", "y / k")],
    ),
    "proxy of a mapping": subject(
        """\
        import collections.abc
        N = []
        class M(collections.abc.Mapping):
            def __init__(s, d): s.d = d
            def __getitem__(s, k):
                N.append(k)
                return s.d[k]
            def __iter__(s): return iter(s.d)
            def __len__(s): return len(s.d)
        class C: pass
        c = C()
        c.p = types.MappingProxyType(M({"a": 2.0}))
        c.k = 3.0
        def f(x): return x * c.k
        # HERE
        def results(compile):
            with torch.no_grad(): return [compile(f)(X), torch.tensor(len(N))]
        """,
        [edit("c.k = 3.0", "c.k = 4.0")],
    ),
    "line of an error": subject(
        """\
        import traceback
        def f(x):
            x = x * 2
            print("b")
            h(x)
            return x
        def h(x): raise ValueError("q")
        # HERE
        def results(compile):
            with torch.no_grad():
                try: compile(f)(X)
                except ValueError as e:
                    first = f.__code__.co_firstlineno
                    steps = traceback.extract_tb(e.__traceback__)
                    lines = [s.lineno - first for s in steps if s.name in ("f", "h") or "resume" in s.name]
                    return [torch.tensor(lines[-2:])]
        """,
        [edit('print("b")', '# one\n    # two\n    print("b")')],
    ),
    "default device between": subject(
        """\
        def f(x): return x * (2 if torch.ones(4).device.type == "cpu" else 3)
        # HERE
        def results(compile):
            g = compile(f)
            with torch.no_grad():
                a = g(X)
                torch.set_default_device("meta")
                b = g(X)
                torch.set_default_device(None)
                return [a, b, g(X)]
        """,
        [],
    ),
    "mode between": subject(
        """\
        class Mo(torch.overrides.TorchFunctionMode):
            def __torch_function__(s, f, t, a=(), k=None):
                r = f(*a, **(k or {}))
                return r * 2 if f is torch.Tensor.sin else r
        def f(x): return x.sin() + 1
        # HERE
        def results(compile):
            g = compile(f)
            with torch.no_grad():
                a = g(X)
                with Mo(): b = g(X)
                return [a, b, g(X)]
        """,
        [],
    ),
}
