"""Programs of the fifth attack, by somebody who had not seen the code, and their edits."""

from __future__ import annotations

from soundness.subjects import Subject, edit, subject

__all__ = ["HELD", "MENDED"]

HELD: dict[str, Subject] = {
    "instance dict order": subject(
        """\
        class H: pass
        h = H()
        h.a = 2.0
        h.b = 3.0
        def f(x):
            for k, v in h.__dict__.items(): x = x * 2 + v
            return x
        results = infer(f, X)
        """,
        [
            edit("h.a = 2.0\nh.b = 3.0", "h.b = 3.0\nh.a = 2.0"),
            edit("h.b = 3.0", "h.b = 3.0\nh.c = 4.0"),
        ],
    ),
    "instance dict keys": subject(
        """\
        class H: pass
        h = H()
        h.a = 2.0
        h.b = 3.0
        def f(x):
            names = list(h.__dict__)
            return x * getattr(h, names[0])
        results = infer(f, X)
        """,
        [
            edit("h.a = 2.0\nh.b = 3.0", "h.b = 3.0\nh.a = 2.0"),
        ],
    ),
    "namespace order": subject(
        """\
        h = types.SimpleNamespace(a=2.0, b=3.0)
        def f(x):
            for k, v in h.__dict__.items(): x = x * 2 + v
            return x
        results = infer(f, X)
        """,
        [
            edit("a=2.0, b=3.0", "b=3.0, a=2.0"),
        ],
    ),
    "function dict order": subject(
        """\
        def g(x): return x
        g.a = 2.0
        g.b = 3.0
        def f(x):
            for k, v in g.__dict__.items(): x = x * 2 + v
            return x
        results = infer(f, X)
        """,
        [
            edit("g.a = 2.0\ng.b = 3.0", "g.b = 3.0\ng.a = 2.0"),
        ],
    ),
    "module dict order": subject(
        """\
        m = torch.nn.Linear(4, 4)
        m.a = 2.0
        m.b = 3.0
        def f(x):
            for k, v in m.__dict__.items():
                if isinstance(v, float): x = x * 2 + v
            return x
        results = infer(f, X)
        """,
        [
            edit("m.a = 2.0\nm.b = 3.0", "m.b = 3.0\nm.a = 2.0"),
        ],
    ),
    "frozen key nested": subject(
        """\
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class In: v: int = 2
        @dataclasses.dataclass(frozen=True)
        class Out: i: In = In(2)
        KEY = Out(In(2))
        D = {Out(In(2)): 5.0, Out(In(3)): 6.0}
        def f(x): return x * D[KEY]
        results = infer(f, X)
        """,
        [
            edit("KEY = Out(In(2))", "KEY = Out(In(3))"),
            edit("Out(In(3)): 6.0", "Out(In(2)): 6.0"),
        ],
    ),
    "frozen eq nested": subject(
        """\
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class In: v: int = 2
        @dataclasses.dataclass(frozen=True)
        class Out: i: In = In(2)
        A, B = Out(In(2)), Out(In(2))
        def f(x): return x * 2 if A == B else x * 3
        results = infer(f, X)
        """,
        [
            edit("Out(In(2)), Out(In(2))", "Out(In(2)), Out(In(3))"),
            edit("frozen=True", "frozen=True, eq=False"),
        ],
    ),
    "dataclass in list": subject(
        """\
        import dataclasses
        @dataclasses.dataclass
        class In: v: int = 2
        @dataclasses.dataclass
        class Out: i: In
        A, L = Out(In(2)), [Out(In(2)), Out(In(3))]
        def f(x): return x * (2 + L.index(A)) if A in L else x * 9
        results = infer(f, X)
        """,
        [
            edit("A, L = Out(In(2))", "A, L = Out(In(3))"),
            edit("[Out(In(2)), ", "["),
            edit("A, L = Out(In(2))", "A, L = Out(In(4))"),
        ],
    ),
    "dataclass fields": subject(
        """\
        import dataclasses
        @dataclasses.dataclass
        class Out:
            i: float = 3.0
            k: float = dataclasses.field(default=2.0, metadata={"w": 5.0})
        A = Out()
        def f(x):
            for each in dataclasses.fields(A): x = x * 2 + getattr(A, each.name) * each.metadata.get("w", 1.0)
            return x
        results = infer(f, X)
        """,
        [
            edit('"w": 5.0', '"w": 6.0'),
            edit("i: float = 3.0", "i: float = 4.0"),
            edit("i: float", "z: float"),
            edit("A = Out()", "A = Out(5.0)"),
        ],
    ),
    "replace": subject(
        """\
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class C:
            a: float = 2.0
            b: float = 3.0
            def __post_init__(s): object.__setattr__(s, "c", s.a * K)
        K = 2.0
        A = C()
        def f(x):
            n = dataclasses.replace(A, a=4.0)
            return x * n.c + n.b
        results = infer(f, X)
        """,
        [
            edit("K = 2.0", "K = 3.0"),
            edit("b: float = 3.0", "b: float = 4.0"),
            edit("a=4.0", "a=5.0"),
        ],
    ),
    "class docs": subject(
        """\
        def g(x):
            "doc"
            return x
        def f(x): return x * len(g.__code__.co_consts[0])
        results = infer(f, X)
        """,
        [
            edit('"doc"', '"document"'),
        ],
    ),
    "signature": subject(
        """\
        import inspect
        def g(x, k=2.0, *, z=3.0): return x * k
        def f(x):
            s = inspect.signature(g)
            return x * s.parameters["k"].default + len(s.parameters)
        results = infer(f, X)
        """,
        [
            edit("k=2.0", "k=3.0"),
            edit("*, z=3.0", "*, z=3.0, y=1"),
        ],
    ),
    "F relu inside": subject(
        """\
        F = torch.nn.functional
        def f(x): return F.relu(x) + 1
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.relu = lambda x: x * 3\nresults ="),
            edit("results =", "F.relu = lambda x: x * 3\nresults ="),
        ],
    ),
    "F softmax inside": subject(
        """\
        F = torch.nn.functional
        def f(x): return F.softmax(x, dim=-1) + 1
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.Tensor.softmax = lambda s, dim: s * 3\nresults ="),
            edit("results =", "F._get_softmax_dim = lambda *a: 0\nresults =", "dim=-1", "dim=None"),
        ],
    ),
    "F layer norm inside": subject(
        """\
        F = torch.nn.functional
        def f(x): return F.layer_norm(x, (4,))
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.layer_norm = lambda x, *a: x * 3\nresults ="),
        ],
    ),
    "F normalize inside": subject(
        """\
        F = torch.nn.functional
        def f(x): return F.normalize(x)
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.Tensor.norm = lambda s, *a, **k: s.abs().amax()\nresults ="),
            edit("results =", "torch.Tensor.clamp_min = lambda s, v: s + 1\nresults ="),
        ],
    ),
    "F silu tanhshrink": subject(
        """\
        F = torch.nn.functional
        def f(x): return F.silu(x) + F.tanhshrink(x) + F.softsign(x)
        results = infer(f, X)
        """,
        [
            edit("results =", "torch._C._nn.silu = lambda s: s * 3\nresults ="),
            edit("results =", "torch.Tensor.tanh = lambda s: s * 3\nresults ="),
            edit("results =", "torch.Tensor.abs = lambda s: s * 3\nresults ="),
        ],
    ),
    "tensor method": subject(
        """\
        def f(x): return x.relu() + x.sin()
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.Tensor.relu = lambda s: s * 3\nresults ="),
            edit("results =", "torch.Tensor.sin = lambda s: s * 3\nresults ="),
        ],
    ),
    "tensor operator": subject(
        """\
        def f(x, w): return (x + w) @ w - 2 * x
        results = infer(f, X, W)
        """,
        [
            edit("results =", "torch.Tensor.__matmul__ = lambda s, o: s * o\nresults ="),
            edit("results =", "torch.Tensor.__add__ = lambda s, o: s * o\nresults ="),
            edit("results =", "torch.Tensor.__rmul__ = lambda s, o: s.sin()\nresults ="),
            edit("results =", "torch.Tensor.__sub__ = lambda s, o: s.sin()\nresults ="),
        ],
    ),
    "tensor hasattr": subject(
        """\
        def f(x): return x * 2 if hasattr(x, "nbfoo") else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.Tensor.nbfoo = 1\nresults ="),
        ],
    ),
    "tensor getattr default": subject(
        """\
        def f(x): return x * getattr(x, "nbfoo", 3.0)
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.Tensor.nbfoo = 5.0\nresults ="),
        ],
    ),
    "parameter hasattr": subject(
        """\
        m = torch.nn.Linear(4, 4)
        def f(x): return m(x) * getattr(m.weight, "scale_by", 3.0)
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.nn.Parameter.scale_by = 5.0\nresults ="),
            edit("results =", "torch.Tensor.scale_by = 5.0\nresults ="),
            edit("results =", "m.weight.scale_by = 5.0\nresults ="),
        ],
    ),
    "einsum inside": subject(
        """\
        def f(x, w): return torch.einsum("ij,jk->ik", x, w)
        results = infer(f, X, W)
        """,
        [
            edit("results =", "torch.functional._VF.einsum = lambda e, o: o[0] * 3\nresults ="),
            edit("results =", "torch.einsum = lambda e, a, b: a * 3\nresults ="),
        ],
    ),
    "torch functional": subject(
        """\
        def f(x): return torch.norm(x) + torch.split(x, 2)[0].sum() + torch.meshgrid(x[0], x[1], \
indexing="ij")[0].sum()
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.norm = lambda x: x * 2\nresults ="),
        ],
    ),
    "linear layer inside": subject(
        """\
        nn = torch.nn
        m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(-1), nn.LayerNorm(4)).eval()
        results = infer(m, X)
        """,
        [
            edit("results =", "torch.relu = lambda x: x * 3\nresults ="),
            edit("results =", "torch.layer_norm = lambda x, *a: x * 3\nresults ="),
            edit("results =", "torch.Tensor.softmax = lambda s, dim: s * 3\nresults ="),
            edit("results =", "nn.functional.linear = lambda x, *a: x * 3\nresults ="),
        ],
    ),
    "states asked": subject(
        """\
        def f(x):
            x = x * 2 if torch.is_anomaly_enabled() else x * 3
            return x
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.autograd.set_detect_anomaly(True)\nresults ="),
        ],
    ),
    "states precision": subject(
        """\
        def f(x): return x * len(torch.get_float32_matmul_precision())
        results = infer(f, X)
        """,
        [
            edit("results =", 'torch.set_float32_matmul_precision("high")\nresults ='),
        ],
    ),
    "states deterministic": subject(
        """\
        def f(x):
            x = x * 2 if torch.are_deterministic_algorithms_enabled() else x * 3
            return x + 1 if torch.is_deterministic_algorithms_warn_only_enabled() else x
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.use_deterministic_algorithms(True)\nresults ="),
            edit("results =", "torch.use_deterministic_algorithms(True, warn_only=True)\nresults ="),
        ],
    ),
    "states flags": subject(
        """\
        b = torch.backends
        def f(x):
            x = x * 2 if b.mkldnn.enabled else x * 3
            x = x + 1 if b.cudnn.benchmark else x + 2
            return x
        results = infer(f, X)
        """,
        [
            edit("results =", "b.mkldnn.enabled = False\nresults ="),
            edit("results =", "b.cudnn.benchmark = True\nresults ="),
        ],
    ),
    "states tf32": subject(
        """\
        b = torch.backends
        def f(x): return x * 2 if b.cuda.matmul.allow_tf32 else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "b.cuda.matmul.allow_tf32 = True\nresults ="),
        ],
    ),
    "states threads": subject(
        """\
        def f(x): return x * torch.get_num_threads()
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.set_num_threads(7)\nresults ="),
        ],
    ),
    "states mha": subject(
        """\
        def f(x): return x * 2 if torch.backends.mha.get_fastpath_enabled() else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.backends.mha.set_fastpath_enabled(False)\nresults ="),
        ],
    ),
    "states dtype": subject(
        """\
        def f(x):
            x = x * torch.finfo(torch.get_default_dtype()).bits
            return x + torch.tensor(2.0).element_size() + torch.empty(1).element_size()
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.set_default_dtype(torch.float64)\nresults ="),
        ],
    ),
    "set grad": subject(
        """\
        ON = False
        def f(x):
            with torch.set_grad_enabled(ON): y = x * 2
            return y * x
        results = train(f, X)
        """,
        [
            edit("ON = False", "ON = True"),
        ],
    ),
    "grad decorators": subject(
        """\
        @torch.no_grad()
        def g(x): return x * 2
        def f(x): return g(x) * x
        results = train(f, X)
        """,
        [
            edit("@torch.no_grad()\n", "@torch.enable_grad()\n"),
            edit("@torch.no_grad()\n", ""),
            edit("results =", "g = g.__wrapped__\nresults ="),
        ],
    ),
    "inference outside": subject(
        """\
        def f(x): return x * 2 if torch.is_inference_mode_enabled() else x * 3
        def results(compile):
            with torch.no_grad(): return [compile(f)(X)]
        """,
        [
            edit("torch.no_grad(): return [c", "torch.inference_mode(): return [c"),
        ],
    ),
    "grad enabled asked": subject(
        """\
        def f(x): return x * 2 if torch.is_grad_enabled() else x * 3
        def g(x):
            with torch.no_grad(): y = f(x)
            return y + f(x)
        def results(compile): return [compile(g)(X)]
        """,
        [
            edit(
                "return [compile(g)(X)]",
                "\n        torch.set_grad_enabled(False)\n        return [compile(g)(X)]",
            ),
            edit("with torch.no_grad()", "with torch.enable_grad()"),
        ],
    ),
    "saved state of a context": subject(
        """\
        class Depth:
            now = 0
            def __enter__(s): Depth.now += 1
            def __exit__(s, *a): Depth.now -= 1
        D = Depth()
        def g(x): return x * (1 + Depth.now)
        def f(x):
            with D: y = g(x)
            return y + g(x)
        results = infer(f, X)
        """,
        [
            edit("now = 0", "now = 1"),
            edit("Depth.now += 1", "Depth.now += 2"),
            edit("results =", "D.__enter__()\nresults ="),
        ],
    ),
    "sdpa": subject(
        """\
        from torch.nn.attention import sdpa_kernel, SDPBackend
        B = SDPBackend.MATH
        def f(x):
            q = x.view(1, 1, 4, 4)
            with sdpa_kernel(B): y = torch.nn.functional.scaled_dot_product_attention(q, q, q, scale=S)
            return y * 2 if torch.backends.cuda.math_sdp_enabled() else y * 3
        S = 0.5
        results = infer(f, X)
        """,
        [
            edit("S = 0.5", "S = 0.25"),
            edit("results =", "torch.backends.cuda.enable_math_sdp(False)\nresults ="),
        ],
    ),
    "context variable": subject(
        """\
        import contextvars
        CV = contextvars.ContextVar("CV", default=1.0)
        CV.set(2.0)
        def f(x): return x * CV.get()
        results = infer(f, X)
        """,
        [
            edit("CV.set(2.0)", "CV.set(3.0)"),
            edit("CV.set(2.0)\n", ""),
        ],
    ),
    "nested compile": subject(
        """\
        K = 2.0
        def g0(x): return x * K
        g = torch.compile(g0)
        def f(x): return g(x) + 1
        results = infer(f, X)
        """,
        [
            edit("K = 2.0", "K = 3.0"),
            edit("x * K", "x / K"),
            edit("g = torch.compile(g0)", "g = torch.compile(lambda x: x - 5)"),
            edit("g = torch.compile(g0)", "g = torch.compiler.disable(lambda x: x - 5)"),
        ],
    ),
    "partials": subject(
        """\
        def g(x, k=1.0, *, z=2.0): return x * k + z
        P = functools.partial(g, k=3.0)
        Q = functools.partial(P, z=4.0)
        def f(x): return P(x) + Q(x)
        results = infer(f, X)
        """,
        [
            edit("k=3.0", "k=5.0"),
            edit("z=4.0", "z=5.0"),
            edit("partial(P, z=4.0)", "partial(P, z=4.0, k=7.0)"),
            edit("z=2.0", "z=9.0"),
            edit("results =", "P.keywords['k'] = 8.0\nresults ="),
            edit("results =", "Q = functools.partial(torch.mul, other=3.0)\nresults ="),
        ],
    ),
    "partial in class": subject(
        """\
        def g(s, x, k): return x * k * s.v
        class C:
            v = 2.0
            m = functools.partialmethod(g, k=3.0)
            n = functools.partial(torch.mul, other=2.0)
        c = C()
        def f(x): return c.n(x)
        results = infer(f, X)
        """,
        [
            edit("other=2.0", "other=3.0"),
            edit("functools.partial(torch.mul, other=2.0)", "lambda s, x: x * 9"),
        ],
    ),
    "reduce accumulate": subject(
        """\
        import itertools, operator
        L = [1.0, 2.0, 3.0]
        OP = operator.add
        def f(x):
            x = x * functools.reduce(OP, L, 1.0)
            for v in itertools.accumulate(L, OP): x = x + v
            return x
        results = infer(f, X)
        """,
        [
            edit("OP = operator.add", "OP = operator.mul"),
            edit("OP = operator.add", "OP = lambda a, b: a - b"),
            edit("2.0, 3.0", "2.0, 4.0"),
            edit("2.0, 3.0", "3.0, 2.0", "operator.add", "operator.sub"),
        ],
    ),
    "chain product": subject(
        """\
        import itertools
        A, B = [1.0, 2.0], (3.0, 4.0)
        def f(x):
            for v in itertools.chain(A, B): x = x * 2 + v
            for a, b in itertools.product(A, B): x = x + a * b
            for a, b in zip(A, itertools.cycle(B)): x = x * 2 + b
            for v in itertools.islice(itertools.count(START), 2): x = x + v
            return x
        START = 3
        results = infer(f, X)
        """,
        [
            edit("A, B = [1.0, 2.0]", "A, B = [2.0, 1.0]"),
            edit("(3.0, 4.0)", "(4.0, 3.0)"),
            edit("START = 3", "START = 4"),
            edit("START = 3", "START = 3.5"),
            edit("(3.0, 4.0)", "(3.0, 4.0, 5.0)"),
        ],
    ),
    "pairwise takewhile": subject(
        """\
        import itertools
        L = [1, 3, 2, 5]
        LIMIT = 3
        def small(v): return v < LIMIT
        def f(x):
            for a, b in itertools.pairwise(L): x = x * 2 + (a - b)
            for v in itertools.takewhile(small, L): x = x + v
            for v in itertools.filterfalse(small, L): x = x * v
            for k, g in itertools.groupby(L, key=lambda v: v % 2): x = x + k * len(list(g))
            return x
        results = infer(f, X)
        """,
        [
            edit("[1, 3, 2, 5]", "[1, 2, 3, 5]"),
            edit("LIMIT = 3", "LIMIT = 6"),
            edit("v < LIMIT", "v > LIMIT"),
            edit("v % 2", "v % 3"),
        ],
    ),
    "operator getters": subject(
        """\
        import operator
        class C:
            a = 2.0
            def go(s, k): return s.a * k
        c = C()
        T = (3.0, 4.0)
        NAME = "a"
        def f(x):
            x = x * operator.attrgetter(NAME)(c) + operator.itemgetter(AT)(T)
            return x + operator.methodcaller("go", 5.0)(c)
        AT = 0
        results = infer(f, X)
        """,
        [
            edit("a = 2.0", "a = 3.0"),
            edit("AT = 0", "AT = 1"),
            edit("(3.0, 4.0)", "(5.0, 4.0)"),
            edit("s.a * k", "s.a - k"),
            edit('NAME = "a"', 'NAME = "b"\nC.b = 9.0'),
        ],
    ),
    "counter": subject(
        """\
        import collections
        C = collections.Counter("aabbbc")
        def f(x):
            for k, n in C.items(): x = x * 2 + n
            return x + C["zz"] + C["a"]
        results = infer(f, X)
        """,
        [
            edit('"aabbbc"', '"bbbaac"'),
            edit('"aabbbc"', '"aabbb"'),
            edit("results =", 'C["zz"] = 4\nresults ='),
        ],
    ),
    "default dict": subject(
        """\
        import collections
        D = collections.defaultdict(lambda: K)
        D["a"] = 2.0
        K = 5.0
        def f(x): return x * D["a"] + D["b"]
        results = infer(f, X)
        """,
        [
            edit("K = 5.0", "K = 6.0"),
            edit('D["a"] = 2.0', 'D["a"] = 3.0'),
            edit("results =", 'D["b"] = 9.0\nresults ='),
        ],
    ),
    "dict views": subject(
        """\
        D = {"b": 2.0, "a": 3.0}
        E = {"a": 1.0}
        KEYS = D.keys()
        def f(x):
            for v in D.values(): x = x * 2 + v
            x = x * len(D.keys() & E.keys())
            return x + (list(D)[0] == "b") + (("a", 1.0) in E.items())
        results = infer(f, X)
        """,
        [
            edit('E = {"a": 1.0}', 'E = {"c": 1.0}'),
            edit('E = {"a": 1.0}', 'E = {"a": 1.5}'),
        ],
    ),
    "ordered dict equal": subject(
        """\
        from collections import OrderedDict
        A = OrderedDict(a=1, b=2)
        B = OrderedDict(a=1, b=2)
        def f(x): return x * 2 if A == B else x * 3
        results = infer(f, X)
        """,
        [
            edit("B = OrderedDict(a=1, b=2)", "B = OrderedDict(b=2, a=1)"),
            edit("B = OrderedDict(a=1, b=2)", "B = dict(b=3, a=1)"),
        ],
    ),
    "wraps stack": subject(
        """\
        def scale(k):
            def deco(g):
                @functools.wraps(g)
                def wrapped(*a, **kw): return g(*a, **kw) * k
                return wrapped
            return deco
        @scale(2.0)
        @scale(3.0)
        def g(x): return x + 1
        def f(x): return g(x) + g.__wrapped__(x) + len(g.__name__)
        results = infer(f, X)
        """,
        [
            edit("scale(2.0)", "scale(4.0)"),
            edit("@scale(2.0)\n@scale(3.0)", "@scale(3.0)\n@scale(2.0)"),
            edit("x + 1", "x + 2"),
        ],
    ),
    "shapes in python": subject(
        """\
        T = torch.zeros(3, 5)
        def f(x): return x * T.shape[1] + len(T) + T.numel() + T.dim() + T.element_size() + T.stride(0)
        results = infer(f, X)
        """,
        [
            edit("zeros(3, 5)", "zeros(3, 7)"),
            edit("zeros(3, 5)", "zeros(5, 5)"),
            edit("zeros(3, 5)", "zeros(3, 5, 1)"),
            edit("zeros(3, 5)", "zeros(3, 5, dtype=torch.float64)"),
            edit("zeros(3, 5)", "zeros(5, 3).t()"),
            edit("zeros(3, 5)", "zeros(3, 9)[:, :5]"),
        ],
    ),
    "layouts in python": subject(
        """\
        T = torch.zeros(2, 3, 4, 4)
        def f(x):
            x = x * 2 if T.is_contiguous() else x * 3
            x = x + 1 if T.is_contiguous(memory_format=torch.channels_last) else x + 2
            return x + T.storage_offset() + T.untyped_storage().nbytes() / 1000
        results = infer(f, X)
        """,
        [
            edit("zeros(2, 3, 4, 4)", "zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)"),
            edit("zeros(2, 3, 4, 4)", "zeros(3, 3, 4, 4)[1:]"),
            edit("zeros(2, 3, 4, 4)", "zeros(2, 4, 3, 4).transpose(1, 2)"),
        ],
    ),
    "size arithmetic": subject(
        """\
        S = torch.Size([2, 3])
        def f(x):
            n = S.numel() + sum(S[:1] + (4,)) + S[-1]
            a, b = S
            return x * n + a - b + (S == (2, 3)) + isinstance(S, tuple) + hasattr(S, "numel")
        results = infer(f, X)
        """,
        [
            edit("Size([2, 3])", "Size([3, 2])"),
            edit("Size([2, 3])", "Size([2, 4])"),
        ],
    ),
    "bool and int": subject(
        """\
        A = 1
        D = {True: 2.0}
        def f(x):
            x = x * D[A] + A
            x = x * 3 if isinstance(A, bool) else x
            return x + len(str(A)) + (~A)
        results = infer(f, X)
        """,
        [
            edit("A = 1", "A = True"),
            edit("A = 1", "A = 1.0", " + (~A)", ""),
            edit("{True: 2.0}", "{1: 4.0}"),
        ],
    ),
    "zeros": subject(
        """\
        Z = 0.0
        def f(x): return x * math.copysign(2.0, Z) + torch.atan2(x * 0, torch.full_like(x, Z))
        results = infer(f, X)
        """,
        [
            edit("Z = 0.0", "Z = -0.0"),
            edit("Z = 0.0", "Z = float('-inf')"),
        ],
    ),
    "zeros within": subject(
        """\
        import collections
        P = collections.namedtuple("P", "a b")
        T, D, L, S = P(0.0, 1), {"k": (0.0,)}, [0.0], slice(0, 0.0)
        def f(x): return x * math.copysign(2.0, T.a) + math.copysign(3.0, D["k"][0]) * math.copysign(5.0, \
L[0])
        results = infer(f, X)
        """,
        [
            edit("P(0.0, 1)", "P(-0.0, 1)"),
            edit("(0.0,)}", "(-0.0,)}"),
            edit("[0.0]", "[-0.0]"),
        ],
    ),
    "complex": subject(
        """\
        Z = complex(0.0, 2.0)
        def f(x): return x * Z.imag + math.copysign(3.0, Z.real) + abs(Z)
        results = infer(f, X)
        """,
        [
            edit("complex(0.0, 2.0)", "complex(-0.0, 2.0)"),
            edit("complex(0.0, 2.0)", "complex(0.0, 3.0)"),
        ],
    ),
    "complex in graph": subject(
        """\
        Z = complex(0.0, 2.0)
        def f(x): return (x * Z).imag + (x + Z).real
        results = infer(f, X)
        """,
        [
            edit("complex(0.0, 2.0)", "complex(1.0, 2.0)"),
            edit("complex(0.0, 2.0)", "complex(0.0, 3.0)"),
        ],
    ),
    "big ints": subject(
        """\
        N = 2 ** 70
        def f(x): return x * (N % 1000) + N.bit_length() + float(N >> 65)
        results = infer(f, X)
        """,
        [
            edit("2 ** 70", "2 ** 71"),
            edit("2 ** 70", "2 ** 70 + 1"),
            edit("2 ** 70", "float(2 ** 70)", " + N.bit_length() + float(N >> 65)", ""),
        ],
    ),
    "close floats": subject(
        """\
        A = 0.1 + 0.2
        INF = float("inf")
        def f(x):
            x = x * 2 if A == 0.3 else x * 3
            x = x + 1 if math.isinf(INF) and INF > 0 else x - 1
            return x * len(f"{A:.20f}".rstrip("0")) + len(repr(A))
        results = infer(f, X)
        """,
        [
            edit("A = 0.1 + 0.2", "A = 0.3"),
            edit('float("inf")', 'float("-inf")'),
            edit('float("inf")', "1e308"),
        ],
    ),
    "module numbers": subject(
        """\
        class M(torch.nn.Module):
            def __init__(s):
                super().__init__()
                s.n, s.k, s.flag, s.t = 2, 3.0, True, (1, 2.0)
            def forward(s, x):
                for _ in range(s.n): x = x * s.k
                return x + s.t[1] if s.flag else x - s.t[0]
        m = M()
        results = infer(m, X)
        """,
        [
            edit("results =", "m.n = 3\nresults ="),
            edit("results =", "m.flag = 0\nresults ="),
            edit("results =", "m.t = [1, 5.0]\nresults ="),
            edit("results =", "del m.k\nM.k = 7.0\nresults ="),
        ],
        [
            edit("results =", "other = M()\nother.k = 9.0\nresults ="),
        ],
    ),
    "config numbers": subject(
        """\
        class Config:
            def __init__(s, **k): s.__dict__.update(k)
            def __getitem__(s, name): return getattr(s, name)
        c = Config(layers=2, scale=0.5, act="relu", extra={"eps": 1e-5})
        def f(x):
            for _ in range(c.layers): x = getattr(torch, c.act)(x) * c["scale"] + c.extra["eps"]
            return x
        results = infer(f, X)
        """,
        [
            edit("layers=2", "layers=3"),
            edit("scale=0.5", "scale=0.25"),
            edit('"relu"', '"sin"'),
            edit("1e-5", "1.0"),
            edit("getattr(s, name)", "getattr(s, name) * 3"),
        ],
        [
            edit("results =", "d = Config(layers=5)\nresults ="),
        ],
    ),
    "lens": subject(
        """\
        L, D, S, T, R1 = [1, 2], {"a": 1}, {1, 2, 3}, "text", range(2, 10, 3)
        class Q:
            def __len__(s): return N
        N, q = 4, Q()
        def f(x): return x * len(L) + len(D) * 2 + len(S) * 3 + len(T) * 5 + len(R1) * 7 + len(q) * 11
        results = infer(f, X)
        """,
        [
            edit("L, D, S, T, R1 = [1, 2]", "L, D, S, T, R1 = [1]"),
            edit('{"a": 1}', '{"a": 1, "b": 1}'),
            edit("{1, 2, 3}", "{1, 2}"),
            edit('"text"', '"texts"'),
            edit("range(2, 10, 3)", "range(2, 10, 2)"),
            edit("N, q = 4", "N, q = 5"),
        ],
    ),
    "input numbers": subject(
        """\
        def f(x, n): return x * n + (1 if isinstance(n, bool) else 2)
        N = 1
        def results(compile):
            with torch.no_grad(): return [compile(f)(X, N)]
        """,
        [
            edit("N = 1", "N = True"),
            edit("N = 1", "N = 2"),
            edit("N = 1", "N = -0.0"),
            edit("N = 1", "N = torch.tensor(3)"),
        ],
    ),
    "index protocol": subject(
        """\
        class I:
            def __init__(s, v): s.v = v
            def __index__(s): return s.v * K
        i, K = I(1), 1
        L = [2.0, 3.0, 4.0]
        def f(x): return x * L[i] + x[i]
        results = infer(f, X)
        """,
        [
            edit("I(1), 1", "I(2), 1"),
            edit("I(1), 1", "I(1), 2"),
            edit("L = [2.0, 3.0", "L = [2.0, 7.0"),
        ],
    ),
    "float protocol": subject(
        """\
        class V:
            def __init__(s, v): s.v = v
            def __float__(s): return s.v
            def __int__(s): return 7
            def __bool__(s): return s.v > LIMIT
            def __abs__(s): return 5.0
            def __neg__(s): return 6.0
            def __round__(s, n=0): return 8.0
        v, LIMIT = V(2.0), 1
        def f(x): return (x * abs(v) + -v) * (2 if v else 3)
        results = infer(f, X)
        """,
        [
            edit("V(2.0), 1", "V(2.0), 3"),
            edit("return 5.0", "return 5.5"),
            edit("return 6.0", "return 6.5"),
            edit("V(2.0), 1", "V(0.0), 1"),
        ],
    ),
    "module in a class": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        class C:
            mod = plug
        def f(x): return x * C().mod.K
        results = infer(f, X)
        """,
        [
            edit("plug.K = 2.0", "plug.K = 3.0"),
            edit("results =", "plug.K = 3\nresults ="),
        ],
    ),
    "module in a class of an instance": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        class C:
            mod = plug
            def go(s, x): return x * s.mod.K
        c = C()
        def f(x): return c.go(x) + C.mod.K
        results = infer(f, X)
        """,
        [
            edit("plug.K = 2.0", "plug.K = 3.0"),
        ],
    ),
    "module in a static method": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        class C:
            @staticmethod
            def go(x, p=plug): return x * p.K
            @classmethod
            def come(cls, x, p=plug): return x + p.K
            @property
            def k(s, p=plug): return p.K
        def f(x): return C().go(x) + C().come(x) + C().k
        results = infer(f, X)
        """,
        [
            edit("plug.K = 2.0", "plug.K = 3.0"),
        ],
    ),
    "module in an enum": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        import enum
        class E(enum.Enum):
            A = plug
        def f(x): return x * E.A.value.K
        results = infer(f, X)
        """,
        [
            edit("plug.K = 2.0", "plug.K = 3.0"),
        ],
    ),
    "module in a metaclass": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        class M(type):
            mod = plug
            def go(cls, x): return x * cls.mod.K
        class C(metaclass=M): pass
        def f(x): return C.go(x) + type(C()).mod.K
        results = infer(f, X)
        """,
        [
            edit("plug.K = 2.0", "plug.K = 3.0"),
        ],
    ),
    "module by import": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        def f(x):
            import nbcache_plug5 as p
            from nbcache_plug5 import K
            return x * p.K + K
        results = infer(f, X)
        """,
        [
            edit("plug.K = 2.0", "plug.K = 3.0"),
        ],
    ),
    "torch module in a class": subject(
        """\
        import torch.nn.functional as F
        class C:
            ops = F
            act = "relu"
        def f(x): return getattr(C().ops, C().act)(x)
        results = infer(f, X)
        """,
        [
            edit('"relu"', '"silu"'),
            edit("results =", "F.relu = lambda x: x * 5\nresults ="),
        ],
    ),
    "registered by way of another": subject(
        """\
        import abc
        class Proto(abc.ABC): pass
        class Other(abc.ABC): pass
        class Th: pass
        th = Th()
        def f(x): return x * 2 if isinstance(th, Proto) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "Proto.register(Other)\nOther.register(Th)\nresults ="),
            edit("results =", "class Sub(Proto): pass\nSub.register(Other)\nOther.register(Th)\nresults ="),
        ],
        [
            edit("results =", "Proto.register(Other)\nresults ="),
        ],
    ),
    "metaclass mro": subject(
        """\
        G = True
        class M(type):
            def mro(cls): return [c for c in type.mro(cls) if G or c.__name__ != "B"]
        class B: pass
        class A(B, metaclass=M): pass
        a = A()
        def f(x): return x * 2 if isinstance(a, B) else x * 3
        results = infer(f, X)
        """,
        [
            edit("G = True", "G = False"),
        ],
    ),
    "metaclass mro attributes": subject(
        """\
        G = True
        class M(type):
            def mro(cls):
                found = type.mro(cls)
                return found if G else [found[0], found[2], found[1], *found[3:]]
        class B:
            k = 2.0
            def go(s, x): return x + 1
        class D:
            k = 3.0
            def go(s, x): return x - 1
        class A(B, D, metaclass=M): pass
        a = A()
        def f(x): return a.go(x) * a.k + A.k + A().k
        results = infer(f, X)
        """,
        [
            edit("G = True", "G = False"),
        ],
    ),
    "text is default": subject(
        """\
        KIND = "fast"
        def g(x, kind="fast"): return x * 2 if kind is KIND else x * 3
        def f(x): return g(x)
        results = infer(f, X)
        """,
        [
            edit('KIND = "fast"', 'KIND = "".join(["fa", "st"])'),
        ],
    ),
    "number is attribute": subject(
        """\
        K = float("2.5")
        class C: a, b = K, K
        def f(x): return x * 2 if C().a is C().b else x * 3
        results = infer(f, X)
        """,
        [
            edit("a, b = K, K", 'a, b = K, float("2.5")'),
        ],
    ),
    "method is": subject(
        """\
        class C:
            def m(s): pass
        c = C()
        A = c.m
        B = c.m
        def f(x): return x * 2 if A is B else x * 3
        results = infer(f, X)
        """,
        [
            edit("B = c.m", "B = A"),
        ],
    ),
    "f strings": subject(
        """\
        K, N, S = 2.5, 7, "ab"
        TAB = {"2.50": 2.0, "0007": 3.0, "  ab": 4.0, "7": 5.0, "'ab'": 6.0, "2.5": 7.0}
        def f(x):
            x = x * TAB[f"{K:.2f}"] + TAB[f"{N:04d}"]
            return x * TAB[f"{S:>4}"] + TAB[f"{S!r}"] - TAB["%d" % N] + TAB["{:{w}.1f}".format(K, w=W2)]
        W2 = 3
        results = infer(f, X)
        """,
        [
            edit('"2.50": 2.0', '"2.50": 2.25'),
            edit(":04d", ":04d", "N:04d", "N:d"),
        ],
    ),
    "text methods": subject(
        """\
        NAME = "Layer_One.norm"
        def f(x):
            a, _, b = NAME.partition(".")
            x = x * len(a.lower().split("_")) + (2 if b.startswith(PRE) else 3)
            x = x + NAME.count("n") * 5 + NAME.find("norm") + len(NAME.title().replace("_", "")) + \
NAME.isidentifier()
            return x * 2 if "norm" in NAME and NAME.casefold() < "m" else x
        PRE = ("no", "na")
        results = infer(f, X)
        """,
        [
            edit('"Layer_One.norm"', '"Layer_One.conv"'),
            edit('"Layer_One.norm"', '"Layer_One_Two.norm"'),
            edit('("no", "na")', '("x",)'),
            edit('"Layer_One.norm"', '"Mayer_One.norm"'),
        ],
    ),
    "computed attributes": subject(
        """\
        class H: pass
        h = H()
        h.w_0, h.w_1 = 2.0, 3.0
        PRE = "w_"
        def f(x):
            for i in range(3):
                name = PRE + str(i)
                if hasattr(h, name): x = x * 2 + getattr(h, name)
            setattr(h, f"{PRE}9", 4.0)
            return x + h.w_9
        results = infer(f, X)
        """,
        [
            edit("results =", "h.w_2 = 5.0\nresults ="),
            edit("2.0, 3.0", "2.0, 4.0"),
            edit('PRE = "w_"', 'PRE = "v_"\nh.v_1 = 6.0', "x + h.w_9", "x + h.v_9"),
            edit("results =", "H.w_2 = 7.0\nresults ="),
            edit("results =", "del h.w_1\nresults ="),
            edit("results =", "H.w_9 = property(lambda s: 8.0, lambda s, v: None)\nresults ="),
        ],
    ),
    "methods by name": subject(
        """\
        class Net:
            def on_a(s, x): return x * 2
            def on_b(s, x): return x * 3
            def run(s, x):
                for k in KINDS: x = getattr(s, "on_" + k)(x) + 1
                return x
        KINDS = ["a", "b"]
        n = Net()
        def f(x): return n.run(x)
        results = infer(f, X)
        """,
        [
            edit('["a", "b"]', '["b", "a"]'),
            edit("x * 3", "x * 4"),
            edit("results =", "n.on_a = lambda x: x * 9\nresults ="),
            edit("results =", "Net.on_b = Net.on_a\nresults ="),
            edit('["a", "b"]', '"bab"'),
        ],
    ),
    "enums": subject(
        """\
        import enum
        class E(enum.Enum):
            A = 2.0
            B = 3.0
            C = 2.0
            @property
            def twice(s): return s.value * 2
            @classmethod
            def pick(cls): return cls.B
        def f(x):
            x = x * E.C.value + len(E.C.name) + len(E)
            for e in E: x = x * 2 + e.value
            x = x * E["B"].value + E(3.0).twice
            return x + 1 if E.C is E.A else x - 1 if E.pick() is E.B else x
        results = infer(f, X)
        """,
        [
            edit("C = 2.0", "C = 4.0"),
            edit("A = 2.0\n    B = 3.0", "B = 3.0\n    A = 2.0"),
            edit("s.value * 2", "s.value * 3"),
        ],
    ),
    "flags": subject(
        """\
        import enum
        class P(enum.Flag):
            R = 1
            W = 2
            RW = 3
        p = P.R
        def f(x):
            x = x * 2 if P.W in p else x * 3
            return x + p.value + (5 if p & P.R else 7)
        results = infer(f, X)
        """,
        [
            edit("p = P.R", "p = P.RW"),
            edit("p = P.R", "p = P.W"),
            edit("p = P.R", "p = P.R | P.W"),
            edit("R = 1\n    W = 2", "W = 1\n    R = 2"),
        ],
    ),
    "text enums": subject(
        """\
        import enum
        class Mode(str, enum.Enum):
            FAST = "fast"
            SLOW = "slow"
        mode = Mode("fast")
        TAB = {"fast": 2.0, Mode.SLOW: 3.0}
        def f(x): return x * TAB[mode.value] + (5 if mode == "fast" else 7) + TAB["slow"] + len(mode)
        results = infer(f, X)
        """,
        [
            edit('Mode("fast")', 'Mode("slow")'),
            edit("Mode.SLOW: 3.0", "Mode.SLOW: 4.0"),
            edit(
                'FAST = "fast"',
                'FAST = "faster"',
                'Mode("fast")',
                'Mode("faster")',
                '"fast": 2.0',
                '"faster": 2.0',
            ),
        ],
    ),
    "match classes": subject(
        """\
        class P:
            __match_args__ = ("a", "b")
            def __init__(s, a, b): s.a, s.b = a, b
        p = P(2.0, 3.0)
        def f(x):
            match p:
                case P(2.0, b): return x * b
                case P(a, 3.0): return x + a
                case P(): return x
        results = infer(f, X)
        """,
        [
            edit('("a", "b")', '("b", "a")'),
            edit("P(2.0, 3.0)", "P(3.0, 3.0)"),
            edit("P(2.0, 3.0)", "P(2.0, 4.0)"),
            edit("P(2.0, 3.0)", "P(5.0, 5.0)"),
            edit(
                "results =",
                "p = type('Q', (), {'a': 2.0, 'b': 9.0})()\nresults =",
                "case P(): return x",
                "case _: return x",
            ),
        ],
    ),
    "match others": subject(
        """\
        M, S, V = {"k": 2.0, "z": 1}, [1, 2.0, 3], 4
        class Lim: TOP = 4
        def f(x):
            match M:
                case {"k": float(k), **rest}: x = x * k + len(rest)
                case {"k": k}: x = x - k
            match S:
                case [1, *mid, 3]: x = x + len(mid) + mid[0]
                case [_, _, _]: x = x * 7
                case _: x = x * 8
            match V:
                case Lim.TOP: return x * 2
                case int() | float() if V > 5: return x * 3
                case None: return x
                case _: return x * 5
        results = infer(f, X)
        """,
        [
            edit('"k": 2.0, "z": 1', '"k": 2, "z": 1'),
            edit('"z": 1', '"z": 1, "y": 2'),
            edit("[1, 2.0, 3]", "[1, 2.0, 4]"),
            edit("[1, 2.0, 3]", "(1, 5.0, 3)"),
            edit("TOP = 4", "TOP = 5"),
            edit("3], 4", "3], 6"),
            edit("3], 4", "3], None", "TOP = 4", "TOP = 5", "if V > 5", ""),
        ],
    ),
    "exceptions tree": subject(
        """\
        class A(Exception): code = 2.0
        class B(A):
            def __init__(s, k): s.k = k
        KINDS = (TypeError, A)
        def f(x):
            try:
                if DO: raise B(3.0)
                x = x + 1
            except KINDS as e: x = x * e.k * e.code
            else: x = x * 5
            finally: x = x - 1
            return x
        DO = True
        results = infer(f, X)
        """,
        [
            edit("DO = True", "DO = False"),
            edit("code = 2.0", "code = 4.0"),
            edit("B(3.0)", "B(5.0)"),
            edit("s.k = k", "s.k = k * 2"),
            edit("results =", "B.code = 7.0\nresults ="),
        ],
    ),
    "exceptions within": subject(
        """\
        class E(ValueError): pass
        def inner(x):
            try: raise E("a")
            except TypeError: return x * 9
        def f(x):
            try: return inner(x)
            except KIND as e:
                x = x * (2 if isinstance(e, E) else 3)
                return x + len(e.args) + len(str(e))
            except Exception: return x * 7
        KIND = ValueError
        results = infer(f, X)
        """,
        [
            edit("KIND = ValueError", "KIND = KeyError"),
            edit("E(ValueError)", "E(TypeError)"),
            edit('E("a")', 'E("abc")'),
            edit("except TypeError", "except E"),
        ],
    ),
    "raise from": subject(
        """\
        class Low(Exception): pass
        class High(Exception): pass
        def f(x):
            try:
                try: raise Low("a", N)
                except Low as e: raise High(e.args[1] * 2) from e
            except High as e:
                x = x * e.args[0]
                return x * 2 if type(e.__cause__) is Low else x * 3
        N = 2
        results = infer(f, X)
        """,
        [
            edit("N = 2", "N = 3"),
            edit(" from e", ""),
            edit(" from e", " from KeyError()"),
            edit("* 2) from", "* 4) from"),
        ],
    ),
    "asserts": subject(
        """\
        LIMIT = 3
        def check(v):
            assert v < LIMIT, "too much"
            return v
        def f(x):
            try: return x * check(2)
            except AssertionError: return x * 9
        results = infer(f, X)
        """,
        [
            edit("LIMIT = 3", "LIMIT = 1"),
            edit("v < LIMIT", "v > LIMIT"),
        ],
    ),
    "key errors": subject(
        """\
        D = {"a": 2.0}
        L = [1.0]
        class H: pass
        h = H()
        def f(x):
            try: x = x * D["b"]
            except KeyError: x = x + 1
            try: x = x * L[1]
            except IndexError: x = x + 2
            try: x = x * h.k
            except AttributeError: x = x + 4
            try: x = x / Z
            except ZeroDivisionError: x = x + 8
            try: x = x * int(T)
            except ValueError: x = x + 16
            return x
        Z, T = 1, "q"
        results = infer(f, X)
        """,
        [
            edit('{"a": 2.0}', '{"a": 2.0, "b": 3.0}'),
            edit("L = [1.0]", "L = [1.0, 5.0]"),
            edit("results =", "h.k = 3.0\nresults ="),
            edit("results =", "H.k = 3.0\nresults ="),
            edit('"q"', '"7"'),
            edit("class H: pass", "class H:\n    def __getattr__(s, n): return 6.0"),
        ],
    ),
    "stop iteration": subject(
        """\
        class It:
            def __init__(s): s.n = 0
            def __iter__(s): return s
            def __next__(s):
                s.n += 1
                if s.n > TOP: raise STOP
                return s.n * 2.0
        TOP, STOP = 3, StopIteration
        def f(x):
            for v in It(): x = x * 2 + v
            return x
        results = infer(f, X)
        """,
        [
            edit("TOP, STOP = 3", "TOP, STOP = 2"),
            edit("s.n * 2.0", "s.n * 3.0"),
            edit("s.n = 0", "s.n = 1"),
        ],
    ),
    "exception hash and names": subject(
        """\
        class E1(Exception): pass
        class E2(E1): pass
        HANDLERS = {E1: 2.0, E2: 3.0}
        def f(x):
            try: raise RAISED()
            except E1 as e: return x * HANDLERS[type(e)] + len(type(e).__name__) + issubclass(RAISED, E2)
        RAISED = E2
        results = infer(f, X)
        """,
        [
            edit("RAISED = E2", "RAISED = E1"),
            edit("E2: 3.0", "E2: 4.0"),
            edit("results =", "E2.__name__ = 'Longer'\nresults ="),
        ],
    ),
    "isinstance bases": subject(
        """\
        class B1: k = 2.0
        class B2: k = 3.0
        class A(B1): pass
        a = A()
        KINDS = [B1, (int, B2)]
        def f(x):
            for i, kind in enumerate(KINDS): x = x * (i + 2) if isinstance(a, kind) else x - 1
            return x * a.k + issubclass(A, B1 if F else B2)
        F = True
        results = infer(f, X)
        """,
        [
            edit("results =", "A.__bases__ = (B2,)\nresults ="),
            edit("class A(B1)", "class A(B1, B2)"),
            edit("class A(B1)", "class A(B2, B1)"),
            edit("F = True", "F = False"),
            edit("(int, B2)", "(int, A)"),
            edit("results =", "a.__class__ = B2\nresults ="),
        ],
    ),
    "module names": subject(
        """\
        nn = torch.nn
        class A(nn.Module):
            def __init__(s):
                super().__init__()
                s.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            def forward(s, x):
                for n, p in s.named_parameters(): x = x * len(n) + p.numel()
                return x
        m = A()
        results = infer(m, X)
        """,
        [
            edit("nn.ReLU()", "nn.Linear(4, 5)"),
            edit("s.inner", "s.innermost"),
            edit("results =", "m.inner[0].register_parameter('k', nn.Parameter(torch.ones(3)))\nresults ="),
        ],
    ),
    "modules walked": subject(
        """\
        nn = torch.nn
        class Leaf(nn.Module):
            def __init__(s, k): super().__init__(); s.k = k
        class Mid(nn.Module):
            def __init__(s, k): super().__init__(); s.leaf = Leaf(k)
        class Top(nn.Module):
            def __init__(s, k): super().__init__(); s.mid = Mid(k)
            def forward(s, x):
                for n, m in s.named_modules():
                    if isinstance(m, Leaf): x = x * m.k + len(n)
                for m in s.modules(): x = x + m.training
                for n, m in s.named_children(): x = x * 2 + len(n)
                return x
        m = Top(2.0)
        results = infer(m, X)
        """,
        [
            edit("Top(2.0)", "Top(3.0)"),
            edit("results =", "m.mid.leaf.eval()\nresults ="),
            edit("results =", "m.mid.other = Leaf(7.0)\nresults ="),
            edit("results =", "m.mid.leaf = Mid(5.0)\nresults ="),
        ],
    ),
    "modules looked up": subject(
        """\
        nn = torch.nn
        class Top(nn.Module):
            def __init__(s):
                super().__init__()
                s.mid = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
                s.mid.k = 2.0
            def forward(s, x):
                x = s.get_submodule("mid.1")(x) * s.get_parameter("mid.0.weight").shape[0]
                return x * s.mid.k + sum(p.numel() for p in s.parameters()) + len(list(s.buffers())) + \
len(s.state_dict())
        m = Top()
        results = infer(m, X)
        """,
        [
            edit("nn.Tanh()", "nn.Sigmoid()"),
            edit("k = 2.0", "k = 3.0"),
            edit("nn.Linear(4, 4)", "nn.Linear(4, 5)"),
            edit("nn.Linear(4, 4)", "nn.Linear(4, 4, bias=False)"),
            edit("results =", "m.mid[1].register_buffer('b', torch.ones(1))\nresults ="),
            edit("results =", "m.mid[1].register_buffer('b', torch.ones(1), persistent=False)\nresults ="),
        ],
    ),
    "module text": subject(
        """\
        nn = torch.nn
        m = nn.Sequential(nn.Sequential(nn.Dropout(0.5))).eval()
        def f(x): return m(x) * len(str(m)) + len(repr(m[0][0])) + len(m._get_name())
        results = infer(f, X)
        """,
        [
            edit("Dropout(0.5)", "Dropout(0.25)"),
            edit("Dropout(0.5)", "Dropout1d(0.5)"),
        ],
    ),
    "frozen parameters": subject(
        """\
        nn = torch.nn
        m = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
        def f(x):
            n = sum(p.requires_grad for p in m.parameters())
            return m(x) * n
        results = train(f, X)
        """,
        [
            edit("results =", "m[1][0].bias.requires_grad_(False)\nresults ="),
            edit("results =", "m[0].requires_grad_(False)\nresults ="),
        ],
    ),
    "dropout p": subject(
        """\
        nn = torch.nn
        m = nn.Sequential(nn.Dropout(0.0), nn.Dropout1d(0.0), nn.Linear(4, 4))
        def f(x): return m(x) * (1 + m[0].p)
        results = infer(f, X)
        """,
        [
            edit("nn.Dropout(0.0)", "nn.Dropout(1.0)"),
            edit("results =", "m[1].p = 1.0\nresults ="),
            edit("results =", "m[0].p = 1.0\nm.eval()\nresults ="),
        ],
    ),
    "module dict and lists": subject(
        """\
        nn = torch.nn
        class A(nn.Module):
            def __init__(s):
                super().__init__()
                s.d = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
                s.l = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(1))])
                s.p = nn.ParameterDict({"x": nn.Parameter(torch.ones(4)), "y": nn.Parameter(torch.zeros(4))})
            def forward(s, x):
                for k, m in s.d.items(): x = m(x) + len(k)
                for p in s.l: x = x * 2 + p * p.numel()
                return x + s.p["x"] * len(s.p) + ("y" in s.d)
        m = A()
        results = infer(m, X)
        """,
        [
            edit('"a": nn.ReLU(), "b": nn.Tanh()', '"b": nn.Tanh(), "a": nn.ReLU()'),
            edit(
                "torch.ones(4)), nn.Parameter(torch.ones(1))",
                "torch.ones(1)), nn.Parameter(torch.ones(4))",
            ),
            edit("results =", "m.d['y'] = nn.Sigmoid()\nresults ="),
            edit("results =", "m.p.pop('y')\nresults ="),
            edit("results =", "m.d.pop('a')\nresults ="),
            edit('"b": nn.Tanh()', '"bb": nn.Tanh()'),
        ],
    ),
    "hooks of all kinds": subject(
        """\
        nn = torch.nn
        m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        K = 2.0
        def after(m, args, kwargs, out): return out * K
        def before(m, args): return (args[0] + 1,)
        m[0].register_forward_hook(after, with_kwargs=True)
        m[1].register_forward_pre_hook(before)
        def f(x): return m(x)
        results = infer(f, X)
        """,
        [
            edit("K = 2.0", "K = 3.0"),
            edit("args[0] + 1", "args[0] + 2"),
            edit("results =", "m[0].register_forward_hook(lambda m, i, o: o - 1)\nresults ="),
            edit("results =", "m[0].register_forward_hook(lambda m, i, o: o - 1, prepend=True)\nresults ="),
            edit("results =", "m[1]._forward_pre_hooks.clear()\nresults ="),
            edit("m[1].register_forward_pre_hook", "m.register_forward_pre_hook"),
        ],
    ),
    "weight norms": subject(
        """\
        nn = torch.nn
        m = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4), dim=0)
        def f(x): return m(x)
        results = infer(f, X)
        """,
        [
            edit(
                "results =",
                "nn.utils.parametrize.remove_parametrizations(m, 'weight')\nm.weight.data.mul_(2)\nresults =",
            ),
            edit(
                "parametrizations.weight_norm(nn.Linear(4, 4), dim=0)",
                "parametrizations.orthogonal(nn.Linear(4, 4))",
            ),
        ],
    ),
    "own parametrization": subject(
        """\
        nn = torch.nn
        class Sym(nn.Module):
            k = 2.0
            def forward(s, w): return w.triu() * s.k
        m = nn.Linear(4, 4)
        nn.utils.parametrize.register_parametrization(m, "weight", Sym())
        def f(x): return m(x)
        results = infer(f, X)
        """,
        [
            edit("k = 2.0", "k = 3.0"),
            edit("w.triu()", "w.tril()"),
            edit("results =", "nn.utils.parametrize.register_parametrization(m, 'weight', Sym())\nresults ="),
            edit("results =", "m.parametrizations.weight[0].k = 5.0\nresults ="),
        ],
    ),
    "forwards replaced": subject(
        """\
        nn = torch.nn
        class A(nn.Module):
            def forward(s, x): return x * 2
        class B(nn.Module):
            def forward(s, x): return x * 3
        class Top(nn.Module):
            def __init__(s): super().__init__(); s.a = A()
            def forward(s, x): return s.a(x) + 1
        m = Top()
        results = infer(m, X)
        """,
        [
            edit("results =", "m.a.forward = lambda x: x * 9\nresults ="),
            edit("results =", "m.a.forward = types.MethodType(B.forward, m.a)\nresults ="),
            edit("results =", "m.a.__class__ = B\nresults ="),
            edit("results =", "m.a = B()\nresults ="),
            edit("results =", "A.__call__ = lambda s, x: x * 8\nresults ="),
            edit("results =", "A._call_impl = lambda s, x: x * 8\nresults ="),
            edit("results =", "m.a._forward_hooks[0] = lambda m, i, o: o * 2\nresults ="),
            edit("results =", "A.forward = B.forward\nresults ="),
        ],
    ),
    "tied and shared": subject(
        """\
        nn = torch.nn
        class Top(nn.Module):
            def __init__(s):
                super().__init__()
                one, two = nn.Linear(4, 4), nn.Linear(4, 4)
                s.l = nn.ModuleList([one, two, one])
            def forward(s, x):
                for m in s.l: x = m(x)
                return x * (2 if s.l[0] is s.l[2] else 3)
        m = Top()
        results = train(m, X)
        """,
        [
            edit("[one, two, one]", "[one, one, two]"),
            edit("[one, two, one]", "[one, two, nn.Linear(4, 4)]"),
            edit("results =", "m.l[1].weight = m.l[0].weight\nresults ="),
            edit("[one, two, one]", "[two, one, two]"),
        ],
    ),
    "sequential slices": subject(
        """\
        nn = torch.nn
        m = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.Softplus())
        def f(x): return m[A:B](x) + m[-1](x) + len(m)
        A, B = 0, 2
        results = infer(f, X)
        """,
        [
            edit("A, B = 0, 2", "A, B = 1, 2"),
            edit("results =", "del m[0]\nresults ="),
            edit("results =", "m.append(nn.ReLU())\nresults ="),
            edit("results =", "m.insert(0, nn.Sigmoid())\nresults ="),
            edit("results =", "m[3] = nn.ELU(0.5)\nresults ="),
            edit("nn.Softplus()", "nn.Softplus(beta=2.0)"),
        ],
    ),
    "lazy modules": subject(
        """\
        nn = torch.nn
        m = nn.LazyLinear(4)
        m(X)
        m.requires_grad_(False).weight.fill_(0.5)
        m.bias.fill_(1.0)
        def f(x): return m(x)
        results = infer(f, X)
        """,
        [
            edit("LazyLinear(4)", "LazyLinear(5)"),
            edit("LazyLinear(4)", "LazyLinear(4, bias=False)", "m.bias.fill_(1.0)\n", ""),
        ],
    ),
    "functions with tensors of modules": subject(
        """\
        nn = torch.nn
        m = nn.Linear(4, 4)
        m.weight.scale = 2.0
        m.bias.grad = torch.ones(4)
        def f(x):
            x = x * m.weight.scale if hasattr(m.weight, "scale") else x
            x = x + 1 if m.weight.grad is None else x + 2
            x = x + m.bias.grad
            return x * 2 if isinstance(m.weight, nn.Parameter) and m.weight.is_leaf else x * 3
        results = infer(f, X)
        """,
        [
            edit("scale = 2.0", "scale = 3.0"),
            edit("results =", "del m.weight.scale\nresults ="),
            edit("results =", "m.weight.grad = torch.zeros(4, 4)\nresults ="),
            edit("grad = torch.ones(4)", "grad = torch.ones(4) * 3"),
        ],
    ),
    "recurrent layers": subject(
        """\
        nn = torch.nn
        m = nn.Sequential(nn.Conv1d(4, 4, 1, stride=1), nn.AdaptiveAvgPool1d(2), nn.Flatten(0), \
nn.Unflatten(0, (4, 2)), nn.Upsample(scale_factor=2))
        def f(x): return m[:4](x)
        results = infer(f, X)
        """,
        [
            edit("stride=1", "stride=2"),
            edit("AdaptiveAvgPool1d(2)", "AdaptiveMaxPool1d(2)"),
            edit("(4, 2)", "(2, 4)"),
            edit("Conv1d(4, 4, 1, stride=1)", "Conv1d(4, 4, 1, stride=1, padding=1)"),
            edit("4, 1, stride=1", "4, 1, stride=1, groups=2"),
        ],
    ),
    "annotated equal": subject(
        """\
        import dataclasses, typing
        @dataclasses.dataclass(frozen=True)
        class Conf: v: int = 2
        A = typing.Annotated[float, Conf(2)]
        B = typing.Annotated[float, Conf(2)]
        def f(x): return x * 2 if A == B else x * 3
        results = infer(f, X)
        """,
        [
            edit("B = typing.Annotated[float, Conf(2)]", "B = typing.Annotated[float, Conf(3)]"),
        ],
    ),
    "annotated read": subject(
        """\
        import dataclasses, typing
        @dataclasses.dataclass(frozen=True)
        class Conf: v: int = 2
        A = typing.Annotated[float, Conf(2)]
        def f(x): return x * A.__metadata__[0].v
        results = infer(f, X)
        """,
        [
            edit("float, Conf(2)", "float, Conf(3)"),
        ],
    ),
    "literals": subject(
        """\
        import typing
        A = typing.Literal["a", "b"]
        def f(x): return x * len(A.__args__) + len(typing.get_args(A)) + ("a" in typing.get_args(A))
        results = infer(f, X)
        """,
        [
            edit('["a", "b"]', '["a", "b", "c"]'),
            edit('["a", "b"]', '["z"]'),
        ],
    ),
    "package list": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        class S: pass
        REG = [S()]
        REG[0].flag = True
        class Meta(type):
            def __instancecheck__(cls, it): return REG[0].flag
        class Base(metaclass=Meta): pass
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        class It: pass
        it = It()
        def f(x): return x * 2 if isinstance(it, package.Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "package.REG[0].flag = False\nresults ="),
        ],
    ),
    "package local import": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        import math
        class Meta(type):
            def __instancecheck__(cls, it): return math.pi > 3.0
        class Base(metaclass=Meta): pass
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        class It: pass
        it = It()
        def f(x): return x * 2 if isinstance(it, package.Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "math.pi = 1.0\nresults ="),
        ],
    ),
    "package identity": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        FAST = "fast"
        def pick(kind): return kind is FAST
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        KIND = "fast"
        def f(x): return x * 2 if package.pick(KIND) else x * 3
        results = infer(f, X)
        """,
        [
            edit('KIND = "fast"', 'KIND = "".join(["fa", "st"])'),
        ],
    ),
    "package functions": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        K = 2.0
        CONF = {'k': 3.0}
        def scale(x, by=4.0): return x * K * CONF['k'] + by
        class Layer:
            gain = 5.0
            def __call__(self, x): return scale(x) * self.gain
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        layer = package.Layer()
        def f(x): return layer(x)
        results = infer(f, X)
        """,
        [
            edit("K = 2.0", "K = 2.5"),
            edit("results =", "package.CONF['k'] = 7.0\nresults ="),
            edit("by=4.0", "by=4.5"),
            edit("results =", "package.Layer.gain = 9.0\nresults ="),
            edit("results =", "package.scale = lambda x: x\nresults ="),
        ],
    ),
    "signature attribute": subject(
        """\
        import inspect
        def g(x, k=2.0): return x * k
        g.__signature__ = inspect.Signature([inspect.Parameter("z", inspect.Parameter.KEYWORD_ONLY, \
default=3.0)])
        def f(x):
            s = inspect.signature(g)
            return x * len(s.parameters) + s.parameters["z"].default
        results = infer(f, X)
        """,
        [
            edit("default=3.0", "default=4.0"),
        ],
    ),
    "signature annotations": subject(
        """\
        import inspect
        def g(x, k: int = 2): return x * k
        def f(x):
            p = inspect.signature(g).parameters["k"]
            return x * 2 if p.annotation is int else x * 3
        results = infer(f, X)
        """,
        [
            edit("k: int", "k: float"),
            edit("k: int", "k: 'int'"),
        ],
    ),
    "torch function attribute": subject(
        """\
        F = torch.nn.functional
        def f(x): return x * getattr(F.relu, "nbk", 3.0) + hasattr(F.gelu, "nbk")
        results = infer(f, X)
        """,
        [
            edit("results =", "F.relu.nbk = 2.0\nresults ="),
        ],
    ),
    "set attribute": subject(
        """\
        class A:
            def __setattr__(s, name, v): object.__setattr__(s, name, v * BY)
        BY = 3.0
        def f(x):
            a = A()
            a.k = 2.0
            return x * a.k
        results = infer(f, X)
        """,
        [
            edit("BY = 3.0", "BY = 4.0"),
            edit("v * BY", "v + BY"),
        ],
    ),
    "properties": subject(
        """\
        class A:
            def __init__(s): s._k = 2.0
            @property
            def k(s): return s._k
            @k.setter
            def k(s, v): s._k = v * 2
        class B(A):
            @A.k.getter
            def k(s): return s._k + 1
        b = B()
        def f(x):
            y = x * b.k
            b.k = 5.0
            return y + b.k
        def results(compile):
            with torch.no_grad(): found = compile(f)(X)
            return [found, torch.tensor(b._k)]
        """,
        [
            edit("s._k = 2.0", "s._k = 3.0"),
            edit("v * 2", "v * 3"),
            edit("s._k + 1", "s._k + 2"),
            edit("@A.k.getter\n", "@property\n", "b.k = 5.0", "b._k = 5.0"),
        ],
    ),
    "subclass hooks": subject(
        """\
        class Base:
            REG = {}
            def __init_subclass__(cls, key=None, **kw):
                super().__init_subclass__(**kw)
                cls.REG[key or cls.__name__] = cls
        class A(Base, key="a"):
            def go(s, x): return x * 2
        class B(Base):
            def go(s, x): return x * 3
        def f(x):
            for k, c in Base.REG.items(): x = c().go(x) + len(k)
            return x
        results = infer(f, X)
        """,
        [
            edit('key="a"', 'key="abc"'),
            edit("results =", "class C(Base):\n    def go(s, x): return x * 5\nresults ="),
            edit("x * 3", "x * 4"),
        ],
    ),
    "super chains": subject(
        """\
        class A:
            def go(s, x): return x + 1
        class B(A):
            def go(s, x): return super().go(x) * 2
        class C(A):
            def go(s, x): return super().go(x) * 3 - 1
        class D(B, C):
            def go(s, x): return super().go(x) + 5
        d = D()
        def f(x): return d.go(x)
        results = infer(f, X)
        """,
        [
            edit("class D(B, C)", "class D(C, B)"),
            edit("x + 1", "x + 2"),
            edit("class C(A)", "class C", "super().go(x) * 3 - 1", "x * 3 - 1"),
            edit("results =", "B.go = A.go\nresults ="),
        ],
    ),
    "static and class methods": subject(
        """\
        class A:
            k = 2.0
            @staticmethod
            def go(*a): return a[-1] * len(a)
            @classmethod
            def make(cls, x): return x * cls.k
        class B(A): k = 3.0
        b = B()
        def f(x): return b.go(x) + B.make(x) + A.make(x)
        results = infer(f, X)
        """,
        [
            edit("@staticmethod", "@classmethod"),
            edit("    @staticmethod\n", ""),
            edit("    @classmethod\n    def make(cls, x): return x * cls.k", "    def make(x): return x * 7"),
            edit("class B(A): k = 3.0", "class B(A): pass"),
        ],
    ),
    "dataclass options": subject(
        """\
        import dataclasses
        @dataclasses.dataclass(order=True)
        class C:
            a: int = 1
            b: float = dataclasses.field(default=2.0, compare=False)
            c: list = dataclasses.field(default_factory=lambda: [K])
        K = 3.0
        P, Q = C(), C(b=9.0)
        def f(x):
            n = C(4)
            x = x * 2 if P == Q else x * 3
            x = x + 1 if P < n else x - 1
            return x * n.c[0] + n.b + len(dataclasses.fields(C))
        results = infer(f, X)
        """,
        [
            edit(", compare=False", ""),
            edit("K = 3.0", "K = 4.0"),
            edit("a: int = 1", "a: int = 7"),
            edit("default=2.0", "default=5.0"),
        ],
    ),
    "dataclass frozen": subject(
        """\
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class C:
            a: float = 1.0
        c = C(2.0)
        def f(x):
            try: c.a = 5.0
            except AttributeError: x = x + 100
            return x * c.a
        def results(compile):
            with torch.no_grad(): return [compile(f)(X)]
        """,
        [
            edit("frozen=True", "frozen=False"),
            edit("C(2.0)", "C(3.0)"),
        ],
    ),
    "generics and protocols": subject(
        """\
        import typing
        T = typing.TypeVar("T")
        class Box(typing.Generic[T]):
            k = 2.0
            def __init__(s, v): s.v = v
        class IntBox(Box[int]): k = 3.0
        @typing.runtime_checkable
        class Goes(typing.Protocol):
            def go(self): ...
        class G:
            def go(self): return 5.0
        box, g = IntBox(4.0), G()
        def f(x):
            x = x * box.v * box.k + Box[int](6.0).v
            return x + g.go() if isinstance(g, Goes) else x - 1
        results = infer(f, X)
        """,
        [
            edit("class IntBox(Box[int]): k = 3.0", "class IntBox(Box[int]): pass"),
            edit("def go(self): return 5.0", "def gone(self): return 5.0"),
            edit("IntBox(4.0)", "IntBox(7.0)"),
            edit("def go(self): ...", "def go(self): ...\n    def more(self): ..."),
        ],
    ),
    "class decorators and mixins": subject(
        """\
        def gain(k):
            def deco(cls):
                cls.k = k
                old = cls.go
                cls.go = lambda s, x: old(s, x) * s.k
                return cls
            return deco
        class Mixin:
            def go(s, x): return x + s.off
        @gain(2.0)
        class A(Mixin): off = 1.0
        a = A()
        def f(x): return a.go(x)
        results = infer(f, X)
        """,
        [
            edit("gain(2.0)", "gain(3.0)"),
            edit("off = 1.0", "off = 2.0"),
            edit("x + s.off", "x - s.off"),
            edit("@gain(2.0)\n", ""),
        ],
    ),
    "weak references": subject(
        """\
        import weakref
        class A: k = 2.0
        a = A()
        D = weakref.WeakValueDictionary()
        D["a"] = a
        def f(x): return x * a.k + len(D)
        results = infer(f, X)
        """,
        [
            edit("k = 2.0", "k = 3.0"),
            edit("results =", "b = A()\nD['b'] = b\nresults ="),
        ],
    ),
    "missing and bool": subject(
        """\
        class D(dict):
            k = 5.0
            def __missing__(s, key): return len(key) * s.k
        class L(list):
            def __len__(s): return 7
            def __bool__(s): return FLAG
        d, l, FLAG = D(a=2.0), L([1.0, 2.0]), True
        def f(x): return x * d["a"] + d["zzz"] + len(l) + l[1] + (3 if l else 4)
        results = infer(f, X)
        """,
        [
            edit("k = 5.0", "k = 6.0"),
            edit("D(a=2.0)", "D(a=3.0)"),
            edit("return 7", "return 8"),
            edit("True", "False"),
        ],
    ),
    "one code, other closures": subject(
        """\
        def make(k, g):
            def inner(x): return g(x) * k
            return inner
        a = make(2.0, torch.sin)
        b = make(3.0, torch.cos)
        def f(x): return a(x) + b(x * 2)
        def results(compile):
            with torch.no_grad(): return [compile(f)(X), compile(a)(X), compile(b)(X)]
        """,
        [
            edit(
                "make(2.0, torch.sin)",
                "make(3.0, torch.cos)",
                "make(3.0, torch.cos)\ndef",
                "make(2.0, torch.sin)\ndef",
            ),
            edit("make(3.0, torch.cos)", "make(2.0, torch.cos)"),
            edit("a(x) + b(x * 2)", "b(x) + a(x * 2)"),
            edit("def f", "a, b = b, a\ndef f"),
        ],
    ),
    "one code, other globals": subject(
        """\
        def g(x): return x * K
        K = 2.0
        other = {"K": 3.0, "__builtins__": __builtins__, "__name__": "__main__"}
        h = types.FunctionType(g.__code__, globals(), "h", (1.0,))
        def f(x): return g(x) + h(x)
        results = infer(f, X)
        """,
        [
            edit("K = 2.0", "K = 4.0"),
            edit("h = types.FunctionType(g.__code__, globals()", "h = types.FunctionType(g.__code__, other"),
        ],
    ),
    "one code, other defaults": subject(
        """\
        def g(x, k=2.0, *, z=1.0): return x * k + z
        h = types.FunctionType(g.__code__, globals(), "h", (3.0,))
        h.__kwdefaults__ = {"z": 4.0}
        def f(x): return g(x) + h(x)
        results = infer(f, X)
        """,
        [
            edit("(3.0,)", "(5.0,)"),
            edit('{"z": 4.0}', '{"z": 6.0}'),
            edit("k=2.0", "k=7.0"),
        ],
    ),
    "mutual recursion": subject(
        """\
        def even(x, n): return x if n == 0 else odd(x * 2, n - 1)
        def odd(x, n): return x if n == 0 else even(x + K, n - 1)
        K, N = 1.0, 4
        def f(x): return even(x, N)
        results = infer(f, X)
        """,
        [
            edit("K, N = 1.0, 4", "K, N = 2.0, 4"),
            edit("K, N = 1.0, 4", "K, N = 1.0, 5"),
            edit("results =", "odd = lambda x, n: x * 50\nresults ="),
            edit("x * 2, n - 1", "x * 3, n - 1"),
        ],
    ),
    "late binding": subject(
        """\
        FS = []
        for i in range(3):
            FS.append(lambda x: x * i + 1)
        GS = [lambda x, j=j: x * j for j in range(3)]
        def f(x):
            for g in FS + GS: x = g(x) + 1
            return x
        results = infer(f, X)
        """,
        [
            edit("for j in range(3)", "for j in (2, 1, 0)"),
        ],
    ),
    "global rebound between cells": subject(
        """\
        K = 2.0
        def g(x): return x * K
        # %%
        def f(x): return g(x) + 1
        # %%
        K = 3.0
        # %%
        results = infer(f, X)
        """,
        [
            edit("K = 3.0", "K = 4.0"),
            edit("# %%\nK = 3.0\n", ""),
            edit("K = 3.0", "def g(x): return x - K"),
            edit("K = 3.0", "K = 3.0\ndef g(x): return x / K"),
        ],
        [
            edit("K = 3.0", "K = 3.0\nOTHER = 4"),
            edit("K = 3.0", "K = 3.0\n# %%\nOTHER = 5"),
            edit("K = 3.0", "K = 5.0\n# %%\nK = 3.0"),
        ],
    ),
    "shadowed names": subject(
        """\
        L = [3, 1, 2]
        def f(x):
            for v in sorted(L): x = x * 2 + v
            return x * max(L) + len(L) + int(2.5) + float("2") + abs(-1) + isinstance(x, torch.Tensor)
        results = infer(f, X)
        """,
        [
            edit("results =", "def sorted(l): return l\nresults ="),
            edit("results =", "max = min\nresults ="),
            edit("results =", "int = float\nresults ="),
            edit("results =", "isinstance = lambda *a: 5\nresults ="),
        ],
        [
            edit("results =", "zip = None\nresults ="),
        ],
    ),
    "star imports": subject(
        """\
        import os, tempfile, importlib
        folder = tempfile.mkdtemp()
        def write(name, text):
            with open(os.path.join(folder, name + ".py"), "w") as file: file.write(text)
        sys.path.insert(0, folder)
        write("nbcache_star5", "K = 2.0\\ndef helper(x): return x * K + other(x)\\ndef other(x): return x * \
3\\n_hidden = 1")
        from nbcache_star5 import *
        def f(x): return helper(x) + K
        results = infer(f, X)
        """,
        [
            edit("K = 2.0", "K = 4.0"),
            edit("return x * 3", "return x * 5"),
            edit("results =", "K = 7.0\nresults ="),
        ],
        [
            edit("results =", "def other(x): return x * 50\nresults ="),
            edit("_hidden = 1", "_hidden = 2"),
        ],
    ),
    "modules reloaded": subject(
        """\
        import os, tempfile, importlib
        folder = tempfile.mkdtemp()
        def write(name, text):
            with open(os.path.join(folder, name + ".py"), "w") as file: file.write(text)
        sys.path.insert(0, folder)
        write("nbcache_load5", "K = 2.0\\nclass A:\\n    k = 5.0\\n    def go(s, x): return x * K + s.k")
        import nbcache_load5 as m
        a = m.A()
        def f(x): return a.go(x) if isinstance(a, m.A) else x * 9
        results = infer(f, X)
        """,
        [
            edit("results =", "importlib.reload(m)\nresults ="),
            edit("K = 2.0", "K = 3.0"),
            edit("results =", "m.K = 4.0\nresults ="),
            edit(
                "results =",
                "old = m\ndel sys.modules['nbcache_load5']\nimport nbcache_load5 as m\nresults =",
            ),
        ],
    ),
    "modules replaced": subject(
        """\
        import os, tempfile, importlib
        folder = tempfile.mkdtemp()
        def write(name, text):
            with open(os.path.join(folder, name + ".py"), "w") as file: file.write(text)
        sys.path.insert(0, folder)
        write("nbcache_mod5", "K = 2.0\\ndef g(x): return x * K")
        write("nbcache_mod6", "K = 3.0\\ndef g(x): return x - K")
        import nbcache_mod5, nbcache_mod6
        def f(x):
            import nbcache_mod5 as m
            return m.g(x) + nbcache_mod5.K
        results = infer(f, X)
        """,
        [
            edit("results =", "sys.modules['nbcache_mod5'] = nbcache_mod6\nresults ="),
            edit("results =", "nbcache_mod5 = nbcache_mod6\nresults ="),
            edit("results =", "nbcache_mod5.g = nbcache_mod6.g\nresults ="),
            edit("results =", "nbcache_mod5.__dict__.update(K=7.0)\nresults ="),
        ],
    ),
    "packages": subject(
        """\
        import os, tempfile, importlib
        folder = tempfile.mkdtemp()
        def write(name, text):
            with open(os.path.join(folder, name + ".py"), "w") as file: file.write(text)
        sys.path.insert(0, folder)
        os.makedirs(os.path.join(folder, "nbcache_pkg5"))
        write("nbcache_pkg5/__init__", "from .a import g\\nTOP = 2.0")
        write("nbcache_pkg5/a", "from . import b\\nK = 3.0\\ndef g(x):\\n    from .b import h\\n    return \
h(x) * K + b.B")
        write("nbcache_pkg5/b", "B = 4.0\\ndef h(x): return x + B")
        import nbcache_pkg5 as p
        def f(x): return p.g(x) * p.TOP + p.b.B
        results = infer(f, X)
        """,
        [
            edit("TOP = 2.0", "TOP = 3.0"),
            edit("K = 3.0", "K = 5.0"),
            edit("B = 4.0", "B = 6.0"),
            edit("results =", "p.b.h = lambda x: x\nresults ="),
        ],
    ),
    "deleted names": subject(
        """\
        class C: k = 2.0
        c = C()
        c.k = 3.0
        D = {"a": 1.0, "b": 2.0}
        K = 4.0
        def f(x):
            for v in D.values(): x = x * 2 + v
            return x * c.k + getattr(c, "z", 5.0) + K
        results = infer(f, X)
        """,
        [
            edit("results =", "del c.k\nresults ="),
            edit("results =", "del D['a']\nresults ="),
            edit("results =", "c.z = 7.0\ndel c.k\nresults ="),
            edit("results =", "del K\nimport builtins\nbuiltins.K = 9.0\nresults ="),
        ],
    ),
    "patched torch": subject(
        """\
        F = torch.nn.functional
        from torch import sin
        from torch.nn.functional import gelu as act
        def f(x): return torch.sin(x) + sin(x) * 2 + act(x) + F.gelu(x) * 3 + math.sin(1.0) + \
torch.clamp(x, min=0.1)
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.sin = torch.cos\nresults ="),
            edit("results =", "sin = torch.cos\nresults ="),
            edit("results =", "F.gelu = torch.sigmoid\nresults ="),
            edit("results =", "act = torch.sigmoid\nresults ="),
        ],
    ),
    "changes between calls": subject(
        """\
        K = 2.0
        CONF = {"a": [1.0]}
        def f(x): return x * K + sum(CONF["a"])
        def change(): CONF["a"].append(5.0)

        def results(compile):
            g = compile(f)
            with torch.no_grad():
                one = g(X)
                change()
                return [one, g(X)]
        """,
        [
            edit('CONF["a"].append(5.0)', "globals().update(K=7.0)"),
            edit('CONF["a"].append(5.0)', 'CONF["a"][0] = 9.0'),
            edit("K = 2.0", "K = 3.0"),
            edit('CONF["a"].append(5.0)', 'CONF["a"] = (4.0,)'),
        ],
    ),
    "changes of code between calls": subject(
        """\
        def g(x, k=2.0): return x * k
        class C:
            k = 3.0
            def go(s, x): return x + s.k
        c = C()
        def f(x): return g(x) + c.go(x) + (4 if hasattr(c, "z") else 5)
        def change(): g.__code__ = (lambda x, k=2.0: x - k).__code__

        def results(compile):
            g = compile(f)
            with torch.no_grad():
                one = g(X)
                change()
                return [one, g(X)]
        """,
        [
            edit("g.__code__ = (lambda x, k=2.0: x - k).__code__", "g.__defaults__ = (9.0,)"),
            edit("g.__code__ = (lambda x, k=2.0: x - k).__code__", "C.k = 8.0"),
            edit("g.__code__ = (lambda x, k=2.0: x - k).__code__", "c.z = 1"),
            edit("g.__code__ = (lambda x, k=2.0: x - k).__code__", "c.go = lambda x: x * 7"),
        ],
    ),
    "changes of types between calls": subject(
        """\
        def f(x, n, t): return x * n + (t[0] if t else 9.0)
        ARGS = [(2, (1.0,)), (2, (1.0,))]
        def results(compile):
            g = compile(f)
            with torch.no_grad(): return [g(X, *args) for args in ARGS]
        """,
        [
            edit("(2, (1.0,))]", "(2, ())]"),
            edit("(2, (1.0,))]", "(2, [4.0])]"),
            edit("(2, (1.0,))]", "(True, (1.0,))]"),
            edit("[(2, (1.0,)), ", "[(2, (3.0, 1.0)), "),
        ],
    ),
    "package subclass hook": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        import abc
        class S: pass
        CONF = {'s': S()}
        CONF['s'].names = ['It']
        class Base(abc.ABC):
            @classmethod
            def __subclasshook__(cls, c): return c.__name__ in CONF['s'].names
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        class It: pass
        it = It()
        def f(x): return x * 2 if isinstance(it, package.Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "package.CONF['s'].names.clear()\nresults ="),
        ],
    ),
    "registered sized": subject(
        """\
        import abc, collections.abc
        class Other(abc.ABC): pass
        class Sub(Other): pass
        class Th: pass
        th = Th()
        def f(x):
            x = x * 2 if isinstance(th, collections.abc.Mapping) else x * 3
            return x + 1 if issubclass(Th, collections.abc.Hashable) else x
        results = infer(f, X)
        """,
        [
            edit("class Th: pass", "class Th: __hash__ = None"),
        ],
    ),
    "functions of torch that are not walked": subject(
        """\
        def f(x):
            y = torch.cdist(x, x) + torch.block_diag(x[:2, :2], x[2:, 2:])
            a, b = torch.broadcast_tensors(x, x[:1])
            return y + a * b + torch.atleast_2d(x)
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.functional._VF.cdist = lambda x, *a: x * 3\nresults ="),
            edit("results =", "torch.functional._VF.atleast_2d = lambda x, *a: x * 3\nresults ="),
            edit("results =", "torch.block_diag = lambda a, b: 7.0\nresults ="),
        ],
    ),
    "module held by a wrapper": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        class Lazy:
            def __init__(s): s.m = None
            def get(s, found=plug):
                if s.m is None: s.m = found
                return s.m
        def f(x): return x * Lazy().get().K + (5 if hasattr(Lazy().get(), "Z") else 6)
        results = infer(f, X)
        """,
        [
            edit("results =", "plug.Z = 1\nresults ="),
        ],
    ),
    "autocast around": subject(
        """\
        def f(x, w):
            y = x @ w
            return y * 2 if torch.is_autocast_enabled("cpu") else y * 3
        SCOPE = torch.autocast("cpu", dtype=torch.bfloat16, enabled=False)
        def results(compile):
            with SCOPE, torch.no_grad(): return [compile(f)(X, W)]
        """,
        [
            edit("enabled=False", "enabled=True"),
            edit("dtype=torch.bfloat16, enabled=False", "dtype=torch.float16"),
            edit(
                "\ndef results",
                "\ntorch.set_autocast_enabled('cpu', True)\nSCOPE = torch.no_grad()\ndef results",
            ),
        ],
    ),
    "autocast asked": subject(
        """\
        def f(x): return x * (2 if torch.get_autocast_dtype("cpu") is torch.bfloat16 else 3) + \
torch.is_autocast_cache_enabled()
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.set_autocast_dtype('cpu', torch.float16)\nresults ="),
            edit("results =", "torch.set_autocast_cache_enabled(False)\nresults ="),
        ],
    ),
    "grad scopes within": subject(
        """\
        ON = True
        def g(x): return x * (2 if torch.is_grad_enabled() else 3)
        def f(x):
            with torch.set_grad_enabled(ON):
                y = g(x)
                with torch.no_grad(): y = y + g(x)
            return y + g(x)
        results = infer(f, X)
        """,
        [
            edit("ON = True", "ON = False"),
            edit("with torch.no_grad(): y", "with torch.enable_grad(): y"),
            edit("infer(f", "train(f"),
        ],
    ),
    "grad decorators of methods": subject(
        """\
        class A:
            @torch.no_grad()
            def go(s, x): return x * 2
            @torch.enable_grad()
            def come(s, x): return x * (3 if torch.is_grad_enabled() else 4)
        a = A()
        def f(x): return a.go(x) + a.come(x)
        results = train(f, X)
        """,
        [
            edit("    @torch.no_grad()\n", ""),
            edit("x * 2", "x * x"),
        ],
    ),
    "determinism asked": subject(
        """\
        def f(x): return x * (1 + torch.get_deterministic_debug_mode()) + \
torch.are_deterministic_algorithms_enabled()
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.set_deterministic_debug_mode(1)\nresults ="),
            edit("results =", "torch.set_deterministic_debug_mode('error')\nresults ="),
        ],
    ),
    "filling asked": subject(
        """\
        def f(x): return x * 2 if torch.utils.deterministic.fill_uninitialized_memory else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.utils.deterministic.fill_uninitialized_memory = False\nresults ="),
        ],
    ),
    "attention backends asked": subject(
        """\
        c = torch.backends.cuda
        def f(x):
            x = x * 2 if c.flash_sdp_enabled() else x * 3
            x = x + 1 if c.mem_efficient_sdp_enabled() else x + 2
            return x * 5 if c.cudnn_sdp_enabled() else x
        results = infer(f, X)
        """,
        [
            edit("results =", "c.enable_flash_sdp(False)\nresults ="),
            edit("results =", "c.enable_mem_efficient_sdp(False)\nresults ="),
            edit("results =", "c.enable_cudnn_sdp(False)\nresults ="),
        ],
    ),
    "warnings asked": subject(
        """\
        def f(x): return x * 2 if torch.is_warn_always_enabled() else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.set_warn_always(True)\nresults ="),
        ],
    ),
    "contexts of a class": subject(
        """\
        class Stack:
            items = []
            def __init__(s, k): s.k = k
            def __enter__(s): Stack.items.append(s.k)
            def __exit__(s, *a): Stack.items.pop()
        A, B = Stack(2.0), Stack(3.0)
        def g(x): return x * sum(Stack.items)
        def f(x):
            with A:
                y = g(x)
                with B: y = y + g(x)
            return y + g(x)
        results = infer(f, X)
        """,
        [
            edit("Stack(2.0)", "Stack(4.0)"),
            edit("items = []", "items = [5.0]"),
            edit("with A:", "with B:", "with B: y", "with A: y"),
        ],
    ),
    "context that is set": subject(
        """\
        class Flag:
            on = False
            def __enter__(s): s.before, Flag.on = Flag.on, True
            def __exit__(s, kind, value, tb): Flag.on = s.before
        flag = Flag()
        def g(x): return x * 2 if Flag.on else x * 3
        def f(x):
            y = g(x)
            with flag: y = y + g(x)
            return y - g(x) * 2
        results = infer(f, X)
        """,
        [
            edit("on = False", "on = True"),
            edit("Flag.on, True", "Flag.on, False"),
            edit("Flag.on = s.before", "pass"),
            edit("results =", "Flag.on = True\nresults ="),
        ],
    ),
    "context decorators": subject(
        """\
        class Level:
            now = 1
        def at(level):
            def deco(g):
                @functools.wraps(g)
                def inner(*a):
                    before, Level.now = Level.now, level
                    try: return g(*a)
                    finally: Level.now = before
                return inner
            return deco
        @at(3)
        def g(x): return x * Level.now
        def f(x): return g(x) + x * Level.now
        results = infer(f, X)
        """,
        [
            edit("at(3)", "at(4)"),
            edit("now = 1", "now = 2"),
            edit("finally: Level.now = before", "finally: pass"),
            edit("@at(3)\n", ""),
        ],
    ),
    "context variables of a class": subject(
        """\
        import contextvars
        class C: V = contextvars.ContextVar("V", default=None)
        C.V.set({"k": 2.0})
        def f(x): return x * C.V.get()["k"]
        results = infer(f, X)
        """,
        [
            edit('"k": 2.0', '"k": 3.0'),
            edit("results =", "C.V.set({'k': 5.0})\nresults ="),
            edit("results =", "C.V = contextvars.ContextVar('V', default={'k': 7.0})\nresults ="),
        ],
    ),
    "modes and defaults": subject(
        """\
        def f(x):
            y = torch.arange(4) * 1.5 + torch.full((4,), 2.0) + torch.linspace(0, 1, 4)
            return (x + y) * y.element_size()
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.set_default_dtype(torch.float64)\nresults ="),
            edit("results =", "torch.set_default_dtype(torch.bfloat16)\nresults ="),
            edit("results =", "torch.set_default_tensor_type(torch.DoubleTensor)\nresults ="),
        ],
    ),
    "denormal numbers": subject(
        """\
        K = 1e-310
        def f(x): return x * 2 if K * 0.5 > 0.0 else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.set_flush_denormal(True)\nresults ="),
            edit("K = 1e-310", "K = 0.0"),
        ],
    ),
    "denormal comparisons": subject(
        """\
        def f(x):
            k = 1e-200
            return x * 2 if k * k == 0.0 else x * (3 if k * 1e-115 != 0.0 else 4)
        results = infer(f, X)
        """,
        [
            edit("k = 1e-200", "k = 1e-160"),
        ],
    ),
    "truth of not implemented": subject(
        """\
        import warnings
        NI = NotImplemented
        def f(x):
            try: return x * 2 if NI else x * 3
            except DeprecationWarning: return x * 5
        results = infer(f, X)
        """,
        [
            edit("NI = NotImplemented", "NI = Ellipsis", "x * 2 if NI", "x * 4 if NI"),
        ],
    ),
    "imports that are overridden": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        fake = types.ModuleType("nbcache_plug5")
        fake.K = 3.0
        import builtins
        old = builtins.__import__
        def importing(name, *a, **k): return fake if name == "nbcache_plug5" else old(name, *a, **k)
        def f(x):
            import nbcache_plug5 as p
            return x * p.K
        results = infer(f, X)
        """,
        [
            edit("plug.K = 2.0", "plug.K = 5.0"),
        ],
    ),
    "identity keys": subject(
        """\
        class A: pass
        a, b = A(), A()
        D = {a: 2.0, b: 3.0}
        E = [a, b]
        def f(x): return x * D[KEY] + E.index(KEY) + (KEY == a) * 5 + (KEY in (b,)) * 7
        KEY = a
        results = infer(f, X)
        """,
        [
            edit("KEY = a", "KEY = b"),
            edit("{a: 2.0, b: 3.0}", "{b: 2.0, a: 3.0}"),
            edit("[a, b]", "[b, a]"),
            edit("def f", "a, b = b, a\ndef f"),
        ],
    ),
    "class keys": subject(
        """\
        class A: pass
        class B(A): pass
        def g(x): return x
        D = {A: 2.0, B: 3.0, g: 4.0, None: 5.0, torch.float32: 6.0, torch.sin: 7.0}
        def f(x): return x * D[type(OBJ)] + D[g] + D[x.dtype] + D.get(FN, 9.0)
        OBJ, FN = A(), torch.sin
        results = infer(f, X)
        """,
        [
            edit("OBJ, FN = A()", "OBJ, FN = B()"),
            edit("torch.sin\nresults", "torch.cos\nresults"),
            edit("A: 2.0, B: 3.0", "B: 2.0, A: 3.0"),
            edit("OBJ, FN = A()", "class A: pass\nD[A] = 8.0\nOBJ, FN = A()"),
            edit("results =", "def g(x): return x\nD[g] = 11.0\nresults ="),
        ],
    ),
    "profilers asked": subject(
        """\
        def f(x): return x * 2 if torch.autograd._profiler_enabled() else x * 3
        SCOPE = torch.no_grad()
        def results(compile):
            with SCOPE: return [compile(f)(X).detach()]
        """,
        [
            edit("SCOPE = torch.no_grad()", "SCOPE = torch.autograd.profiler.profile()"),
        ],
    ),
    "loggers asked": subject(
        """\
        import logging
        log = logging.getLogger("nbcache_test.a.b")
        def f(x): return x * 2 if log.isEnabledFor(10) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "logging.getLogger('nbcache_test').setLevel(5)\nresults ="),
            edit("results =", "log.setLevel(5)\nresults ="),
        ],
    ),
    "loggers read": subject(
        """\
        import logging
        log = logging.getLogger("nbcache_test.a.b")
        def f(x): return x * 2 if log.level < 10 else x * 3 + len(log.handlers)
        results = infer(f, X)
        """,
        [
            edit("results =", "log.setLevel(50)\nresults ="),
            edit("results =", "log.setLevel(50)\nlog.addHandler(logging.NullHandler())\nresults ="),
        ],
    ),
    "calls of other kinds": subject(
        """\
        def g(x, k=2.0, *more, **named):
            for n, v in named.items(): x = x * v + len(n)
            return x * k + sum(more)
        class C:
            def go(s, x): return x + s.k
            def __call__(s, x): return x - s.k
        c = C()
        c.k = 3.0
        NAMED = {"b": 2.0, "a": 5.0}
        def results(compile):
            with torch.no_grad():
                return [compile(g)(X, 1.0, 4.0, **NAMED), compile(c.go)(X), compile(c)(X), \
compile(functools.partial(g, k=7.0))(X)]
        """,
        [
            edit('"b": 2.0, "a": 5.0', '"a": 5.0, "b": 2.0'),
            edit("c.k = 3.0", "c.k = 4.0"),
            edit("k=7.0", "k=8.0"),
            edit("(X, 1.0, 4.0,", "(X, 1.0, 4.0, 5.0,"),
        ],
    ),
    "torch functions of classes": subject(
        """\
        class T:
            def __init__(s, v): s.v = v
            @classmethod
            def __torch_function__(cls, fn, types, args=(), kwargs=None):
                args = [a.v if isinstance(a, T) else a for a in args]
                return fn(*args) * BY
        BY = 2.0
        def f(x): return torch.add(T(x), 1.0) + torch.sin(T(x))
        results = infer(f, X)
        """,
        [
            edit("BY = 2.0", "BY = 3.0"),
            edit("fn(*args) * BY", "fn(*args) - BY"),
            edit(
                "results =",
                "del T.__torch_function__\n"
                "T.__torch_function__ = classmethod(lambda cls, fn, types, args=(), "
                "kwargs=None: args[0].v * 9)\nresults =",
            ),
        ],
    ),
    "side effects on attributes": subject(
        """\
        class C:
            def __init__(s, v): s.v = v
        c, LOG, D, S = C(1.0), [], {"a": 1.0}, set()
        COUNT = 0
        def f(x):
            global COUNT
            COUNT += STEP
            c.w = c.v + 1
            LOG.append(C(2.0))
            D["z"] = 3.0
            D.pop("a")
            S.add(5)
            return x * COUNT + c.w
        STEP = 1
        def results(compile):
            g = compile(f)
            with torch.no_grad(): found = g(X)
            return [found, torch.tensor([COUNT, c.w, LOG[0].v, len(LOG), D["z"], len(D), len(S), \
float(type(LOG[0]) is C)])]
        """,
        [
            edit("STEP = 1", "STEP = 2"),
            edit("C(1.0)", "C(4.0)"),
            edit("C(2.0)", "C(5.0)"),
            edit("COUNT = 0", "COUNT = 7"),
        ],
    ),
    "side effects in closures": subject(
        """\
        def make():
            n, seen = 0, []
            def f(x):
                nonlocal n
                n += STEP
                seen.append(n)
                return x * n + len(seen)
            def get(): return n, seen
            return f, get
        STEP = 1
        f, get = make()
        def results(compile):
            g = compile(f)
            with torch.no_grad(): found = [g(X), g(X)]
            n, seen = get()
            return [*found, torch.tensor([n, *seen])]
        """,
        [
            edit("STEP = 1", "STEP = 2"),
            edit("n, seen = 0, []", "n, seen = 3, []"),
            edit("n, seen = 0, []", "n, seen = 0, [9]"),
            edit("seen.append(n)", "seen.insert(0, n)"),
        ],
    ),
    "aliases of inputs": subject(
        """\
        T = torch.ones(4, 4)
        def f(x):
            x.mul_(K)
            T.add_(1)
            return x.view(-1), x.t(), T[0], x
        K = 2.0
        def results(compile):
            x = X.clone()
            with torch.no_grad(): a, b, c, d = compile(f)(x)
            a.add_(1)
            return [x, a, b, c, T, torch.tensor([float(d is x), float(a.data_ptr() == x.data_ptr()), \
float(c._base is T)])]
        """,
        [
            edit("K = 2.0", "K = 3.0"),
            edit("T = torch.ones(4, 4)", "T = torch.ones(8, 4)[:4]"),
            edit("T = torch.ones(4, 4)", "T = torch.zeros(4, 4).t()"),
            edit("x.view(-1)", "x.reshape(-1).clone()"),
        ],
    ),
    "compiled calls of modules": subject(
        """\
        nn = torch.nn
        m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        def f(x): return m(x) + m[0](x)
        results = infer(f, X)
        """,
        [
            edit("results =", "m[0].compile()\nm[0].forward = lambda x: x * 7\nresults ="),
            edit("results =", "m[1]._call_impl = lambda x: x * 5\nresults ="),
        ],
    ),
    "tensors that seem parameters": subject(
        """\
        T = torch.ones(4)
        def f(x): return x * 2 if isinstance(T, torch.nn.Parameter) else x * 3 + isinstance(T, \
torch.nn.Buffer)
        results = infer(f, X)
        """,
        [
            edit("results =", "T._is_param = True\nresults ="),
            edit("results =", "T._is_buffer = True\nresults ="),
            edit("results =", "T = torch.nn.Parameter(T)\nresults ="),
            edit("results =", "T = torch.nn.Buffer(T)\nresults ="),
        ],
    ),
    "mro of new objects": subject(
        """\
        G = True
        class M(type):
            def mro(cls):
                found = type.mro(cls)
                return found if G else [found[0], found[2], found[1], *found[3:]]
        class B: k = 2.0
        class D: k = 3.0
        class A(B, D, metaclass=M): pass
        def f(x): return x * A().k
        results = infer(f, X)
        """,
        [
            edit("G = True", "G = False"),
        ],
    ),
    "mro and super of a class method": subject(
        """\
        ORDER = [1, 2]
        class M(type):
            def mro(cls):
                found = type.mro(cls)
                return [found[0], *(found[i] for i in ORDER), *found[3:]] if len(found) > 3 else found
        class B(metaclass=M):
            @classmethod
            def go(cls, x): return x + 1
            k = 2.0
        class D(metaclass=M):
            @classmethod
            def go(cls, x): return x - 1
            k = 3.0
        class A(B, D):
            @classmethod
            def go(cls, x): return super().go(x) * super().k
        def f(x): return A.go(x)
        results = infer(f, X)
        """,
        [
            edit("ORDER = [1, 2]", "ORDER = [2, 1]"),
        ],
    ),
    "int enums again": subject(
        """\
        import enum
        class E(enum.IntEnum):
            A = 1
            B = 2
        L = [5.0, 6.0, 7.0]
        D = {1: 3.0, 2: 4.0}
        e = E.B
        def f(x): return x * L[e.value] + D[e.value] * (2 if e == 2 else 3) + (e > E.A) * 5
        results = infer(f, X)
        """,
        [
            edit("e = E.B", "e = E.A"),
            edit("2: 4.0", "2: 5.0"),
            edit("B = 2", "B = 2\n    def __gt__(s, o): return False"),
        ],
    ),
    "sorted by a key": subject(
        """\
        L = [(1, 3.0), (2, 1.0), (3, 2.0)]
        AT = 1
        def f(x):
            for a, b in sorted(L, key=lambda p: p[AT], reverse=BACK): x = x * 2 + a
            return x
        BACK = False
        results = infer(f, X)
        """,
        [
            edit("AT = 1", "AT = 0"),
            edit("(3, 2.0)", "(3, 4.0)"),
            edit("BACK = False", "BACK = True"),
            edit("(1, 3.0), (2, 1.0)", "(2, 3.0), (1, 3.0)"),
        ],
    ),
    "names of classes": subject(
        """\
        class Abc: pass
        class Holder: kind = Abc
        def f(x): return x * len(Abc.__name__) + len(Holder.kind.__qualname__) * 3
        results = infer(f, X)
        """,
        [
            edit("Abc", "Abcd"),
            edit("results =", "Abc.__name__ = 'q'\nresults ="),
            edit("results =", "Abc.__qualname__ = 'q'\nresults ="),
        ],
    ),
    "methods with attributes": subject(
        """\
        class C:
            def go(s, x): return x * 2
            go.level = 3.0
        c = C()
        def f(x): return c.go(x) + c.go.level + getattr(C.go, "more", 1.0) + callable(getattr(c, "went", \
None))
        results = infer(f, X)
        """,
        [
            edit("go.level = 3.0", "go.level = 4.0"),
            edit("results =", "C.go.more = 7.0\nresults ="),
            edit("results =", "C.went = len\nresults ="),
        ],
    ),
    "weight of a module by index": subject(
        """\
        nn = torch.nn
        m = nn.ModuleList([nn.Linear(4, n, bias=False) for n in (2, 3, 4)])
        def f(x):
            for i, each in enumerate(m):
                y = each(x)
                x = x + y.sum() * each.out_features * (1 if each.bias is None else 2)
            return x * m[AT].weight.shape[0]
        AT = 1
        results = infer(f, X)
        """,
        [
            edit("AT = 1", "AT = 2"),
            edit("(2, 3, 4)", "(3, 2, 4)"),
            edit("AT = 1", "AT = -1"),
            edit("bias=False", "bias=True"),
        ],
        [
            edit("torch.manual_seed(0)", "torch.manual_seed(3)"),
        ],
    ),
    "dispatch by type": subject(
        """\
        class A: k = 2.0
        class B(A): k = 3.0
        TABLE = {A: lambda x, o: x * o.k, B: lambda x, o: x - o.k, int: lambda x, o: x + o}
        def pick(o):
            for kind in type(o).__mro__:
                if kind in TABLE: return TABLE[kind]
        THINGS = [A(), B(), 5]
        def f(x):
            for o in THINGS: x = pick(o)(x, o)
            return x
        results = infer(f, X)
        """,
        [
            edit("[A(), B(), 5]", "[B(), A(), 5]"),
            edit("x - o.k", "x / o.k"),
            edit("results =", "del TABLE[B]\nresults ="),
            edit("results =", "class C(B): k = 7.0\nTHINGS[0] = C()\nresults ="),
        ],
    ),
    "registry by decorator": subject(
        """\
        REG = {}
        def register(name, **options):
            def deco(g):
                REG[name] = (g, options)
                return g
            return deco
        @register("a", k=2.0)
        def one(x, k): return x * k
        @register("b", k=3.0)
        def two(x, k): return x - k
        def f(x):
            for name, (g, options) in REG.items(): x = g(x, **options)
            return x
        results = infer(f, X)
        """,
        [
            edit('"a", k=2.0', '"a", k=4.0'),
            edit('"b", k=3.0', '"a", k=3.0'),
            edit("x - k", "x / k"),
            edit("results =", "REG['a'] = REG.pop('a')\nresults ="),
        ],
        [
            edit("results =", "def three(x): return x\nresults ="),
        ],
    ),
    "configuration classes": subject(
        """\
        class Base:
            depth, act, eps = 2, "relu", 1e-3
            @classmethod
            def build(cls, **k):
                c = cls()
                for n, v in k.items(): setattr(c, n, v)
                return c
        class Small(Base): depth = 1
        conf = Small.build(act="tanh")
        ACTS = {"relu": torch.relu, "tanh": torch.tanh}
        def f(x):
            for i in range(conf.depth): x = ACTS[conf.act](x) + conf.eps * (i + 1)
            return x
        results = infer(f, X)
        """,
        [
            edit("depth = 1", "depth = 3"),
            edit('act="tanh"', 'act="relu"'),
            edit("1e-3", "1.0"),
            edit("class Small(Base): depth = 1", "class Small(Base): pass"),
        ],
    ),
    "enums that are equal": subject(
        """\
        import dataclasses, enum
        @dataclasses.dataclass
        class In: v: int
        @dataclasses.dataclass(frozen=True)
        class Conf:
            i: In
            n: int = 0
        class E(Conf, enum.Enum):
            A = In(2), 1
            B = In(3), 1
        def f(x): return x * 2 if E.A == E.B else x * 3
        results = infer(f, X)
        """,
        [
            edit("In(3), 1", "In(2), 1"),
        ],
    ),
    "attributes of classes within a format": subject(
        """\
        class H: pass
        class C: inner = H()
        C.inner.deep = H()
        C.inner.deep.k = "x"
        C.inner.k = "x"
        TAB = {"x": 2.0, "y": 3.0}
        def f(x): return x * TAB["{0.inner.deep.k}".format(C)] + TAB["{0.inner.k}".format(C)]
        results = infer(f, X)
        """,
        [
            edit('C.inner.k = "x"', 'C.inner.k = "y"'),
        ],
    ),
    "addresses by another name": subject(
        """\
        class A: pass
        a, b = A(), A()
        IDENT = id
        def f(x): return x * 2 if IDENT(a) == IDENT(b) else x * 3
        results = infer(f, X)
        """,
        [
            edit("def f", "b = a\ndef f"),
        ],
    ),
    "addresses of numbers": subject(
        """\
        A, B = float("2.5"), float("2.5")
        IDENT = id
        def f(x): return x * 2 if IDENT(A) == IDENT(B) else x * 3
        results = infer(f, X)
        """,
        [
            edit("def f", "B = A\ndef f"),
        ],
    ),
    "addresses that are compared": subject(
        """\
        class A: pass
        a = A()
        KNOWN = {"k": 1}
        IDENT = id
        def f(x): return x * 2 if IDENT(a) > 0 else x * 3
        results = infer(f, X)
        """,
        [
            edit("> 0", "< 0"),
        ],
    ),
    "paths": subject(
        """\
        import os
        class P:
            def __init__(s, p): s.p = p
            def __fspath__(s): return s.p * BY
        BY = 2
        p = P("abc")
        def f(x): return x * len(os.fspath(p)) + len(os.path.join("a", "b"))
        results = infer(f, X)
        """,
        [
            edit("BY = 2", "BY = 3"),
            edit('P("abc")', 'P("abcd")'),
        ],
    ),
    "members of a class of constants": subject(
        """\
        import enum
        class H: pass
        class E(enum.Enum):
            A = H()
            B = H()
        E.A.value.k, E.B.value.k = 2.0, 3.0
        def f(x):
            for e in E: x = x * e.value.k + 1
            return x
        results = infer(f, X)
        """,
        [
            edit("2.0, 3.0", "2.0, 4.0"),
            edit("2.0, 3.0", "5.0, 3.0"),
        ],
    ),
    "denormal settings that differ": subject(
        """\
        K = 5e-324
        CONF = {"tiny": 2e-308}
        def f(x):
            x = x + 1 if K > 0 else x + 2
            return x * (2 if CONF["tiny"] / 4 != 0 else 3) + float("1e-310").hex().count("0")
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.set_flush_denormal(True)\nresults ="),
        ],
    ),
    "cells in another order": subject(
        """\
        def g(x): return x * 2
        # %%
        def h(x): return x + K
        # %%
        K = 3.0
        # %%
        def f(x): return g(x) + h(x)
        # %%
        results = infer(f, X)
        """,
        [
            edit("x * 2", "x * 3"),
            edit("K = 3.0", "K = 4.0"),
            edit("# %%\nK = 3.0\n", "# %%\nK = 3.0\ndef g(x): return x - 1\n"),
        ],
        [
            edit(
                "def g(x): return x * 2\n# %%\ndef h(x): return x + K",
                "def h(x): return x + K\n# %%\ndef g(x): return x * 2",
            ),
            edit("# %%\nK = 3.0\n", "K = 3.0\n"),
            edit("def g(x): return x * 2", "import json\nclass Unrelated: pass\ndef g(x): return x * 2"),
            edit("def f(x)", "print('hello')\ndef f(x)"),
        ],
    ),
    "classes with remarks": subject(
        """\
        class A:
            k = 2.0
            def go(s, x): return x * s.k
        class B(A):
            def go(s, x): return super().go(x) + 1
        b = B()
        def f(x): return b.go(x)
        results = infer(f, X)
        """,
        [
            edit("k = 2.0", "k = 3.0"),
            edit("super().go(x) + 1", "super().go(x) - 1"),
            edit("class B(A):", "class B(A):\n    k = 5.0"),
        ],
        [
            edit("    k = 2.0", "    # a remark\n    k = 2.0"),
            edit("b = B()", "a = A()\nb = B()\nc = B()"),
            edit("class A:\n", "class Other:\n    k = 9.0\nclass A:\n"),
        ],
    ),
    "modules with other weights": subject(
        """\
        nn = torch.nn
        torch.manual_seed(5)
        m = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        def f(x): return m(x) * 2
        results = infer(f, X)
        """,
        [
            edit("nn.GELU()", "nn.SiLU()"),
            edit("m(x) * 2", "m(x) * 3"),
            edit("Linear(4, 8)", "Linear(4, 6)", "Linear(8, 4)", "Linear(6, 4)"),
        ],
        [
            edit("manual_seed(5)", "manual_seed(6)"),
            edit("results =", "for p in m.parameters(): p.data.mul_(2)\nresults ="),
            edit("results =", "m.load_state_dict(m.state_dict())\nresults ="),
            edit("results =", "other = nn.Sequential(nn.Linear(4, 8))\nother(X)\nresults ="),
            edit("results =", "infer(m[0], X)\nX = X + 1\nresults ="),
            edit("results =", "other = nn.Linear(2, 2)\nother.register_forward_hook(print)\nresults ="),
        ],
    ),
    "functions that are not called": subject(
        """\
        def used(x): return x * TABLE["a"]
        def unused(x): return x * TABLE["b"]
        TABLE = {"a": 2.0}
        def f(x): return used(x) + len(TABLE)
        results = infer(f, X)
        """,
        [
            edit('{"a": 2.0}', '{"a": 3.0}'),
            edit('{"a": 2.0}', '{"a": 2.0, "b": 1.0}'),
            edit("used(x) + len", "used(x) - len"),
        ],
        [
            edit('x * TABLE["b"]', 'x * TABLE["c"]'),
            edit("def unused(x)", "def unused_too(x)"),
            edit("results =", "del unused\nresults ="),
            edit("results =", "TABLE = dict(TABLE)\nresults ="),
            edit("def f(x)", "LIST = [1, 2]\nf = None\ndef f(x)"),
        ],
    ),
    "several compiled functions": subject(
        """\
        K = 2.0
        def f(x): return x * K
        def g(x): return x + K
        def h(x): return f(x) - g(x)
        def results(compile):
            with torch.no_grad(): return [compile(each)(X) for each in (f, g, h)]
        """,
        [
            edit("K = 2.0", "K = 3.0"),
            edit("x + K", "x / K"),
            edit("f(x) - g(x)", "g(x) - f(x)"),
            edit("(f, g, h)", "(h, g, f)"),
        ],
        [
            edit("K = 2.0", "K = 2.0\nL = 3.0"),
            edit("def g(x)", "# a remark\ndef g(x)"),
            edit("def h(x)", "def i(x): return x\ndef h(x)"),
        ],
    ),
    "transforms around": subject(
        """\
        def f(x): return x * 2 + x.sum()
        def results(compile):
            g = compile(f)
            with torch.no_grad(): return [g(X[0])]
        """,
        [
            edit("return [g(X[0])]", "return [torch.func.vmap(lambda x: g(x))(X)]"),
            edit("return [g(X[0])]", "return [torch.func.vmap(lambda x: x + g(X[0]))(X)]"),
            edit("return [g(X[0])]", "return [g(X[0]) + torch.func.vmap(f)(X)]"),
            edit("X[0]", "X[:, 0]"),
        ],
    ),
    "data classes of a model": subject(
        """\
        import dataclasses
        @dataclasses.dataclass
        class Conf:
            hidden: int = 4
            layers: int = 2
            act: str = "gelu"
            eps: float = 1e-5
        class Block(torch.nn.Module):
            def __init__(s, conf):
                super().__init__()
                s.conf = conf
                s.lin = torch.nn.Linear(conf.hidden, conf.hidden)
                s.norm = torch.nn.LayerNorm(conf.hidden, eps=conf.eps)
            def forward(s, x): return x + getattr(torch.nn.functional, s.conf.act)(s.lin(s.norm(x)))
        class Model(torch.nn.Module):
            def __init__(s, conf):
                super().__init__()
                s.blocks = torch.nn.ModuleList(Block(conf) for _ in range(conf.layers))
            def forward(s, x):
                for block in s.blocks: x = block(x)
                return x
        m = Model(Conf())
        results = infer(m, X)
        """,
        [
            edit("layers: int = 2", "layers: int = 3"),
            edit('act: str = "gelu"', 'act: str = "relu"'),
            edit("eps: float = 1e-5", "eps: float = 0.5"),
            edit("x + getattr", "x - getattr"),
        ],
        [
            edit("class Model(", "class Other(torch.nn.Module): pass\nclass Model("),
            edit("Conf())", "Conf())\nother = Model(Conf(layers=1))"),
            edit("m = Model", "torch.manual_seed(9)\nm = Model"),
            edit("    hidden: int = 4", "    # as wide as X\n    hidden: int = 4"),
        ],
    ),
    "attention of a model": subject(
        """\
        F = torch.nn.functional
        class Attention(torch.nn.Module):
            heads, causal, scale = 2, False, None
            def __init__(s):
                super().__init__()
                s.qkv = torch.nn.Linear(4, 12)
            def forward(s, x):
                q, k, v = (t.view(1, 4, s.heads, -1).transpose(1, 2) for t in s.qkv(x).chunk(3, -1))
                y = F.scaled_dot_product_attention(q, k, v, is_causal=s.causal, scale=s.scale)
                return y.transpose(1, 2).reshape(4, 4)
        m = Attention()
        results = infer(m, X)
        """,
        [
            edit("heads, causal, scale = 2, False", "heads, causal, scale = 1, False"),
            edit("2, False, None", "2, True, None"),
            edit("2, False, None", "2, False, 0.25"),
            edit("results =", "m.causal = True\nresults ="),
        ],
        [
            edit("torch.manual_seed(0)", "torch.manual_seed(2)"),
            edit("F = torch.nn.functional", "F = torch.nn.functional\nG = torch.nn"),
        ],
    ),
    "denormal results of constants": subject(
        """\
        def f(x):
            k = 1e-200
            return x * (3 if k * 1e-115 != 0.0 else 4)
        results = infer(f, X)
        """,
        [
            edit("1e-115", "1e-190"),
        ],
    ),
    "denormal results of a global": subject(
        """\
        K = 1e-200
        def f(x): return x * (3 if K * 1e-115 > 0 else 4)
        results = infer(f, X)
        """,
        [
            edit("K = 1e-200", "K = 1e-250"),
        ],
    ),
    "a format of a function": subject(
        """\
        def g(x): return x
        class C: go = g
        g.level = 2
        TAB = {"2": 2.0, "3": 3.0}
        def f(x): return x * TAB["{0.go.level}".format(C)] + len("{0.go.__globals__[NAME]}".format(C))
        NAME = "abc"
        results = infer(f, X)
        """,
        [
            edit("g.level = 2", "g.level = 3"),
        ],
    ),
    "texts of classes": subject(
        """\
        class C: pass
        def f(x): return x * len(str(C)) + len(f"{C}") + len("%s" % C) + len(repr([C, int]))
        results = infer(f, X)
        """,
        [
            edit("C", "Cde"),
        ],
    ),
    "texts of containers": subject(
        """\
        import collections, enum
        class E(enum.Enum): A = 1
        P = collections.namedtuple("P", "a b")
        L, D, O = [1, "a", None, 2.5], {"k": (1, [E.A])}, collections.OrderedDict(a=P(1, 2))
        def f(x): return x * len(str(L)) + len(repr(D)) * 3 + len(f"{L!r:>40}") + len(str(E.A))
        results = infer(f, X)
        """,
        [
            edit("2.5]", "2.55]"),
            edit("A = 1", "A = 111"),
            edit('"k": (1', '"kk": (1'),
            edit("class E(enum.Enum)", "class E(enum.IntEnum)"),
        ],
    ),
    "orders of constants": subject(
        """\
        import enum
        class E(enum.IntEnum):
            A = 3
            B = 1
        L = [E.A, E.B, 2]
        def f(x): return x * max(L) + min(L) * 5 + sum(L) + sorted(L)[1] + (E.A in L) + L.index(E.B)
        results = infer(f, X)
        """,
        [
            edit("A = 3", "A = 4"),
            edit("B = 1", "B = 5"),
            edit("[E.A, E.B, 2]", "[E.B, E.A, 2]"),
        ],
    ),
    "overrideable attention asked": subject(
        """\
        def f(x): return x * 2 if torch._C._get_overrideable_sdp_enabled() else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "torch._C._set_sdp_use_overrideable(False)\nresults ="),
        ],
    ),
    "flags of torch asked directly": subject(
        """\
        def f(x): return x * (2 if torch._C._get_cublas_allow_tf32() else 3) + (1 if \
torch._C._is_any_autocast_enabled() else 5)
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.backends.cuda.matmul.allow_tf32 = True\nresults ="),
            edit("results =", "torch.set_autocast_enabled('cpu', True)\nresults ="),
        ],
    ),
    "wrong encodings": subject(
        """\
        NAME = "utf-8"
        TEXT = "aé"
        def f(x):
            try: return x * len(TEXT.encode(NAME))
            except LookupError: return x * 7
            except UnicodeError: return x * 9
        results = infer(f, X)
        """,
        [
            edit('"utf-8"', '"latin-1"'),
            edit('"utf-8"', '"ascii"'),
            edit('"utf-8"', '"nbcache_no"'),
            edit('"aé"', '"aéé"'),
        ],
    ),
    "annotated with nested objects": subject(
        """\
        import dataclasses, typing
        @dataclasses.dataclass(frozen=True)
        class In: v: int = 2
        @dataclasses.dataclass(frozen=True)
        class Out: i: In = In()
        A = typing.Annotated[float, Out(In(2))]
        B = typing.Annotated[float, Out(In(2))]
        def f(x): return x * 2 if A == B else x * 3
        results = infer(f, X)
        """,
        [
            edit("B = typing.Annotated[float, Out(In(2))]", "B = typing.Annotated[float, Out(In(3))]"),
        ],
    ),
    "annotated as a key": subject(
        """\
        import dataclasses, typing
        @dataclasses.dataclass(frozen=True)
        class In: v: int = 2
        @dataclasses.dataclass(frozen=True)
        class Out: i: In = In()
        A = typing.Annotated[float, Out(In(2))]
        def f(x): return x * 2 if A == typing.Annotated[float, CONF] else x * 3
        CONF = Out(In(2))
        results = infer(f, X)
        """,
        [
            edit("CONF = Out(In(2))", "CONF = Out(In(3))"),
            edit("A = typing.Annotated[float, Out(In(2))]", "A = typing.Annotated[float, Out(In(4))]"),
        ],
    ),
    "hooks of inputs": subject(
        """\
        K = 2.0
        def hook(g): return g * K
        def f(x):
            x.register_hook(hook)
            return x * 3
        def results(compile):
            x = X.clone().requires_grad_()
            found = compile(f)(x)
            found.sum().backward()
            return [found.detach(), x.grad]
        """,
        [
            edit("K = 2.0", "K = 5.0"),
            edit("g * K", "g + K"),
            edit("x * 3", "x * 4"),
        ],
    ),
    "signatures with nested defaults": subject(
        """\
        import inspect
        class H: pass
        h = H()
        h.inner = H()
        h.inner.k = 2.0
        def g(x, conf=h): return x
        def f(x): return x * inspect.signature(g).parameters["conf"].default.inner.k
        results = infer(f, X)
        """,
        [
            edit("k = 2.0", "k = 3.0"),
            edit(
                "results =",
                "g.__defaults__ = (h.inner,)\nh.inner.inner = H()\nh.inner.inner.k = 5.0\nresults =",
            ),
        ],
    ),
}
"""What was answered as eager does from the first."""

MENDED: dict[str, Subject] = {
    "module in a closure": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        def make():
            p = plug
            class C:
                def go(s, x): return x * p.K
            return C
        C = make()
        def f(x): return C().go(x)
        results = infer(f, X)
        """,
        [
            edit("plug.K = 2.0", "plug.K = 3.0"),
        ],
    ),
    "module in a default": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        class C:
            def go(s, x, p=plug): return x * p.K
        def f(x): return C().go(x)
        results = infer(f, X)
        """,
        [
            edit("plug.K = 2.0", "plug.K = 3.0"),
        ],
    ),
    "module in a dataclass": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        import dataclasses
        @dataclasses.dataclass
        class C:
            k: float = 2.0
            mod: object = plug
        def f(x):
            c = C(3.0)
            return x * c.mod.K + c.k
        results = infer(f, X)
        """,
        [
            edit("plug.K = 2.0", "plug.K = 3.0"),
        ],
    ),
    "registered number": subject(
        """\
        import abc, numbers
        class Other(abc.ABC): pass
        class Th: pass
        th = Th()
        def f(x): return x * 2 if isinstance(th, numbers.Number) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "numbers.Number.register(Other)\nOther.register(Th)\nresults ="),
        ],
    ),
    "text is": subject(
        """\
        KIND = "fast"
        def f(x): return x * 2 if KIND is "fast" else x * 3
        results = infer(f, X)
        """,
        [
            edit('KIND = "fast"', 'KIND = "".join(["fa", "st"])'),
        ],
    ),
    "text is local": subject(
        """\
        KIND = "fast"
        def f(x):
            y = "fast"
            return x * 2 if KIND is y else x * 3
        results = infer(f, X)
        """,
        [
            edit('KIND = "fast"', 'KIND = "".join(["fa", "st"])'),
        ],
    ),
    "text is attribute": subject(
        """\
        class C: KIND = "fast"
        def f(x):
            return x * 2 if C().KIND is sys.intern("fast") else x * 3
        results = infer(f, X)
        """,
        [
            edit('class C: KIND = "fast"', 'class C: KIND = "".join(["fa", "st"])'),
        ],
    ),
    "builtin true": subject(
        """\
        import builtins
        builtins.NBK = True
        def f(x): return x * 2 if NBK else x * 3
        results = infer(f, X)
        """,
        [
            edit("NBK = True", "NBK = False"),
            edit("NBK = True", "NBK = None"),
        ],
    ),
    "package nested global": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        class S: pass
        settings = S()
        settings.inner = S()
        settings.inner.FLAG = True
        class Meta(type):
            def __instancecheck__(cls, it): return settings.inner.FLAG
        class Base(metaclass=Meta): pass
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        class It: pass
        it = It()
        def f(x): return x * 2 if isinstance(it, package.Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "package.settings.inner.FLAG = False\nresults ="),
            edit(
                "results =",
                "package.settings.inner = package.S()\npackage.settings.inner.FLAG = False\nresults =",
            ),
        ],
    ),
    "package nested argument": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        class Meta(type):
            def __instancecheck__(cls, it): return it.inner.flag
        class Base(metaclass=Meta): pass
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        class It: pass
        it = It()
        it.inner = It()
        it.inner.flag = True
        def f(x): return x * 2 if isinstance(it, package.Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit("flag = True", "flag = False"),
        ],
    ),
    "package class state": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        class S: pass
        class Meta(type):
            def __instancecheck__(cls, it): return cls.state.inner.flag
        class Base(metaclass=Meta):
            state = S()
        Base.state.inner = S()
        Base.state.inner.flag = True
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        class It: pass
        it = It()
        def f(x): return x * 2 if isinstance(it, package.Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "package.Base.state.inner.flag = False\nresults ="),
        ],
    ),
    "callback closures": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        def deco(p):
            def outer(g):
                @functools.wraps(g)
                def inner(self, x): return g(self, x) * p.K
                return inner
            return outer
        class C:
            @deco(plug)
            def go(self, x): return x + 1
        def f(x): return C().go(x)
        results = infer(f, X)
        """,
        [
            edit("plug.K = 2.0", "plug.K = 3.0"),
        ],
    ),
    "math module in a closure": subject(
        """\
        def make(m):
            class C:
                def go(self, x, mod=m): return x * mod.pi + m.e
            return C
        C = make(math)
        def f(x): return C().go(x)
        results = infer(f, X)
        """,
        [
            edit("results =", "math.pi = 1.0\nresults ="),
            edit("results =", "math.e = 1.0\nresults ="),
        ],
    ),
    "import made while traced": subject(
        """\
        import wsgiref as w
        def f(x):
            y = x * 2 if hasattr(w, "headers") else x * 3
            import wsgiref.headers as h
            return y
        results = infer(f, X)
        """,
        [
            edit("import wsgiref as w\ndef", "import wsgiref as w, wsgiref.headers\ndef"),
        ],
    ),
    "flags inverted while traced": subject(
        """\
        import enum
        class P(enum.Flag):
            R = 1
            W = 2
            X = 4
        def f(x):
            n = len(P._value2member_map_)
            y = ~P.R
            return x * n + y.value
        results = infer(f, X)
        """,
        [
            edit("results =", "~P.R\nresults ="),
        ],
    ),
    "flags called while traced": subject(
        """\
        import enum
        class P(enum.Flag):
            R = 1
            W = 2
        def f(x):
            n = len(P._value2member_map_)
            y = P(3)
            return x * n + y.value
        results = infer(f, X)
        """,
        [
            edit("results =", "P(3)\nresults ="),
        ],
    ),
    "package globals by name": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        FLAG = True
        class Meta(type):
            def __instancecheck__(cls, it): return globals()["FLAG"]
        class Base(metaclass=Meta): pass
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        class It: pass
        it = It()
        def f(x): return x * 2 if isinstance(it, package.Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "package.FLAG = False\nresults ="),
        ],
    ),
    "package default": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        class S: pass
        s = S()
        s.inner = S()
        s.inner.flag = True
        class Meta(type):
            def __instancecheck__(cls, it, given=s): return given.inner.flag
        class Base(metaclass=Meta): pass
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        class It: pass
        it = It()
        def f(x): return x * 2 if isinstance(it, package.Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "package.s.inner.flag = False\nresults ="),
        ],
    ),
    "package default itself": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        class S: pass
        s = S()
        s.flag = True
        class Meta(type):
            def __instancecheck__(cls, it, given=s): return given.flag
        class Base(metaclass=Meta): pass
        del s
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        class It: pass
        it = It()
        def f(x): return x * 2 if isinstance(it, package.Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "package.Meta.__instancecheck__.__defaults__[0].flag = False\nresults ="),
        ],
    ),
    "package missing": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        import enum
        class S: pass
        s = S()
        s.inner = S()
        s.inner.k = 2.0
        class E(enum.Enum):
            A = 2.0
            B = 3.0
            @classmethod
            def _missing_(cls, v): return cls(s.inner.k)
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        def f(x): return x * package.E(7.0).value
        results = infer(f, X)
        """,
        [
            edit("results =", "package.s.inner.k = 3.0\nresults ="),
        ],
    ),
    "package format": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        import enum
        class S: pass
        s = S()
        s.inner = S()
        s.inner.k = 'x'
        class E(enum.Enum):
            A = 2.0
            def __format__(self, spec): return s.inner.k
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        TAB = {'x': 2.0, 'y': 3.0}
        def f(x): return x * TAB[f'{package.E.A}']
        results = infer(f, X)
        """,
        [
            edit("results =", "package.s.inner.k = 'y'\nresults ="),
        ],
    ),
    "package argument held": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        class Meta(type):
            def __instancecheck__(cls, it): return it.tags['k'].on
        class Base(metaclass=Meta): pass
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        class T: pass
        class It: pass
        it = It()
        it.tags = {'k': T()}
        it.tags['k'].on = True
        def f(x): return x * 2 if isinstance(it, package.Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit("on = True", "on = False"),
        ],
    ),
    "registered sized": subject(
        """\
        import abc, collections.abc
        class Other(abc.ABC): pass
        class Sub(Other): pass
        class Th: pass
        th = Th()
        def f(x):
            x = x * 2 if isinstance(th, collections.abc.Mapping) else x * 3
            return x + 1 if issubclass(Th, collections.abc.Hashable) else x
        results = infer(f, X)
        """,
        [
            edit("results =", "collections.abc.Mapping.register(Other)\nOther.register(Th)\nresults ="),
            edit("results =", "collections.abc.Mapping.register(Other)\nSub.register(Th)\nresults ="),
            edit(
                "results =",
                "collections.abc.MutableMapping.register(Other)\nOther.register(Th)\nresults =",
            ),
        ],
    ),
    "registered before": subject(
        """\
        import abc, numbers
        class Other(abc.ABC): pass
        class Th: pass
        numbers.Real.register(Other)
        Other.register(Th)
        th = Th()
        def f(x): return x * 2 if isinstance(th, numbers.Complex) else x * 3
        results = infer(f, X)
        """,
        [
            edit("Other.register(Th)\n", ""),
            edit("numbers.Real.register(Other)\n", ""),
        ],
    ),
    "built-in text elsewhere": subject(
        """\
        import builtins
        builtins.NBACT = "relu"
        class A:
            def go(s, x): return getattr(torch, NBACT)(x)
        a = A()
        def f(x): return a.go(x) * len(NBACT)
        results = infer(f, X)
        """,
        [
            edit('NBACT = "relu"', 'NBACT = "sin"'),
            edit('NBACT = "relu"', 'NBACT = "tanh"'),
        ],
    ),
    "identity of what a function returns": subject(
        """\
        def name(): return "some text that is long"
        KIND = name()
        def f(x): return x * 2 if KIND is name() else x * 3
        results = infer(f, X)
        """,
        [
            edit("KIND = name()", 'KIND = "some text that is " + str("long")'),
        ],
    ),
    "module held by a wrapper": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        class Lazy:
            def __init__(s): s.m = None
            def get(s, found=plug):
                if s.m is None: s.m = found
                return s.m
        def f(x): return x * Lazy().get().K + (5 if hasattr(Lazy().get(), "Z") else 6)
        results = infer(f, X)
        """,
        [
            edit("plug.K = 2.0", "plug.K = 3.0"),
        ],
    ),
    "registered with an own abstract class": subject(
        """\
        import abc
        class Proto(metaclass=abc.ABCMeta): pass
        class Other(metaclass=abc.ABCMeta): pass
        class Th: pass
        th = Th()
        def f(x): return x * 2 if isinstance(th, Proto) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "Proto.register(Other)\nOther.register(Th)\nresults ="),
            edit("results =", "class Sub(Other): pass\nProto.register(Other)\nSub.register(Th)\nresults ="),
        ],
    ),
    "errors of codecs": subject(
        """\
        import codecs
        codecs.register_error("nbcache5", codecs.ignore_errors)
        def f(x): return x * len("aäb".encode("ascii", "nbcache5"))
        results = infer(f, X)
        """,
        [
            edit("codecs.ignore_errors", "codecs.replace_errors"),
            edit("codecs.ignore_errors", "codecs.xmlcharrefreplace_errors"),
        ],
    ),
    "codecs": subject(
        """\
        import codecs
        def f(x):
            try: return x * len("abc".encode("nbcache_codec5"))
            except LookupError: return x * 3 + 1
        def found(name):
            if name == "nbcache_codec5": return codecs.CodecInfo(lambda s, e="strict": (b"12345", len(s)), \
None, name=name)
        results = infer(f, X)
        """,
        [
            edit("results =", "codecs.register(found)\nresults ="),
        ],
    ),
    "codec of c": subject(
        """\
        import codecs
        def found(name):
            if name == "nbcache_codec6": return codecs.lookup(BASE)
        BASE = "utf-8"
        codecs.register(found)
        "a".encode("nbcache_codec6")
        def f(x): return x * len("äb".encode("nbcache_codec6"))
        results = infer(f, X)
        """,
        [
            edit('BASE = "utf-8"', 'BASE = "latin-1"'),
            edit('BASE = "utf-8"', 'BASE = "utf-16"'),
        ],
    ),
    "imports that are overridden": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2.0
        fake = types.ModuleType("nbcache_plug5")
        fake.K = 3.0
        import builtins
        old = builtins.__import__
        def importing(name, *a, **k): return fake if name == "nbcache_plug5" else old(name, *a, **k)
        def f(x):
            import nbcache_plug5 as p
            return x * p.K
        results = infer(f, X)
        """,
        [
            edit("results =", "builtins.__import__ = importing\nresults ="),
        ],
    ),
    "attributes within a format": subject(
        """\
        import enum
        class H: pass
        class E(enum.Enum): A = 1
        E.A.extra = H()
        E.A.extra.k = "x"
        TAB = {"x": 2.0, "y": 3.0}
        def f(x): return x * TAB["{0.extra.k}".format(E.A)]
        results = infer(f, X)
        """,
        [
            edit('k = "x"', 'k = "y"'),
        ],
    ),
    "attributes of classes within a format": subject(
        """\
        class H: pass
        class C: inner = H()
        C.inner.deep = H()
        C.inner.deep.k = "x"
        C.inner.k = "x"
        TAB = {"x": 2.0, "y": 3.0}
        def f(x): return x * TAB["{0.inner.deep.k}".format(C)] + TAB["{0.inner.k}".format(C)]
        results = infer(f, X)
        """,
        [
            edit('deep.k = "x"', 'deep.k = "y"'),
        ],
    ),
    "limit in a class": subject(
        """\
        class C: lim = staticmethod(sys.getrecursionlimit)
        def f(x): return x * (2 if C.lim() > 5000 else 3)
        results = infer(f, X)
        """,
        [
            edit("results =", "sys.setrecursionlimit(7000)\nresults ="),
        ],
    ),
    "limit by a text": subject(
        """\
        NAME = "getrecursion" + "limit"
        def f(x): return x * (2 if getattr(sys, NAME)() > 5000 else 3)
        results = infer(f, X)
        """,
        [
            edit("results =", "sys.setrecursionlimit(7000)\nresults ="),
        ],
    ),
    "denormal results of a global": subject(
        """\
        K = 1e-200
        def f(x): return x * (3 if K * 1e-115 > 0 else 4)
        results = infer(f, X)
        """,
        [
            edit("results =", "torch.set_flush_denormal(True)\nresults ="),
        ],
    ),
    "an encoding of a file system": subject(
        """\
        import codecs
        codecs.register_error("nbcache6", codecs.lookup_error("ignore"))
        NAME = b"a\\xffb"
        def f(x): return x * len(NAME.decode("ascii", "nbcache6"))
        results = infer(f, X)
        """,
        [
            edit('lookup_error("ignore")', 'lookup_error("backslashreplace")'),
            edit('lookup_error("ignore")', 'lookup_error("replace")'),
        ],
    ),
    "addresses that are told": subject(
        """\
        class O: pass
        o = O()
        told = []
        IDENT = id
        def f(x):
            told.append(IDENT(o))
            return x * 2
        def results(compile):
            with torch.no_grad(): found = compile(f)(X)
            return [found, torch.tensor(float(told[0] == id(o)))]
        """,
        [
            edit("told = []", "told = []  # so far"),
        ],
    ),
    "addresses in a class": subject(
        """\
        class O: pass
        o = O()
        told = []
        class C:
            ident = staticmethod(id)
        def f(x):
            told.append(C.ident(o) + C.ident(X))
            return x * 2
        def results(compile):
            with torch.no_grad(): found = compile(f)(X)
            return [found, torch.tensor(float(told[0] == id(o) + id(X)))]
        """,
        [
            edit("told = []", "told = []  # so far"),
        ],
    ),
    "addresses in a dictionary": subject(
        """\
        class O: pass
        o, p = O(), O()
        told = {}
        IDENT = id
        def f(x):
            told[IDENT(o)] = 2.0
            told[IDENT(p)] = 3.0
            return x * told[IDENT(o)] + len(told)
        def results(compile):
            with torch.no_grad(): found = compile(f)(X)
            return [found, torch.tensor(float(told.get(id(o), 0.0) + told.get(id(p), 0.0)))]
        """,
        [
            edit("told = {}", "told = {}  # so far"),
        ],
    ),
    "a format by a name": subject(
        """\
        class H: pass
        class C: inner = H()
        C.inner.deep = H()
        C.inner.deep.k = 2
        TAB = {"2": 2.0, "3": 3.0}
        def f(x): return x * TAB["{c.inner.deep.k}".format(c=C)]
        results = infer(f, X)
        """,
        [
            edit("deep.k = 2", "deep.k = 3"),
        ],
    ),
    "a format of a map": subject(
        """\
        class H: pass
        class C: inner = H()
        C.inner.deep = H()
        C.inner.deep.k = 2
        TAB = {"2": 2.0, "3": 3.0}
        def f(x): return x * TAB["{c.inner.deep.k}".format_map({"c": C})]
        results = infer(f, X)
        """,
        [
            edit("deep.k = 2", "deep.k = 3"),
        ],
    ),
    "a format of an item": subject(
        """\
        class H: pass
        class C: items = {"a": H()}
        C.items["a"].h = H()
        C.items["a"].h.k = 2
        TAB = {"2": 2.0, "3": 3.0}
        def f(x): return x * TAB["{0.items[a].h.k}".format(C)]
        results = infer(f, X)
        """,
        [
            edit("h.k = 2", "h.k = 3"),
        ],
    ),
    "a format of a module": subject(
        """\
        plug = types.ModuleType("nbcache_plug5")
        sys.modules["nbcache_plug5"] = plug
        plug.K = 2
        class C: mod = plug
        TAB = {"2": 2.0, "3": 3.0}
        def f(x): return x * TAB["{0.mod.K}".format(C)]
        results = infer(f, X)
        """,
        [
            edit("plug.K = 2", "plug.K = 3"),
        ],
    ),
    "a format of a function": subject(
        """\
        def g(x): return x
        class C: go = g
        g.level = 2
        TAB = {"2": 2.0, "3": 3.0}
        def f(x): return x * TAB["{0.go.level}".format(C)] + len("{0.go.__globals__[NAME]}".format(C))
        NAME = "abc"
        results = infer(f, X)
        """,
        [
            edit('NAME = "abc"', 'NAME = "abcdef"'),
        ],
    ),
    "a format of torch": subject(
        """\
        class C: t = torch
        torch.nbcache5 = 2
        TAB = {"2": 2.0, "3": 3.0}
        def f(x): return x * TAB["{0.t.nbcache5}".format(C)]
        results = infer(f, X)
        """,
        [
            edit("nbcache5 = 2", "nbcache5 = 3"),
        ],
    ),
    "registrations by way of Sized": subject(
        """\
        import abc, collections.abc
        class Other(abc.ABC): pass
        class Th: pass
        th = Th()
        def f(x): return x * 2 if isinstance(th, collections.abc.Sequence) else x * 3
        results = infer(f, X)
        """,
        [
            edit("results =", "collections.abc.Sequence.register(Other)\nOther.register(Th)\nresults ="),
            edit(
                "results =",
                "collections.abc.MutableSequence.register(Other)\nOther.register(Th)\nresults =",
            ),
        ],
    ),
    "package reads a file": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        import os
        PATH = os.path.join(os.environ['HOME'], 'nbcache_flag')
        class Meta(type):
            def __instancecheck__(cls, it): return open(PATH).read() == '1'
        class Base(metaclass=Meta): pass
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        with open(package.PATH, "w") as file: file.write("1")
        class It: pass
        it = It()
        def f(x): return x * 2 if isinstance(it, package.Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit('file.write("1")', 'file.write("0")'),
        ],
    ),
    "package looks for a file": subject(
        """\
        import os, tempfile
        folder = os.path.join(tempfile.mkdtemp(), "site-packages")
        os.makedirs(folder)
        with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write(\"\"\"
        import os
        from pathlib import Path
        PATH = os.path.join(os.environ['HOME'], 'nbcache_flag')
        class Meta(type):
            def __instancecheck__(cls, it): return Path(PATH).exists()
        class Base(metaclass=Meta): pass
        \"\"\")
        sys.path.append(folder)
        import nbcache_package5 as package
        with open(package.PATH, "w") as file: file.write("1")
        class It: pass
        it = It()
        def f(x): return x * 2 if isinstance(it, package.Base) else x * 3
        results = infer(f, X)
        """,
        [
            edit("class It", "os.remove(package.PATH)\nclass It"),
        ],
    ),
    "formats of two kinds": subject(
        """\
        import enum
        class H: pass
        class E(enum.Enum): A = 1
        E.A.h = H()
        E.A.h.w = 4
        def f(x): return x * len("{0:{1.h.w}}".format("a", E.A)) + len("{e.h.w:>7}".format(e=E.A))
        results = infer(f, X)
        """,
        [
            edit("h.w = 4", "h.w = 6"),
        ],
    ),
}
"""What was answered by a trace of before, and is no more."""
