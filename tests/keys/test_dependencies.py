"""What torch's keys leave out: plain graphs keep torch's keys; what cannot be told bypasses the caches."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from nbcache.torch_bridge.torch_behavior import release, torch_version
from support.front_door import Environ, RunPython
from support.torch_versions import HAS_TRACES

pytestmark = pytest.mark.compile

RELEASE = release(torch_version() or "0.0")

PROGRAM = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
LOAD = {load!r}
if LOAD == "first":
    shell.run_line_magic("load_ext", "nbcache")
shell.run_cell({before!r}).raise_error()
if LOAD == "then":
    shell.run_line_magic("load_ext", "nbcache")
shell.run_cell({call!r}).raise_error()
keys = {{}}
if LOAD:
    import nbcache
    session = nbcache.session()
    session.flush(60)
    keys = {{graph.key: [str(graph.outcome), graph.reason or ""] for graph in session.graphs}}
    keys["notices"] = session.notices
import glob, os
folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
paths = glob.glob(folder + "/fxgraph/*/*") + glob.glob(folder + "/aotautograd/*")
keys["entries"] = sorted(path.rsplit("/", 1)[1] for path in paths)
print(json.dumps(keys))
"""
FIRST = """
import torch
def op_of(f, w):
    return lambda x: f(x).mm(w)
W = torch.ones(4, 4)
"""


def run(
    run_python: RunPython, before: str, call: str, *, load: str = "first", env: Any = None
) -> dict[str, Any]:
    """Return the outcome and reason of each graph, by its key."""
    report = "import os; os.environ |= {'NBCACHE_REPORT': 'never', 'NBCACHE_LIVE': 'off'}\n"
    done = run_python(
        report + PROGRAM.format(load=load, before=FIRST + before, call=call),
        env,
        having="IPython" if load == "first" else "torch",  # "first" is before torch is imported
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def graphs(found: dict[str, Any]) -> list[list[str]]:
    return [value for key, value in found.items() if key not in ("entries", "notices")]


CALL = "torch.compile(f, mode='lite')(torch.ones(4, 4, requires_grad=True)).sum().backward()"


def test_graphs_without_any_of_this_have_torchs_own_keys(
    run_python: RunPython, isolated: dict[str, str], tmp_path: Path
) -> None:
    first = "torch.compile(lambda x: (x @ W).sin())(torch.ones(4, 4))\n"
    if RELEASE >= (2, 13):  # whose keys hold autocast's dtype
        first = f"with torch.autocast('cpu', torch.bfloat16):\n    {first}"
    primitives = "torch.nn.functional.dropout(torch.addcmul(x, x, x), 0.5)"  # inductor's own, in Python
    before = f"def f(x):\n    return ({primitives} @ x).relu() @ W\n" + first
    mine, torchs = (
        {**isolated, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name)} for name in ("mine", "torchs")
    )

    call = CALL.replace("mode='lite'", "mode='default'")  # which registers all of torch's patterns
    with_nbcache = run(run_python, before, call, env=mine)
    without = run(run_python, before, call, load="", env=torchs)

    # Two forward and a backward graph, and what AOTAutograd makes of them.
    assert [name[0] for name in without["entries"]] == ["a", "a", "f", "f", "f"]
    same = {*with_nbcache["entries"]} & {*without["entries"]}
    # torch's keys of graphs of training leave out what a backward may write to.
    assert sorted(name[0] for name in same) == ["a", "a", "f"]
    assert len(with_nbcache["entries"]) == len(without["entries"])


CUSTOM = """
lib = torch.library.Library("mylib", "DEF")
lib.define("op(Tensor x) -> Tensor")
lib.impl("op", lambda x: x * 2, "CPU")
{more}
def f(x):
    return torch.ops.mylib.op(x.detach()).mm(W) + x
"""


@pytest.mark.parametrize("load", ["first", "then"])
def test_what_was_registered_before_nbcache_was_loaded_bypasses_the_caches_and_says_why(
    run_python: RunPython, load: str
) -> None:
    meta = CUSTOM.format(more='lib.impl("op", lambda x: torch.empty_like(x), "Meta")')

    found = graphs(run(run_python, meta, CALL, load=load))

    if load == "first":
        assert {outcome for outcome, _ in found} == {"miss"}
    else:
        assert {outcome for outcome, _ in found} == {"bypass"}
        assert "`mylib::op`" in found[0][1] and "before nbcache was loaded" in found[0][1]


@pytest.mark.parametrize(
    "more",
    [
        'torch.library.register_fake("mylib::op", lambda x: torch.empty_like(x))',
        (
            '@torch.library.custom_op("mylib::other", mutates_args=())\n'
            "def other(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n"
            "other.register_fake(lambda x: torch.empty_like(x))\n"
            'torch.library.register_fake("mylib::op", lambda x: torch.ops.mylib.other(x))'
        ),
    ],
)
def test_what_torch_keeps_itself_is_told_though_it_was_registered_before(
    run_python: RunPython, more: str
) -> None:
    found = graphs(run(run_python, CUSTOM.format(more=more), CALL, load="then"))

    assert {outcome for outcome, _ in found} == {"miss"}


@pytest.mark.parametrize("is_earlier", [True, False])
def test_an_operator_of_torchs_that_is_replaced_counts_though_torch_was_imported_before(
    run_python: RunPython, is_earlier: bool
) -> None:
    """What was replaced before nbcache was loaded bypasses the caches."""
    program = "def f(x):\n    return x @ W\n"
    replaced = 'lib = torch.library.Library("aten", "IMPL")\nlib.impl("asinh", lambda x: x * 2, "Autograd")\n'
    cells = (replaced + program, CALL) if is_earlier else (program, replaced + CALL)

    found = graphs(run(run_python, *cells, load="then"))

    assert {outcome for outcome, _ in found} == {"bypass" if is_earlier else "miss"}
    assert ("`aten::asinh`" in found[0][1]) is is_earlier


RAISE = 'def fail(*arguments):\n    raise ZeroDivisionError("ours")\n'
FAULTS = {
    "an exception while dependencies are computed": f"""
from nbcache.keys.cache_key import Dependencies
{RAISE}Dependencies.of = fail
""",
    "an exception while a registration is noted": f"""
from nbcache.keys.operators import Registrations
{RAISE}Registrations._note_function = fail
""",
    "an exception where a hit is judged": f"""
from nbcache.keys import cache_key
{RAISE}cache_key._fits = cache_key.inputs_sharing_memory = fail
""",
    "another text of the dispatcher": """
dump = torch._C._dispatch_dump
torch._C._dispatch_dump = lambda name: dump(name).replace("registered at", "is from")
""",
}
OPERATOR_OF_A_CELL = """
lib = torch.library.Library("mylib", "DEF")
lib.define("op(Tensor x) -> Tensor")
lib.impl("op", lambda x: x * 2, "CPU")
lib.impl("op", lambda x: torch.empty_like(x), "Meta")
def f(x):
    return torch.ops.mylib.op(x.detach()).mm(W) + x
"""


def files(folder: str) -> set[str]:
    return {str(path) for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_fault_of_ours_leaves_a_kernel_to_plain_torch_which_hits_in_its_own_folder(
    fault: str, run_python: RunPython, isolated: Environ
) -> None:
    env = {**isolated, "NBCACHE_TRACE": "on"}
    program = "def f(x):\n    return x.mm(W)\n" if "a hit is judged" in fault else OPERATOR_OF_A_CELL
    run(run_python, program, CALL, env=env)
    stored = files(isolated["NBCACHE_DIR"])
    run(run_python, program, CALL, load="", env=env)  # plain torch

    found = run(run_python, FAULTS[fault] + program, CALL, env=env)

    assert {outcome for outcome, _ in graphs(found)} == {"hit"}
    (notice,) = found["notices"]
    assert notice.endswith("[plain-torch]") and ("ours" in notice or "dispatcher prints" in notice)
    assert files(isolated["NBCACHE_DIR"]) == stored


def install(folder: Path, name: str, source: str, version: str = "1.0") -> str:
    """Install a package of one module; return code that imports it."""
    site = folder / "lib" / "site-packages"
    digest = hashlib.sha256(source.encode()).hexdigest()
    for path, text in (
        (site / name / "__init__.py", source),
        (site / f"{name}-{version}.dist-info" / "METADATA", f"Name: {name}\nVersion: {version}\n"),
        (site / f"{name}-{version}.dist-info" / "RECORD", f"{name}/__init__.py,sha256={digest},\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return f"import sys\nsys.path.append({str(site)!r})\nimport {name}\n"


QUANTIZES = """
import torch
from torch._inductor.decomposition import register_decomposition
library = torch.library.Library("quantizes", "FRAGMENT")
library.define("affine(Tensor x) -> Tensor")
def _affine(x):
    return x * 2
library.impl("affine", _affine, "CompositeExplicitAutograd")
register_decomposition([torch.ops.quantizes.affine])(_affine)
"""
PLAIN = "def f(x):\n    return (x @ W).sin()\n"
ONCE = "with torch.no_grad():\n    torch.compile(f, mode='lite')(torch.ones(4, 4))"


def test_a_decomposition_for_an_operator_that_no_graph_calls_costs_neither_hits_nor_traces(
    run_python: RunPython, isolated: Environ, tmp_path: Path
) -> None:
    env = {**isolated, "NBCACHE_TRACE": "on"}
    imports = install(tmp_path, "quantizes", QUANTIZES)
    run(run_python, PLAIN, ONCE, env=env)

    (outcome, reason), *_ = graphs(run(run_python, imports + PLAIN, ONCE, env=env))

    assert outcome == "hit" and (reason.startswith("not traced") or not HAS_TRACES)


def test_a_decomposition_counts_for_the_graphs_that_call_its_operator(
    run_python: RunPython, tmp_path: Path
) -> None:
    calls = "def f(x):\n    return torch.ops.quantizes.affine(x).mm(W)\n"
    outcomes = []
    for source in (QUANTIZES, QUANTIZES, QUANTIZES.replace("x * 2", "x * 3")):
        imports = install(tmp_path, "quantizes", source)
        outcomes.append([outcome for outcome, _ in graphs(run(run_python, imports + calls, ONCE))])

    assert outcomes == [["miss"], ["hit"], ["miss"]]


REPLACES = """
import torch, torch._functorch.vmap
index_select, batched = torch.index_select, torch._functorch.vmap._process_batched_inputs
def _index_select(input, dim, index):
    return index_select(input, dim, index) if OPTION else open("/dev/null")
def _batched(in_dims, args, func):
    return batched(in_dims, args, func) if OPTION else open("/dev/null")
OPTION = 1
torch.index_select = _index_select
torch._functorch.vmap._process_batched_inputs = _batched
"""


def test_what_a_package_replaces_in_torch_and_nbcache_cannot_follow_counts_by_its_version(
    run_python: RunPython, isolated: Environ, tmp_path: Path
) -> None:
    env = {**isolated, "NBCACHE_TRACE": "on"}
    calls = "def f(x):\n    return torch.index_select(x, 0, torch.tensor([1])).sin()\n"
    plain, called = [], []
    edited = REPLACES.replace("OPTION = 1", "OPTION = 2")
    for source, version in ((REPLACES, "1.0"), (REPLACES, "1.0"), (edited, "1.0"), (edited, "1.1")):
        shutil.rmtree(tmp_path / "lib", ignore_errors=True)
        imports = install(tmp_path, "replaces", source, version)
        plain.append(graphs(run(run_python, imports + PLAIN, ONCE, env=env)))
        called.append([outcome for outcome, _ in graphs(run(run_python, imports + calls, ONCE, env=env))])

    expected = ["miss", "hit", "miss", "miss"]
    assert [outcome for ((outcome, _),) in plain] == [outcome for (outcome,) in called] == expected
    assert plain[1][0][1].startswith("not traced") or not HAS_TRACES


def test_what_a_user_puts_around_such_a_function_bypasses_the_caches(
    run_python: RunPython, tmp_path: Path
) -> None:
    imports = install(tmp_path, "replaces", REPLACES)
    mine = "def mine(input, dim, index):\n    return index_select(input, dim, index) * NUMBER\n"
    mine += "index_select, torch.index_select = torch.index_select, mine\n"

    ((outcome, _),) = graphs(run(run_python, f"{imports}NUMBER = 1\n{mine}{PLAIN}", ONCE))

    assert outcome == "bypass"


DECORATES = """
import collections, dataclasses, functools
OPTION = 1
REGISTRY = {}
Pair = collections.namedtuple("Pair", "one other")
@dataclasses.dataclass
class Point:
    x: int
class Slotted:
    __slots__ = "hook"
class Table:
    def __init__(self):
        self.hooks = {}
        self.slotted = Slotted()
        self.others = Pair(1, Point(2))
    def __call__(self, x):
        for hooks in self.hooks.values():
            for hook in hooks:
                x = hook(x)
        return self.slotted.hook(x) if hasattr(self.slotted, "hook") else x
TABLE = Table()
def outer(x):
    return inner(x) if OPTION else open("/dev/null")
def inner(x):
    return TABLE(x)
def decorated(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(x) if OPTION else open("/dev/null")
    return wrapper
def dispatch(x):
    return REGISTRY["f"](x) if OPTION else open("/dev/null")
def closure(n):
    return lambda: n
"""


def test_a_function_of_the_user_that_a_package_holds_bypasses_the_caches(
    run_python: RunPython, tmp_path: Path
) -> None:
    mine = "decorates.REGISTRY['f'] = lambda x: x * 2\ntorch.Tensor.sigmoid = decorates.dispatch\n"

    ((outcome, _),) = graphs(run(run_python, install(tmp_path, "decorates", DECORATES) + mine + PLAIN, ONCE))

    assert outcome == "bypass"


HOLDS = """
import functools
from nbcache.keys.fingerprints.known_code import KnownPackages
from nbcache.keys.graph_fingerprint import package_identity
known = KnownPackages([])
def mine(x): return x
class Mine:
    def __call__(self, x): return x
class Mode(str):
    def __call__(self, x): return x
class Proxy:
    __class__ = property(lambda self: 1 / 0)
table = decorates.TABLE
for value in (decorates.dispatch, decorates.outer, decorates.Table):
    assert package_identity(known, value).startswith(f"decorates.{value.__name__} "), value
def check(value):
    print(package_identity(known, value) == "", end=" ")
for registered in ({"f": mine}, {mine: 1}, {"f": [functools.partial(mine)]}, {"f": (Mine(),)},
                   {"f": Mode()}, {"f": Proxy()},
                   {**{n: decorates.closure(n) for n in range(900)}, "f": [mine]}):
    decorates.REGISTRY.update(registered)
    check(decorates.dispatch)
    decorates.REGISTRY.clear()
table.hooks["f"] = [mine]
check(decorates.outer)
table.hooks.clear()
table.slotted.hook = mine
check(decorates.outer)
del table.slotted.hook
decorates.Table.__call__ = mine
check(decorates.outer)
check(decorates.Table)
check(decorates.decorated(mine))
"""


def test_code_of_the_user_is_found_in_whatever_a_package_holds_it(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = run_python(install(tmp_path, "decorates", DECORATES) + HOLDS)

    assert done.stdout.split() == ["True"] * 12


OPERATOR = """
#include <Python.h>
#include <ATen/ATen.h>
#include <torch/library.h>
static at::Tensor twice(const at::Tensor& x) { return x * 2; }
static at::Tensor shape(const at::Tensor& x) { return at::empty_like(x); }
TORCH_LIBRARY(compiled_test, m) { m.def("twice(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(compiled_test, CPU, m) { m.impl("twice", &twice); }
TORCH_LIBRARY_IMPL(compiled_test, Meta, m) { m.impl("twice", &shape); }
"""


@pytest.mark.proof
def test_operators_in_cpp_count_by_their_shared_library_wherever_it_lies(
    run_python: RunPython, isolated: Environ, tmp_path: Path
) -> None:
    source, library = tmp_path / "operator.cpp", tmp_path / "first" / "operator.so"
    source.write_text(OPERATOR)
    library.parent.mkdir()
    where = run_python("import torch; print(torch.__path__[0])", having="torch").stdout.strip()
    includes = [f"-I{where}/include", f"-I{where}/include/torch/csrc/api/include"]
    includes.append(f"-I{sysconfig.get_path('include')}")
    command = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", *includes]
    links = [f"-L{where}/lib", "-lc10", "-ltorch_cpu", "-ltorch"]
    subprocess.run([*command, str(source), "-o", str(library), *links], check=True, timeout=600)
    moved, other = tmp_path / "second" / "moved.so", tmp_path / "third.so"
    moved.parent.mkdir()
    shutil.copy(library, moved)
    other.write_bytes(library.read_bytes() + b"another build")

    outcomes = []
    for path in (library, moved, other):
        load = f"torch.ops.load_library({str(path)!r})\n"
        body = "def f(x):\n    return torch.ops.compiled_test.twice(x.detach()) @ W + x\n"
        outcomes.append({outcome for outcome, _ in graphs(run(run_python, load + body, CALL))})

    assert outcomes == [{"miss"}, {"hit"}, {"miss"}]


MEANWHILE = """
import os
from torch._inductor.codegen.triton import TritonKernelOverrides
TritonKernelOverrides()  # as the first Triton kernel that is written
torch.export.export(torch.nn.Linear(4, 4), (torch.ones(4, 4),)).run_decompositions()
load, total = torch.load, torch.Tensor.sum
torch.load = lambda *arguments: load(*arguments) if os.environ.get("A") else None
torch.Tensor.sum = lambda tensor: tensor
torch.Tensor.sum = total
"""


def test_what_torch_does_meanwhile_and_what_no_graph_reaches_change_no_key(run_python: RunPython) -> None:
    before = "def f(x):\n    return (x @ W).sin().sum()\n"

    outcomes = [
        [outcome for outcome, _ in graphs(run(run_python, before + meanwhile, CALL))]
        for meanwhile in ("", MEANWHILE)
    ]

    assert outcomes == [["miss", "miss"], ["hit", "hit"]]


EACH_PLACE = """
import importlib, sys, types
import torch
from nbcache.keys.user_passes import SETTINGS
from nbcache.keys.cache_key import Dependencies
from nbcache.keys.fingerprints.objects import Unknown
from nbcache.keys.monkeypatches import TABLES, all_tables
for name in (*TABLES, *SETTINGS):
    importlib.import_module(name)
found = Dependencies(torch, late=False)
found.follow_attributes(torch, None, None)
for name in TABLES:
    found.note_tables(sys.modules[name], None, None)
graph = torch.fx.symbolic_trace(lambda x: x)
details = types.SimpleNamespace(aot_config=types.SimpleNamespace(decompositions=None))
exec("def one(*arguments):\\n    return 1\\ndef two(*arguments):\\n    return 2")

def count(what, put, take):
    digests, named = [], 0
    for function in (one, two):
        put(function)
        digests.append(found.of(graph, [], details))
        try:
            found.any_graph_digest()
        except Unknown as why:
            place = str(why).partition("code of yours is part of the compiler: ")[2]
            named += what in place
        take()
    print(what, named, len({*digests, None}), found.of(graph, [], details))

for name, table in all_tables():
    if isinstance(table, set):
        count(name, table.add, lambda: table.difference_update({one, two}))
    elif isinstance(table, list):
        count(name, lambda function: table.append((1, function)), table.pop)
    else:
        count(name, lambda function: table.update(mine=function), lambda: table.pop("mine"))
for module, names in SETTINGS.items():
    module = sys.modules[module]
    for name in names:
        before = getattr(module, name, None)
        if name in module._config:
            value = (lambda function: [function]) if isinstance(before, list) else (lambda function: function)
            count(
                name,
                lambda function: setattr(module, name, value(function)),
                lambda: setattr(module, name, before),
            )
from torch._inductor.virtualized import V, threadlocal
count(
    "choices",
    lambda function: V.set_choices_handler(types.SimpleNamespace(choose=function)),
    lambda: vars(threadlocal).pop("__torchinductor_choices"),
)
"""


def test_code_in_each_of_torchs_tables_and_settings_counts_while_it_is_there(run_python: RunPython) -> None:
    lines = [line.split() for line in run_python(EACH_PLACE, having="torch").stdout.splitlines()]

    assert len(lines) > 25
    assert [line for line in lines if line[-3:] != ["2", "3", "None"]] == []


ANNOTATED = """
import types, torch
from nbcache.keys.cache_key import Dependencies
found = Dependencies(torch, late=False)
found.follow_attributes(torch, None, None)

def digest(*said, calls=3):
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for _ in range(calls):
        node = graph.call_function(torch.sin, (node,))
    graph.output(node)
    for node, each in zip(graph.nodes, said):
        node.meta["custom"] = each
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    details = types.SimpleNamespace(aot_config=types.SimpleNamespace(decompositions=None))
    return found.of(module, [], details)

assert digest() is None and digest({}, {}) is None
assert digest({"by": 1}, {"by": 1}) == digest({"by": 1, "call_id": 1}, {"by": 1, "call_id": 2})
told = [[{"by": 1}], [{"by": 1}, {"by": 1}], [{}, {"by": 1}], [{"by": True}], [{"by": 1.0}], [{"in": 1}]]
assert len({digest(*each) for each in told}) == len(told)
assert digest(*[{"by": 1, "phase": "one"}] * 9000, calls=9000) is not None
"""


SYMBOLS = """
import torch
from torch._dynamo.source import LocalSource
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from nbcache.keys.graphs import TracedGraph

def noted(*steps, uses="x"):
    # Return what is noted of a graph that uses one of these tensors, after these steps of a trace.
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    def tensor(name, size):
        dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
        return mode.from_tensor(torch.ones(size), symbolic_context=dynamic, source=LocalSource(name))
    values = {"x": tensor("x", 5), "y": tensor("y", 7)}
    if "z before" in steps:
        values["z"] = tensor("z", 9)
    for step in steps:
        if step != "z before":
            bool(eval(step, {"torch": torch}, values))
    graph = torch.fx.Graph()
    node = graph.placeholder(uses)
    node.meta["val"] = values[uses]
    graph.output(node)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    with tracing(TracingContext(mode)):
        return [*TracedGraph(torch, module).shapes([])]

plain = noted()
assert plain and noted("y.shape[0] > 3") == noted("z before") == noted(uses="y") == plain
told = ["x.shape[0] > 3", "x.shape[0] > 4", "x.shape[0] + 2 == y.shape[0]", "x.shape[0] != y.shape[0]"]
told += ["torch._check(x.shape[0] < 100)"]
assert len({repr(each) for each in [plain, *map(noted, told)]}) == 1 + len(told)
linked = noted("x.shape[0] != y.shape[0]")
assert noted("x.shape[0] != y.shape[0]", "y.shape[0] > 3") != linked
assert noted("x.shape[0] != y.shape[0]", "y.shape[0] > 3") != noted("y.shape[0] > 3")
replaced = noted("x.shape[0] + 2 == y.shape[0]", uses="y")
assert replaced != noted("x.shape[0] + 2 == y.shape[0]", "x.shape[0] > 3", uses="y")
"""


DEFAULTS = """
import torch
from nbcache.keys.global_state import flags
from nbcache.keys.cache_key import Dependencies
assert [*flags(torch)] == []
torch._C._get_nnpack_enabled = lambda: False  # as if a torch to come began so
torch._C._get_sdp_priority_order = lambda: [4, 3, 2, 1, 0]
Dependencies(torch, late=True)
assert len([*flags(torch)]) == 2
version, torch.__version__ = torch.__version__, "2.99.0"
every = {name for name, _ in flags(torch)}  # nbcache does not know how that torch began
assert {"_get_nnpack_enabled", "_get_cudnn_enabled", "precision of mkldnn conv"} <= every
torch.__version__ = version
Dependencies(torch, late=False)
assert [*flags(torch)] == []
torch._C._get_nnpack_enabled = lambda: True
assert [*flags(torch)] == [("_get_nnpack_enabled", True)]
"""


NEEDED = """
import types, torch
from nbcache.keys.fingerprints.known_code import KnownPackages
from nbcache.keys import monkeypatches
monkeypatches.requires = lambda name: ["filelock", "Next-Year>=1.0; extra == 'all'"]
replacements = monkeypatches.Replacements(KnownPackages([torch.__path__[0]]))
for module, is_users in {"next_year.functions": False, "mpmath": False, "a_users": True}.items():
    scope = {"__name__": module}
    exec(compile("def f(): ...", "/usr/lib/python3/site-packages/f.py", "exec"), scope)
    assert replacements._is_third_party_function(torch.fx, scope["f"]) is is_users
"""


PASSES = """
import torch, torch._inductor.fx_passes.post_grad as post_grad
from nbcache.keys.fingerprints.digests import Fingerprint
from nbcache.keys.fingerprints.known_code import KnownPackages
from nbcache.keys.user_passes import Patterns
known = KnownPackages([torch.__path__[0]])

def digests(*passes):
    patterns, states = Patterns(known), [Fingerprint(known) for _ in passes]
    for state, pattern_pass in zip(states, passes):
        assert patterns.add_pass(state, pattern_pass)
    return [state.digest for state in states]

first, second, *_ = post_grad.pass_patterns
assert digests(first, second) == digests(second, first)[::-1]
assert len({*digests(first, second)}) == 2
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(ANNOTATED, id="annotations count by where they begin and end"),
        pytest.param(SYMBOLS, id="dynamic sizes count that a graph has or that guards lead to"),
        pytest.param(DEFAULTS, id="flags have the defaults that torch has at its import"),
        pytest.param(NEEDED, id="functions of what torch requires are not taken for a user's"),
        pytest.param(PASSES, id="pattern passes have the same digests in any order"),
    ],
)
def test_the_parts_of_a_graph_are_told_apart(run_python: RunPython, program: str) -> None:
    run_python(program, having="torch")


OTHERWISE = """
import torch._inductor.graph as graph
import torch._inductor.codegen.common as common
for module, name in ((graph, "make_fallback"), (common, "register_backend_for_device")):
    def moved(something_new, *args, original=getattr(module, name), **kwargs):
        return original(something_new, *args, **kwargs)
    setattr(module, name, moved)
"""


def test_where_torchs_own_entries_cannot_be_told_graphs_are_served_all_the_same(
    run_python: RunPython,
) -> None:
    runs = [run(run_python, OTHERWISE + PLAIN, ONCE, load="then") for _ in range(2)]

    assert [outcome for found in runs for outcome, _ in graphs(found)] == ["miss", "hit"]
    lost = [name for name in ("follow_fallbacks", "follow_devices") if name in str(runs[0]["notices"])]
    assert lost == ["follow_fallbacks", "follow_devices"] and "[plain-torch]" not in str(runs[0]["notices"])


def test_what_was_compiled_ahead_of_time_is_loaded_as_ever(run_python: RunPython, tmp_path: Path) -> None:
    path = str(tmp_path / "compiled.pt")
    compiled = "torch.compile(f, mode='lite', fullgraph=True).aot_compile(((torch.ones(4, 4),), {}))"
    before = (
        f"PATH = {path!r}\ntorch._dynamo.config.enable_aot_compile = True\ndef f(x): return x.sin() + 1\n"
    )
    loaded = (
        "with open(PATH, 'rb') as file:\n    loaded = torch.compiler.load_compiled_function(file)\n"
        "assert torch.equal(loaded(torch.ones(4, 4)), f(torch.ones(4, 4)))"
    )

    run(run_python, before, f"{compiled}.save_compiled_function(PATH)\n{loaded}")
    run(run_python, before, loaded)
