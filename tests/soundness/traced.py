"""Programs whose functions Dynamo traces by reading much that it does not guard, and edits of them.

As in `subjects`: an edit is a list of texts and what takes their place. After one of `changes` the answer is
the edited program's; after one of `same` no function is traced again.
"""

from __future__ import annotations

from soundness.subjects import Subject, edit, subject

__all__ = ["PARTLY", "TRACED", "UNTRACED"]

TRACED: dict[str, Subject] = {
    "a number of many digits": subject(
        """\
        class C: many, p = 10 ** 5000, 2.0
        def f(x, k=10 ** 5001): return x * C.p
        results = infer(f, X)
        """,
        [edit("2.0", "3.0"), edit("10 ** 5000", "10 ** 5002"), edit("k=10 ** 5001", "k=10 ** 5003")],
        [edit("results =", "unrelated = 3\nresults =")],
    ),
    "body": subject(
        """\
        def f(x):
            y = x * 2.0
            return y + 1
        results = infer(f, X)
        """,
        [edit("2.0", "3.0"), edit("y + 1", "y - 1"), edit("y + 1", "y + x"), edit("infer", "train")],
        [edit("def f", "# a comment\ndef f"), edit("    y = x", "    # a comment\n    y = x")],
    ),
    "helpers": subject(
        """\
        def deep(x): return x - 5.0
        def mid(x): return deep(x) * 2
        alias = deep
        def f(x): return mid(x) + alias(x)
        results = infer(f, X)
        """,
        [
            edit("x - 5.0", "x - 6.0"),
            edit("alias = deep", "alias = mid"),
            edit("deep(x) * 2", "deep(x) * 3"),
            edit("alias = deep", "alias = torch.sin"),
            edit("results =", "deep.__code__ = (lambda x: x - 50.0).__code__\nresults ="),
            edit("results =", "mid = torch.cos\nresults ="),
        ],
        [
            edit("results =", "unrelated = 3\ndef other(x): return x\nresults ="),
            edit("def deep", "\n\ndef deep"),
        ],
    ),
    "defaults": subject(
        """\
        def named(x, *, k=2.0): return x * k
        def placed(x, k=3.0): return x + k
        def f(x): return named(x) + placed(x)
        results = infer(f, X)
        """,
        [
            edit("k=2.0", "k=4.0"),
            edit("k=3.0", "k=5.0"),
            edit("results =", "placed.__defaults__ = (9.0,)\nresults ="),
            edit("results =", 'named.__kwdefaults__ = {"k": 9.0}\nresults ='),
            edit("k=3.0", "k=3"),
        ],
    ),
    "closures": subject(
        """\
        def make(c, g):
            def inner(x): return g(x) * c
            return inner
        scaled = make(3.0, lambda x: x + 4.0)
        def f(x): return scaled(x) + 1
        results = infer(f, X)
        """,
        [
            edit("make(3.0", "make(4.0"),
            edit("x + 4.0", "x + 5.0"),
            edit("g(x) * c", "g(x) / c"),
            edit("results =", "scaled.__closure__[0].cell_contents = 30.0\nresults ="),
        ],
    ),
    "globals": subject(
        """\
        K = 3.0
        FLAG = True
        CFG = {"a": 2.0, "l": [1.0, 4.0], "n": {"z": 1.5}}
        def f(x):
            y = x * K + CFG["a"] * CFG["l"][1] + CFG["n"]["z"]
            return y if FLAG else -y
        results = infer(f, X)
        """,
        [
            edit("K = 3.0", "K = 4.0"),
            edit("K = 3.0", "K = 3"),
            edit("K = 3.0", "K = torch.tensor(3.5)"),
            edit("FLAG = True", "FLAG = False"),
            edit("2.0", "5.0"),
            edit("4.0]", "8.0]"),
            edit("1.5", "2.5"),
        ],
        [edit("results =", "L = 3.0\nresults =")],
    ),
    "names": subject(
        """\
        def f(x): return x * len([1, 2]) + abs(-3) + max(1, 2)
        results = infer(f, X)
        """,
        [
            edit("def f", "def len(x): return 40\ndef f"),
            edit("def f", "abs = lambda v: 12\ndef f"),
        ],
    ),
    "hasattr": subject(
        """\
        class Holder: pass
        h = Holder()
        h.k = 2.0
        part = types.ModuleType("nbcache_test_part")
        sys.modules["nbcache_test_part"] = part
        part.K = 0.25
        def f(x):
            y = x * h.k if hasattr(h, "k") else x
            y = y + 10 if hasattr(h, "more") else y
            return y * part.NEW if hasattr(part, "NEW") else y + part.K
        results = infer(f, X)
        """,
        [
            edit("h.k = 2.0", "h.k = 2.0\nh.more = 1"),
            edit("h.k = 2.0", ""),
            edit("h.k = 2.0", "Holder.k = 3.0"),
            edit("class Holder: pass", "class Holder: more = 1"),
            edit("part.K = 0.25", "part.K = 0.25\npart.NEW = 5.0"),
            edit("part.K = 0.25", "part.K = 0.5"),
        ],
    ),
    "containers": subject(
        """\
        TABLE = {"f": lambda x: x * 4.0}
        LIST = [lambda x: x + 2.0, lambda x: x * 3.0]
        PAIR = (3.0, (1.0, 2.0))
        def f(x):
            for each in LIST: x = each(x)
            for name in TABLE: x = TABLE[name](x)
            return x + PAIR[0] + PAIR[1][1]
        results = infer(f, X)
        """,
        [
            edit("x * 4.0", "x * 5.0"),
            edit("[lambda x: x + 2.0, lambda x: x * 3.0]", "[lambda x: x * 3.0, lambda x: x + 2.0]"),
            edit("x * 3.0]", "x * 3.0, lambda x: x - 1]"),
            edit("(3.0, (1.0, 2.0))", "(4.0, (1.0, 2.0))"),
            edit("(1.0, 2.0)", "(1.0, 5.0)"),
            edit('{"f": lambda x: x * 4.0}', '{"f": lambda x: x * 4.0, "g": torch.sin}'),
        ],
    ),
    "classes": subject(
        """\
        class Base:
            CA = 1.25
            @property
            def pr(self): return 2.0
            @staticmethod
            def st(x): return x + 3.0
            @classmethod
            def cm(cls, x): return x + cls.CA
            def run(self, x): return x * 9.0
        class Sub(Base):
            def run(self, x): return self.cm(self.st(super().run(x))) * self.pr
        s = Sub()
        def f(x): return s.run(x)
        results = infer(f, X)
        """,
        [
            edit("1.25", "2.25"),
            edit("return 2.0", "return 5.0"),
            edit("x + 3.0", "x + 4.0"),
            edit("x + cls.CA", "x - cls.CA"),
            edit("x * 9.0", "x * 8.0"),
            edit("results =", "Sub.st = staticmethod(lambda x: x - 3)\nresults ="),
            edit("results =", "s.run = lambda x: x * 50\nresults ="),
            edit(
                "results =",
                "class B2(Base):\n    def run(s, x): return x * 33\nSub.__bases__ = (B2,)\nresults =",
            ),
        ],
    ),
    "operators": subject(
        """\
        class Point:
            def __init__(self, v): self.v = v * 2.0
            def __add__(self, o): return self.v + o
            def __call__(self, x): return x * self.v
            def __len__(self): return 3
            def __getitem__(self, i): return 4.0 + i
        p = Point(1.0)
        def f(x): return (p + x) + p(x) + len(p) + p[1] + Point(3).v
        results = infer(f, X)
        """,
        [
            edit("v * 2.0", "v * 3.0"),
            edit("self.v + o", "self.v - o"),
            edit("x * self.v", "x / self.v"),
            edit("return 3", "return 4"),
            edit("4.0 + i", "5.0 + i"),
            edit("Point(1.0)", "Point(2.0)"),
            edit("results =", "Point.__add__ = lambda s, o: o + 200\nresults ="),
        ],
    ),
    "getattr": subject(
        """\
        class Any:
            def __init__(self): self.k = 2.0
            def __getattr__(self, name): return 7.0
        a = Any()
        def f(x): return x * a.zzz + a.k
        results = infer(f, X)
        """,
        [
            edit("return 7.0", "return 8.0"),
            edit("self.k = 2.0", "self.k = 2.0; self.zzz = 1.0"),
            edit("class Any:", "class Any:\n    zzz = 3.0"),
        ],
    ),
    "dataclass": subject(
        """\
        import dataclasses, enum, collections
        @dataclasses.dataclass
        class Conf:
            s: float = 3.0
            def sc(self, x): return x * self.s + 0.5
        class E(enum.Enum):
            A = 1.0
            B = 6.0
        NT = collections.namedtuple("NT", "a b")
        conf, chosen, nt = Conf(), E.A, NT(1.0, 2.0)
        def f(x):
            y = conf.sc(x) + nt.a * nt.b
            return y + chosen.value if chosen is E.A else y + 100
        results = infer(f, X)
        """,
        [
            edit("s: float = 3.0", "s: float = 4.0"),
            edit("+ 0.5", "+ 1.0"),
            edit("A = 1.0", "A = 2.0"),
            edit("E.A, NT", "E.B, NT"),
            edit("NT(1.0, 2.0)", "NT(1.0, 3.0)"),
            edit("Conf(), E", "Conf(8.0), E"),
        ],
    ),
    "modules": subject(
        """\
        nn = torch.nn
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(4, 4)
                self.act = nn.GELU()
                self.p = 0.5
                self.cfg = {"act": "relu"}
            def forward(self, x): return self.act(self.lin(x)) * self.p
        m = nn.Sequential(Block(), nn.Linear(4, 4), nn.LayerNorm(4)).eval()
        results = infer(m, X)
        """,
        [
            edit("nn.GELU()", 'nn.GELU(approximate="tanh")'),
            edit("nn.GELU()", "nn.ReLU()"),
            edit("self.p = 0.5", "self.p = 0.25"),
            edit("Block(), nn.Linear(4, 4)", "nn.Linear(4, 4), Block()"),
            edit("Block(), ", "Block(), Block(), "),
            edit("nn.LayerNorm(4)", "nn.LayerNorm(4, eps=0.5)"),
            edit("nn.LayerNorm(4)", "nn.Dropout(0.5)"),
            edit("self.lin(x)) * self.p", "self.lin(x)) / self.p"),
            edit("self.lin = nn.Linear(4, 4)", "self.lin = nn.Linear(4, 4, bias=False)"),
            edit("results =", "m[1].forward = lambda x: x * 50\nresults ="),
            edit("results =", "m[1].register_forward_hook(lambda m, i, o: o * 2)\nresults ="),
            edit("results =", "m[0].register_forward_pre_hook(lambda m, i: (i[0] + 1,))\nresults ="),
            edit("results =", "nn.GELU.forward = lambda self, x: x * 3\nresults ="),
            edit(
                "results =",
                "old = nn.Linear.forward\nnn.Linear.forward = lambda s, x: old(s, x) + 5\nresults =",
            ),
            edit(
                "results =",
                "class L2(nn.Linear):\n    def forward(s, x): return super().forward(x) * 3\n"
                "m[1].__class__ = L2\nresults =",
            ),
            edit(
                "results =", "F = nn.functional\nold = F.gelu\nF.gelu = lambda x, **k: old(x) + 1\nresults ="
            ),
            edit("results =", "F = nn.functional\nF.linear = lambda x, w, b: x @ w.t() * 2\nresults ="),
            edit("results =", "nn.utils.parametrizations.weight_norm(m[1])\nresults ="),
            edit("results =", "m[1].weight = nn.Parameter(torch.ones(4, 4) * 3)\nresults ="),
            edit(
                "results =",
                "def back(self, x):\n    for each in reversed(list(self)): x = each(x)\n    return x\n"
                "nn.Sequential.forward = back\nresults =",
            ),
        ],
        [
            edit('{"act": "relu"}', '{"act": "relu"}  # as ever'),
            edit("torch.manual_seed(0)", "torch.manual_seed(1)"),
            edit("results =", "optimizer = torch.optim.SGD(m.parameters(), 0.1)\nresults ="),
        ],
    ),
    "training": subject(
        """\
        nn = torch.nn
        m = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        results = train(m, X)
        """,
        [
            edit("results =", "m[0].weight.requires_grad_(False)\nresults ="),
            edit("results =", "m[0].weight.register_hook(lambda g: g * 2)\nresults ="),
            edit("nn.Tanh()", "nn.Sigmoid()"),
            edit("train(m", "infer(m"),
            edit("results =", "m.double()\nX = X.double()\nresults ="),
            edit("8), nn.Tanh()", "8, bias=False), nn.Tanh()"),
        ],
    ),
    "tied": subject(
        """\
        nn = torch.nn
        class Tied(nn.Module):
            def __init__(s):
                super().__init__()
                s.a = nn.Linear(4, 4, bias=False)
                s.b = nn.Linear(4, 4, bias=False)
                s.b.weight = s.a.weight
            def forward(s, x): return s.b(s.a(x))
        results = train(Tied(), X)
        """,
        [edit("        s.b.weight = s.a.weight\n", "")],
    ),
    "identity": subject(
        """\
        def f(x, y): return x * 2 if x is y else x + y
        results = infer(f, X, W)
        def results(compile):
            one = X.clone()
            other = W.clone()
            with torch.no_grad():
                return [compile(f)(one, other)]
        """,
        [edit("compile(f)(one, other)", "compile(f)(one, one)")],
    ),
    "inputs": subject(
        """\
        def f(x, y, flag=True, n=2): return (x + y) * n if flag else x - y
        ARGS, KEYWORDS = (X, W), {"flag": True, "n": 2}
        def results(compile):
            with torch.no_grad():
                return [compile(f)(*ARGS, **KEYWORDS)]
        """,
        [
            edit('"flag": True', '"flag": False'),
            edit('"n": 2', '"n": 3'),
            edit('{"flag": True, "n": 2}', "{}"),
            edit("(X, W)", "(X[:2], W[:2])"),
            edit("(X, W)", "(X.t(), W)"),
            edit("(X, W)", "(X.double(), W)"),
            edit("(X, W)", "(X, 2.5)"),
            edit("(X, W)", "(X, W.view(1, 4, 4))"),
            edit("(X, W)", "(X[1:], W[:3])"),
        ],
    ),
    "in place": subject(
        """\
        def f(x, y):
            x.add_(1)
            return x + y
        def results(compile):
            one, other = X.clone(), W.clone()
            with torch.no_grad():
                return [compile(f)(one, other), one, other]
        """,
        [
            edit("X.clone(), W.clone()", "(lambda m: (m, m))(X.clone())"),
            edit("one, other = X.clone(), W.clone()", "one = X.clone()\n    other = one.view(4, 4)"),
            edit("one, other = X.clone(), W.clone()", "one = X.clone()\n    other = one.t()"),
        ],
    ),
    "state": subject(
        """\
        def f(x):
            y = torch.ones(4, 4) + x
            return y @ y if torch.is_grad_enabled() else y * 2
        def results(compile):
            with torch.no_grad():
                return [compile(f)(X)]
        """,
        [
            edit("no_grad()", "enable_grad()"),
            edit("no_grad()", "inference_mode()"),
            edit("def f", "torch.set_default_dtype(torch.float64)\ndef f"),
            edit("no_grad()", 'autocast("cpu", dtype=torch.bfloat16), torch.enable_grad()'),
            edit("def f", "torch.use_deterministic_algorithms(True)\ndef f"),
            edit("def f", "torch.set_num_threads(3)\ndef f"),
            edit("def f", 'torch.set_float32_matmul_precision("medium")\ndef f'),
            edit("def f", "torch.backends.mkldnn.enabled = False\ndef f"),
            edit("no_grad()", "autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t)"),
        ],
    ),
    "settings": subject(
        """\
        def f(x): return x * 2 + 1
        results = infer(f, X)
        """,
        [
            edit("results =", "import torch._dynamo.config as c\nc.specialize_float = True\nresults ="),
            edit("results =", "import torch._inductor.config as c\nc.fallback_random = True\nresults ="),
            edit("infer(f, X)", "lambda compile: [compile(f, fullgraph=True)(X)]"),
            edit("infer(f, X)", "lambda compile: [compile(f, dynamic=False)(X)]"),
        ],
    ),
    "environment": subject(
        """\
        import os
        def f(x): return x * 2 if os.environ.get("NBX", "0") == "0" else x * 3
        results = infer(f, X)
        """,
        [
            edit("def f", 'os.environ["NBX"] = "1"\ndef f'),
            edit("environ.get", "getenv"),
            edit('"NBX", "0"', '"NBY", "1"'),
        ],
        [edit("def f", 'os.environ["NBZ"] = "1"\ndef f')],
    ),
    "standard library": subject(
        """\
        def g(x, k=3.0): return x * k
        part = functools.partial(g, k=2.0)
        @functools.wraps(g)
        def wrapped(*a, **k): return g(*a, **k) + 0.5
        def f(x): return part(x) + wrapped(x) + math.sqrt(4.0) + math.pi
        results = infer(f, X)
        """,
        [
            edit("k=2.0", "k=4.0"),
            edit("partial(g, k=2.0)", "partial(torch.mul, other=2.0)"),
            edit("+ 0.5", "+ 0.75"),
            edit("def f", "math.sqrt = lambda v: 9.0\ndef f"),
            edit("def f", "math.pi = 3.0\ndef f"),
        ],
    ),
    "control": subject(
        """\
        def gen(x):
            for i in range(3): yield x * i + 0.5
        def rec(x, n): return x if n == 0 else rec(x * 2.0, n - 1)
        def f(x):
            try:
                raise ValueError
            except ValueError:
                x = x + 9.0
            def loc(y): return y * 6.0
            return sum(gen(x)) + rec(x, 2) + loc(x)
        results = infer(f, X)
        """,
        [
            edit("x * i + 0.5", "x * i + 1.5"),
            edit("x * 2.0", "x * 3.0"),
            edit("x + 9.0", "x + 8.0"),
            edit("y * 6.0", "y * 7.0"),
            edit("rec(x, 2)", "rec(x, 3)"),
        ],
    ),
    "tensors": subject(
        """\
        T = torch.tensor(5.0)
        BUFFER = [torch.ones(4)]
        def f(x): return x * T + BUFFER[0]
        results = infer(f, X)
        """,
        [
            edit("tensor(5.0)", "tensor(6.0)"),
            edit("tensor(5.0)", "tensor([5.0, 1.0, 2.0, 3.0])"),
            edit("tensor(5.0)", "tensor(5)"),
            edit("[torch.ones(4)]", "[torch.ones(4, dtype=torch.float64)]"),
            edit("[torch.ones(4)]", "[torch.ones(4, 4)]"),
        ],
    ),
    "side effects": subject(
        """\
        class Counter:
            def __init__(self): self.n = 0
        c = Counter()
        LOG = []
        def f(x):
            c.n += 1
            LOG.append(2.0)
            return x * c.n + len(LOG)
        def results(compile):
            g = compile(f)
            with torch.no_grad():
                found = g(X)
            return [found, torch.tensor([float(c.n), float(len(LOG))])]
        """,
        [
            edit("self.n = 0", "self.n = 1"),
            edit("LOG = []", "LOG = [1.0]"),
            edit("c.n += 1", "c.n += 2"),
            edit("append(2.0)", "extend([2.0, 3.0])"),
        ],
    ),
    "a print between two graphs": subject(
        """\
        K = 3.0
        def f(x):
            y = x * 2.0
            print("between")
            return y.sin() + K
        results = infer(f, X)
        """,
        [
            edit("K = 3.0", "K = 4.0"),
            edit("x * 2.0", "x * 3.0"),
            edit("y.sin()", "y.cos()"),
            edit('    print("between")\n', ""),
            edit('print("between")', "y = str(y) and y + 1"),
        ],
        [edit("def f", "# a comment\n\ndef f")],
    ),
    "a branch on data": subject(
        """\
        LIMIT = 100
        def f(x):
            y = x * 2.0
            if y.sum() > LIMIT:
                y = y + 1
            else:
                y = y - 5
            return y.sin()
        def results(compile):
            g = compile(f)
            with torch.no_grad():
                return [g(X), g(X + 100.0)]
        """,
        [
            edit("LIMIT = 100", "LIMIT = -1000"),
            edit("y + 1", "y + 2"),
            edit("y - 5", "y - 6"),
            edit("y.sin()", "y.cos()"),
            edit("X + 100.0", "X - 100.0"),
        ],
    ),
    "a graph break in a closure": subject(
        """\
        def make(k, by):
            def f(x):
                y = x * k
                print("between")
                by.append(k)
                return y + k * len(by)
            return f
        COUNTS = []
        results = infer(make(2.0, COUNTS), X)
        """,
        [
            edit("make(2.0", "make(3.0"),
            edit("y + k", "y - k"),
            edit("COUNTS = []", "COUNTS = [1.0]"),
            edit('print("between")', "by.append(3.0)"),
        ],
    ),
    "graph breaks in a module that trains": subject(
        """\
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
                self.gain = 2.0
            def forward(self, x):
                y = self.a(x)
                print("first")
                with torch.no_grad():
                    scale = y.detach().abs().mean()
                    print("second")
                    scale = scale * self.gain
                return self.b(y).relu() * scale
        torch.manual_seed(0)
        net = Net()
        def results(compile):
            found = compile(net)(X)
            found.square().sum().backward()
            return [found.detach(), *(each.grad for each in net.parameters())]
        """,
        [
            edit("relu()", "tanh()"),
            edit("gain = 2.0", "gain = 3.0"),
            edit("with torch.no_grad():", "with torch.enable_grad():", "y.detach()", "y"),
            edit("self.a(x)", "self.a(x) + 1"),
            edit("abs().mean()", "abs().sum()"),
            edit(
                "net = Net()",
                "net = Net()\nnet.b.bias.requires_grad_(False)",
                "net.parameters()",
                "[net.a.weight]",
            ),
        ],
    ),
    "hooks": subject(
        """\
        m = torch.nn.Linear(4, 4)
        other = torch.nn.Linear(4, 4)
        m.register_forward_hook(lambda module, given, found: found * 2.0)
        def f(x): return m(x)
        results = infer(f, X)
        """,
        [edit("found * 2.0", "found * 3.0"), edit("results =", "m._forward_hooks.clear()\nresults =")],
        [edit("results =", "other.register_forward_pre_hook(print)\nresults =")],
    ),
}
"""Programs that are not traced again after a restart."""

PARTLY: dict[str, Subject] = {
    "numbers of tensors": subject(
        """\
        torch._dynamo.config.capture_scalar_outputs = True
        N = torch.tensor(3)
        def f(x, n):
            k = n.item()
            return x * k + (1 if k > 2 else N.item()) + torch.ones(int(N))[0]
        def results(compile):
            compiled = compile(f)
            with torch.no_grad():
                return [compiled(X, torch.tensor(n)) for n in (5, 1, 3)]
        """,
        [edit("torch.tensor(3)", "torch.tensor(4)"), edit("k > 2", "k > 4"), edit("(5, 1, 3)", "(1, 5)")],
    ),
    "number of a tensor": subject(
        """\
        torch._dynamo.config.capture_scalar_outputs = True
        def f(x, n): return x * n.item()
        def results(compile):
            compiled = compile(f)
            with torch.no_grad():
                return [compiled(X, torch.tensor(n)) for n in (5, 1, 3)]
        """,
        [edit("(5, 1, 3)", "(1, 5)"), edit("(5, 1, 3)", "(0, 5)")],
    ),
    "function": subject(
        """\
        class AF(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x * 13.0
            @staticmethod
            def backward(ctx, g): return g * 13.0
        def f(x): return AF.apply(x) + 1
        results = train(f, X)
        """,
        [edit("x * 13.0", "x * 14.0"), edit("g * 13.0", "g * 14.0")],
    ),
    "optimizer": subject(
        """\
        lin = torch.nn.Linear(4, 4)
        opt = torch.optim.SGD(lin.parameters(), lr=0.1, momentum=0.9)
        def results(compile):
            step = compile(opt.step)
            for _ in range(2):
                opt.zero_grad()
                lin(X).square().sum().backward()
                step()
            return [lin.weight.detach(), lin.bias.detach()]
        """,
        [
            edit("lr=0.1", "lr=0.2"),
            edit("momentum=0.9", "momentum=0.5"),
            edit("momentum=0.9", "weight_decay=0.5"),
            edit(
                "torch.optim.SGD(lin.parameters(), lr=0.1, momentum=0.9)",
                "torch.optim.Adam(lin.parameters())",
            ),
        ],
    ),
    "random": subject(
        """\
        import random
        random.seed(0)
        def f(x): return x + random.random()
        results = infer(f, X)
        """,
        [edit("seed(0)", "seed(1)")],
    ),
    "context": subject(
        """\
        import contextvars, threading
        CV = contextvars.ContextVar("CV", default=1.0)
        def f(x): return x * CV.get()
        results = infer(f, X)
        """,
        [edit("results =", "CV.set(5.0)\nresults ="), edit("default=1.0", "default=3.0")],
    ),
    "breaks": subject(
        """\
        K = 2.0
        def f(x):
            y = x + 1
            torch._dynamo.graph_break()
            return y * K
        results = infer(f, X)
        """,
        [edit("K = 2.0", "K = 3.0"), edit("x + 1", "x + 2")],
    ),
    "arguments": subject(
        """\
        def f(x): return x + len(sys.argv)
        sys.argv = ["a"]
        results = infer(f, X)
        """,
        [edit('["a"]', '["a", "b", "c"]')],
    ),
}
"""Programs with functions that have no trace, and others that torch makes of what is left of them."""

UNTRACED: dict[str, Subject] = {
    "precision of float32": subject(
        """\
        torch.backends.fp32_precision = "ieee"
        def f(x): return x * 2
        results = infer(f, X)
        """,
        [edit('"ieee"', '"tf32"'), edit("x * 2", "x * 3")],
    ),
    "attribute of no name": subject(
        """\
        class C: pass
        c = C()
        setattr(c, "0", 2.0)
        def f(x): return x * getattr(c, "0")
        results = infer(f, X)
        """,
        [edit("2.0", "3.0")],
    ),
    "how many hooks there are": subject(
        """\
        from torch.utils.hooks import RemovableHandle
        other = torch.nn.Linear(4, 4)
        def f(x): return x * (RemovableHandle.next_id + 1)
        results = infer(f, X)
        """,
        [edit("def f", "other.register_forward_pre_hook(print)\ndef f")],
    ),
    "context managers": subject(
        """\
        import contextlib
        @contextlib.contextmanager
        def scope(): yield 2.5
        def f(x):
            with scope() as v: return x * v
        results = infer(f, X)
        """,
        [edit("yield 2.5", "yield 3.5")],
    ),
    "sets": subject(
        """\
        NAMES = {"one", "two", "three"}
        VALUES = {"one": 1.0, "two": 20.0, "three": 300.0}
        def f(x):
            for name in NAMES: x = x * 2 + VALUES[name]
            return x
        results = infer(f, X)
        """,
        [edit("300.0", "400.0")],
    ),
    "clocks": subject(
        """\
        import time
        def f(x): return x + 1 if time.time() > 0 else x
        results = infer(f, X)
        """,
        [edit("x + 1", "x + 2")],
    ),
    "named environment": subject(
        """\
        import os
        NAME = "NBX"
        def f(x): return x * 2 if os.environ.get(NAME, "0") == "0" else x * 3
        results = infer(f, X)
        """,
        [edit("NAME =", 'os.environ["NBX"] = "1"\nNAME =')],
    ),
    "constant result": subject(
        """\
        K = [2.0]
        @torch._dynamo.assume_constant_result
        def g(): return K[0]
        def f(x): return x * g()
        results = infer(f, X)
        """,
        [edit("[2.0]", "[3.0]")],
    ),
}
"""Programs that read what no fact tells: they have no trace, or none that another process can adopt."""
