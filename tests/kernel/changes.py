"""A program, and changes of it, each with what its miss says first; None where torch hits."""

from __future__ import annotations

import re

__all__ = ["CHANGES", "OPERATOR", "OPERATORS", "OPTIMIZER", "PROGRAM", "STEPS", "TRAINING", "TRAININGS"]

PROGRAM = """\
import os, torch
from torch import nn
SCALE = 2.0
TABLE = {"gain": 1.5}
MODE = "lite"
OPTIONS = {}
def helper(x): return x.sin()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.0)
        self.factor = 3.0
    def forward(self, x): return self.drop(self.a(x)) * self.factor
torch.manual_seed(0)
net = Net()
BIAS = torch.ones(8)
def make(power):
    def inner(x): return x ** power
    return inner
inner = make(2)
@torch.library.custom_op("nbtest::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor: return x * 2
@double.register_fake
def _(x): return torch.empty_like(x)
def f(x, lr, flag):
    y = inner(helper(net(x))) * SCALE * TABLE["gain"] * lr + BIAS
    return y.sum() if flag else y.mean()
x = torch.randn(4, 8)
LR = 0.001
FLAG = True
def results(compile):
    with torch.no_grad():
        return [compile(f, **OPTIONS)(x, LR, FLAG)]
"""

WEIGHTS = r"parameter net\.a\.weight: f32\[8, 8\]"
PRECISION = "precision of matrix multiplications"
SETTING = "SCALE = 2.0"
LATE = "LR = 0.001"
DTYPE = "default dtype: torch.float32 before, torch.float64 now"
NO_BIAS = r"constant net\.a\.bias: not a constant before, None now"
CONFIG = f"{SETTING}; import torch._inductor.config as c; c."
HELPER, FORWARD = (rf"(?:{each}\(\), In\[1\]:\d+, has changed; )?" for each in ("helper", r"Net\.forward"))
"""What traces add, on a torch that there are traces for."""
HOOKED = "net = Net(); net.a.register_forward_hook(lambda module, given, out: -out)"
TWO = "self.factor = 3.0\n        self.a = nn.Sequential(nn.Linear(8, {0}), nn.Linear({0}, 8))"


def changed(old: str, new: str, told: str | None) -> tuple[str, str | None]:
    """Return the program with one text in the place of another, and what is told."""
    assert old in PROGRAM, old
    return PROGRAM.replace(old, new, 1), told


def set_to(name: str, value: str) -> tuple[str, str | None]:
    """Return the program with a setting of inductor's that is not its default."""
    told = f"setting {re.escape(name)}: the default before, {re.escape(value)} now"
    return changed(SETTING, f"{CONFIG}{name} = {value}", told)


def compiled(options: str, told: str) -> tuple[str, str | None]:
    """Return the program compiled with these options, and without a mode."""
    return changed('MODE = "lite"\nOPTIONS = {}', f"MODE = None\nOPTIONS = {options}", told)


def given(new: str, told: str | None) -> tuple[str, str | None]:
    """Return the program with another input."""
    return changed("randn(4, 8)", new, told)


def after(new: str, told: str | None) -> tuple[str, str | None]:
    """Return the program with something done before it is compiled."""
    return changed(SETTING, f"{SETTING}; {new}", told)


CHANGES = {
    # inputs
    "batch": given("randn(6, 8)", r"input x: f32\[4, 8\] before, f32\[6, 8\] now"),
    "rank": given("randn(2, 4, 8)", r"input x: f32\[4, 8\] before, f32\[2, 4, 8\] now"),
    "stride": given("randn(8, 4).t()", r"input x: .* before, f32\[4, 8\] of strides \(1, 4\) now"),
    "dtype": given("randn(4, 8).double(); net = net.double()", f"{WEIGHTS} before, f64"),
    "offset": given("randn(5, 8)[1:]", None),
    "values": given("randn(4, 8) * 3", None),
    "another seed": changed("manual_seed(0)", "manual_seed(1)", None),
    "requires grad": changed("torch.ones(8)", "torch.ones(8, requires_grad=True)", None),
    "shape of a global": changed("torch.ones(8)", "torch.ones(1)", r"input BIAS: f32\[8\] before, f32\[1\]"),
    "a view of an input": changed("x = torch.randn(4, 8)", "x = torch.randn(4, 8); BIAS = x[0]", None),
    "frozen parameters": changed("net = Net()", "net = Net().requires_grad_(False)", None),
    # constants
    "learning rate": changed("LR = 0.001", "LR = 0.0003", "constant lr: 0.001 before, 0.0003 now"),
    "integer": changed("LR = 0.001", "LR = 1", "constant lr: 0.001 before, 1 now"),
    "tensor": changed("LR = 0.001", "LR = torch.tensor(0.001)", "constant lr: 0.001 before, not a constant"),
    "flag": changed("FLAG = True", "FLAG = False", "constant flag: True before, False now"),
    "flag is None": changed("FLAG = True", "FLAG = None", "constant flag: True before, None now"),
    # code
    "body": changed("y.sum() if", "y.sum().exp() if", r"graph: 1 node differs: none before, exp\(_\) now"),
    "operator": changed("+ BIAS", "- BIAS", "graph: 1 node differs: add.* before, sub.* now"),
    "helper": changed("x.sin()", "x.cos()", HELPER + r"graph: 1 node differs: sin\(_\) before, cos\(_\) now"),
    "closure": changed("make(2)", "make(3)", "constant power of inner: 2 before, 3 now"),
    "global": changed(SETTING, "SCALE = 4.0", "constant SCALE: 2.0 before, 4.0 now"),
    "dictionary": changed('"gain": 1.5', '"gain": 2.5', r"constant TABLE\['gain'\]: 1.5 before, 2.5 now"),
    "attribute": changed("factor = 3.0", "factor = 5.0", "constant net.factor: 3.0 before, 5.0 now"),
    "forward": changed("* self.factor\n", "/ self.factor\n", FORWARD + "graph: 1 node differs: mul.* div"),
    "more parameters": changed("self.factor = 3.0", TWO.format(8), "inputs: 4 before, 6 now"),
    "no bias": changed("(8, 8)\n", "(8, 8, bias=False)\n", NO_BIAS),
    "dropout": changed("Dropout(0.0)", "Dropout(0.5)", "constant net.drop.p: 0.0 before, 0.5 now"),
    "evaluation": changed("net = Net()", "net = Net().eval()", None),
    "one factor less": changed("SCALE * TABLE", "TABLE", "constant SCALE: 2.0 before, not a constant now"),
    "hook": changed("net = Net()", HOOKED, r"graph: 1 node differs: clone.* neg"),
    "custom operator": changed("x.sin()", "double(x)", HELPER + "graph: 1 node differs: sin.* nbtest.double"),
    "code of an operator that is not called": changed("return x * 2\n", "return x * 3\n", None),
    "comment": changed("def helper(x): return", "def helper(x):\n    # why\n    return", None),
    "name of an argument": changed("f(x, lr, flag):\n    y =", "f(x, lr, flag):\n    z = x; y =", None),
    # how it is compiled
    "mode": changed('MODE = "lite"', 'MODE = "default"', r"mode or options: \d+ settings differ"),
    "dynamic": changed("OPTIONS = {}", 'OPTIONS = {"dynamic": True}', "sizes: fixed before, dynamic now"),
    "options": compiled('{"options": {"epilogue_fusion": False}}', r"mode or options: \d+ settings differ"),
    "backend": compiled('{"backend": "aot_eager"}', "bypass: this backend does not use torch's caches"),
    "epilogues": set_to("epilogue_fusion", "False"),
    "vectors": set_to("cpp.simdlen", "1"),
    "cache tag": after('torch.compiler.config.cache_key_tag = "mine"', "cache tag: none before, mine now"),
    # what is in force
    "threads": after("torch.set_num_threads(1)", "for this number of threads: 1 now, 2 before"),
    "default dtype": changed(LATE, f"{LATE}; torch.set_default_dtype(torch.float64)", DTYPE),
    "deterministic": after("torch.use_deterministic_algorithms(True)", r"deterministic algorithms: \(False"),
    "precision": after('torch.set_float32_matmul_precision("high")', f"{PRECISION}: .*none.* before, .*tf32"),
    "autocast": changed(
        "no_grad()", "no_grad(), torch.autocast('cpu')", "autocast: off before, bfloat16 now"
    ),
    "gradients": changed("no_grad()", "enable_grad()", "gradients: off before, on now"),
    "inference mode": changed("no_grad()", "inference_mode()", None),
    "a variable that torch read before": after('os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"', None),
}
"""By name, each a program and what is told of its miss, a regular expression."""

OPTIMIZER = """\
import torch
w = torch.nn.Parameter(torch.ones(3))
w.grad = torch.ones(3)
optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
def results(compile):
    compile(optimizer.step)()
    return [w.detach()]
"""


def stepped(old: str, new: str, told: str | None) -> tuple[str, str | None]:
    """Return the program that compiles an optimizer, with one text in the place of another."""
    assert old in OPTIMIZER, old
    return OPTIMIZER.replace(old, new, 1), told


WEIGHT = "ones(3))\nw.grad = torch.ones(3)"
GROUP = r"constant self\.param_groups\[0\]"
STEPS = {
    "learning rate of an optimizer": stepped("lr=0.1", "lr=0.2", rf"{GROUP}\['lr'\]: 0.1 before, 0.2 now"),
    "momentum": stepped("momentum=0.9", "momentum=0.8", None),  # the first step has none
    "weight decay": stepped("lr=0.1", "lr=0.1, weight_decay=0.1", rf"{GROUP}\['weight_decay'\]: 0 before"),
    "nesterov": stepped("lr=0.1", "lr=0.1, nesterov=True", rf"{GROUP}\['nesterov'\]: False before, True now"),
    "learning rate as a tensor": stepped("lr=0.1", "lr=torch.tensor(0.1)", rf"{GROUP}\['lr'\]: 0.1 before"),
    "shape of a parameter": stepped(WEIGHT, WEIGHT.replace("(3)", "(4)"), r"input 0: f32\[3\] before"),
}
"""The same for an optimizer."""

OPERATOR = """\
import torch
K = 2.0
@torch.library.custom_op("nbtest::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor: return x * K
@scale.register_fake
def _(x): return torch.empty_like(x)
def back(context, gradient): return gradient * K
scale.register_autograd(back)
x = torch.ones(3, requires_grad=True)
def results(compile):
    compile(lambda x: scale(x).sum())(x).backward()
    return [x.grad]
"""
OPERATORS = {
    "number that an operator reads": (
        OPERATOR.replace("2.0", "3.0"),
        "`K`, in back\\(\\), in `nbtest::scale`: 2.0 before, 3.0 now",
    ),
    "gradient of an operator": (
        OPERATOR.replace("gradient * K", "gradient + K"),
        r"the code of back\(\), in `nbtest::scale`",
    ),
}
"""The same for a custom operator."""

TRAINING = """\
import torch
from torch import nn
class Net(nn.Module):
    scale = 2.0
    def __init__(self, width=16):
        super().__init__()
        self.wide = nn.Linear(8, width)
        self.rest = nn.ModuleList([nn.Linear(width, 8)])
        self.register_buffer("shift", torch.ones(8))
    def forward(self, x): return self.rest[0](self.wide(x)) * self.scale + self.shift
torch.manual_seed(0)
net = Net()
def loss(net, x, factor=0.5, *, weight=0.25): return net(x).sum() * factor * weight
x = torch.ones(2, 8)
def results(compile):
    found = compile(loss)(net, x)
    found.backward()
    return [found.detach()]
"""


def trained(old: str, new: str, told: str | None) -> tuple[str, str | None]:
    """Return the program that trains, with one text in the place of another."""
    assert old in TRAINING, old
    return TRAINING.replace(old, new, 1), told


SCALE = r"constant net\.scale: 2\.0 before"
WIDE = r"parameter net\.wide\.weight: f32\[16, 8\] before"
FROZEN = rf"{WIDE}, f32\[16, 8\], frozen now"
TRAININGS = {
    "width of a layer": trained("Net()", "Net(32)", rf"{WIDE}, f32\[32, 8\] now"),
    "frozen layer": trained("= Net()", "= Net(); net.wide.requires_grad_(False)", FROZEN),
    "input that requires gradients": trained(
        "(2, 8)", "(2, 8, requires_grad=True)", "input x: .*, requires grad"
    ),
    "attribute in place of its class's": trained(
        "= Net()", "= Net(); net.scale = 3.0", rf"{SCALE}, 3\.0 now"
    ),
    "attribute of a class": trained("scale = 2.0", "scale = 4.0", rf"{SCALE}, 4\.0 now"),
    "default of an argument": trained("factor=0.5", "factor=0.6", "constant factor: 0.5 before, 0.6 now"),
    "default of a keyword": trained("weight=0.25", "weight=0.5", "constant weight: 0.25 before, 0.5 now"),
    "shape of a buffer": trained("torch.ones(8)", "torch.ones(2, 8)", r"buffer net\.shift: f32\[8\] before"),
}
"""The same for a forward and its backward."""
