"""What a key is made of: read from torch's lines, kept small, and compared."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace

import pytest

from nbcache.core.errors import FormatError
from nbcache.core.key import sha256
from nbcache.core.model import Direction, Outcome
from nbcache.core.reports import Difference, Explanation, GraphRecord
from nbcache.kernel.explain.components import (
    Components,
    Named,
    differences,
    explain_miss,
    from_lines,
    from_text,
    to_text,
)
from nbcache.kernel.explain.why import NOTHING_TO_DO, next_action

OUTSIDE = "something outside the graph (a custom operator, a class, a setting of torch)"
CODE = """<lambda>()

def forward(self, arg0_1, arg1_1):
    sin = torch.ops.aten.sin.default(arg0_1);  arg0_1 = None
    mul = torch.ops.aten.mul.Tensor(sin, 0.001);  sin = None
    return (mul,)
"""
TENSOR = (
    "TensorMetadata(dtype=torch.float32, shape=torch.Size([2, 8]), stride=(8, 1), device=device(type='cpu'), "
    "layout=torch.strided, memory_format=torch.contiguous_format, storage_offset=0, storage_bytes=64, "
    "requires_grad=False, is_quantized=False, is_conj=False, is_neg=False)"
)
LINES = [
    f"[aaaa] gm: {CODE}",
    f"[bbbb] example_inputs[0]: {TENSOR}",
    "[cccc] cpp_runtime_thread_count: 2",
    "[dddd] inductor_config[max_autotune]: False",
    "[dddd] inductor_config[cpp.simdlen]: None",
    "[eeee] fx_kwargs[get_decomp_fn]: <function f at 0x7f3ef9a70680>",
    "[ffff] torch_version: \x00\ufffd",
    "no line of torch's",
]
DEFAULTS = {"max_autotune": "False", "cpp.simdlen": "None"}


def made(*lines: str, **arguments: str) -> Components:
    """Return the components with these lines in the place of those of the same names."""
    names = {line.split("] ", 1)[1].split(": ", 1)[0] for line in lines}
    kept = [line for line in LINES if line.split("] ", 1)[-1].split(": ", 1)[0] not in names]
    return from_lines([*kept, *lines], DEFAULTS, arguments)


def input_0(*changes: tuple[str, str]) -> str:
    """Return the line of the first input with these texts replaced."""
    line = f"[x] example_inputs[0]: {TENSOR}"
    for old, new in changes:
        line = line.replace(old, new)
    return line


def words(before: Components, now: Components) -> list[str]:
    return [each.words() for each in differences(before, now)]


def test_components_are_short_and_hold_neither_defaults_nor_addresses_nor_bytes() -> None:
    found = made()
    assert found.nodes == ("sin(_)", "mul.Tensor(_, 0.001)")
    assert found.inputs == ("f32[2, 8]",)
    assert found.settings == {}
    assert found.others == {
        "gm": "#aaaa",
        "cpp_runtime_thread_count": "2",
        "fx_kwargs[get_decomp_fn]": "#eeee",
        "torch_version": "#ffff",
    }
    assert from_text(to_text(found)) == found
    assert words(found, made()) == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (input_0(("[2, 8]", "[4, 8]")), "input 0: f32[2, 8] before, f32[4, 8] now"),
        (
            input_0(("float32", "bfloat16"), ("cpu", "cuda")),
            "input 0: f32[2, 8] before, bf16[2, 8] on cuda now",
        ),
        (input_0(("(8, 1)", "(1, 2)")), "input 0: f32[2, 8] before, f32[2, 8] of strides (1, 2) now"),
        ("[x] example_inputs[1]: ('s77',)", "sizes: fixed before, dynamic now"),
        (f"[x] example_inputs[1]: {TENSOR}", "inputs: 1 before, 2 now"),
        ("[x] inductor_config[max_autotune]: True", "setting max_autotune: the default before, True now"),
        ("[x] cpp_runtime_thread_count: 1", "threads: 2 before, 1 now"),
        ("[x] torch_version: other", "torch's sources differs"),
        ("[x] fx_kwargs[get_decomp_fn]: <function g at 0x1>", "get decomp fn differs"),
        (
            f"[x] gm: {CODE.replace('0.001', '0.002')}",
            "constant in the graph: mul.Tensor(_, 0.001) before, mul.Tensor(_, 0.002) now",
        ),
        (
            f"[x] gm: {CODE.replace('sin.default', 'cos.default')}",
            "graph: 1 node differs: sin(_) before, cos(_) now",
        ),
        (f"[x] gm: {CODE.replace('(sin,', '(arg1_1,')}", "graph: its nodes are connected otherwise"),
    ],
)
def test_a_difference_is_told_in_words(line: str, told: str) -> None:
    assert words(made(), made(line)) == [told]


def test_what_follows_from_another_difference_is_listed_only_without_one() -> None:
    follows = "[x] nbcache_dependencies: {}", f"[x] gm: {CODE.replace('(sin,', '(arg1_1,')}"
    assert words(made(), made(*follows, INPUT)) == ["input 0: f32[2, 8] before, f32[4, 8] now"]
    rewired, added = "graph: its nodes are connected otherwise", f"{OUTSIDE} differs"
    assert words(made(), made(*follows)) == [rewired, added]


def test_where_most_nodes_differ_only_the_sizes_of_the_graphs_are_compared() -> None:
    def blocks(count: int, *lines: str) -> Components:
        names = [f"{kind}{number}" for number in range(count) for kind in ("mm", "add", "relu", "mul", "sum")]
        nodes = (f"    {name} = torch.ops.aten.{name}.default(arg0_1);" for name in names)
        return made(f"[{count}] gm: " + "\n".join(nodes), *lines, lr="1")

    sizes = [f"1 input and {nodes} operators" for nodes in (15, 25)]
    assert words(blocks(3), blocks(5, INPUT)) == [f"another graph: {sizes[0]} before, {sizes[1]} now"]
    longer = replace(blocks(5), constants={"lr": "2"})
    assert words(blocks(3), longer)[0] == "constant lr: 1 before, 2 now"
    assert words(blocks(8), blocks(9)) == ["graph: 5 nodes differ, first: none before, mm8(_) now"]
    explanation = Explanation("b" * 64, tuple(differences(blocks(3), blocks(5))))
    graph = GraphRecord("f", "0/0", Direction.FORWARD, Outcome.MISS, explanation=explanation)
    assert next_action(graph).startswith("nothing, if the model has changed")


def test_what_nbcache_adds_is_named_by_its_parts() -> None:
    def with_parts(digest: str = "", **parts: str) -> Components:
        return made(f"[{digest or len(parts)}] nbcache_dependencies: {json.dumps(parts)}")

    number, code, flag = "`K`, in back()", "the code of back()", "the flag deterministic"
    old, new = (
        with_parts(**{number: "2.0", code: "#a"}),
        with_parts(**{number: "3.0", code: "#b", flag: "True"}),
    )
    assert words(old, new) == [f"{number}: 2.0 before, 3.0 now", f"{code} differs"]
    assert words(with_parts(), with_parts(**{flag: "True"})) == [f"{flag}: the default before, True now"]
    assert words(with_parts(), with_parts(**{code: "#a"})) == [f"{OUTSIDE} differs"]
    renamed = [with_parts("same", **{code: text}) for text in ("#a", "#b")]  # a variable, which no key covers
    assert words(*renamed) == []
    assert from_text(to_text(new)).others == new.others


def test_what_is_no_node_is_none() -> None:
    code = CODE.replace("<lambda>()", "GraphModule()").replace("def forward", "\n# a comment\ndef forward")
    assert made(f"[x] gm: {code}").nodes == made().nodes


def test_whether_a_backward_is_needed_comes_last_and_gradients_only_where_the_mode_differs() -> None:
    then = [*LINES, "[x] fx_kwargs[is_inference]: True", "[x] grad mode: on"]
    now = [*LINES, "[x] fx_kwargs[is_inference]: False", "[x] grad mode: on", INPUT]
    found = words(from_lines(then, DEFAULTS), from_lines(now, DEFAULTS))
    assert found == ["input 0: f32[2, 8] before, f32[4, 8] now", "without backward: True before, False now"]
    off = from_lines([*LINES, "[x] grad mode: off"], DEFAULTS)
    assert words(off, from_lines([*LINES, then[-1]], DEFAULTS)) == ["gradients: off before, on now"]


def test_a_number_that_is_dynamic_now_is_no_size() -> None:
    lines = [*LINES, "[x] example_inputs[1]: ('s77',)"]
    then, names = [*LINES, "[x] example_inputs[1]: ('7',)"], [Named("input", "x"), Named("number", "n")]
    assert words(from_lines(then, {}), from_lines(lines, {}, named=names)) == [
        "number n: fixed before, dynamic now"
    ]


INPUT = input_0(("[2, 8]", "[4, 8]"))


def test_an_input_is_told_by_its_name_and_with_what_the_key_leaves_out() -> None:
    then = from_lines([*LINES], {}, named=[Named("parameter", "net.a.weight")])
    now = from_lines([*LINES, INPUT], {}, named=[Named("parameter", "net.a.weight", "frozen")])
    assert words(then, now) == ["parameter net.a.weight: f32[2, 8] before, f32[4, 8], frozen now"]
    assert words(from_text(to_text(then)), now) == words(then, now)


@pytest.mark.parametrize("named", [[Named()], [Named("input", "x"), Named("input", "y")]])
def test_an_input_that_has_no_name_or_of_which_torch_made_others_is_told_by_its_number(
    named: list[Named],
) -> None:
    found = words(from_lines(LINES, {}), from_lines([*LINES, INPUT], {}, named=named))
    assert found == ["input 0: f32[2, 8] before, f32[4, 8] now"]


def test_of_large_graphs_the_first_difference_is_told_and_how_many_nodes_follow() -> None:
    nodes = tuple(f"op{number % 7}(_)" for number in range(4000))
    before = replace(made(), nodes=nodes)
    now = replace(made("[x] gm: other"), nodes=(*nodes[:10], "new(_)", *nodes[10:]))
    assert words(before, now) == ["graph: 3991 nodes differ, first: op3(_) before, new(_) now"]


def test_a_value_that_is_none_is_told_and_one_that_cannot_be_shown_is_not() -> None:
    before = made("[x] cache_key_tag: ")
    assert words(before, made("[y] cache_key_tag: mine")) == ["cache tag: none before, mine now"]
    now = made("[z] cache_key_tag: ", "[z] inductor_config[max_autotune]: a\nb")
    assert from_text(to_text(now)) == now
    assert words(before, now) == ["setting max_autotune differs"]


def test_many_settings_are_a_mode() -> None:
    lines = [f"[x] inductor_config[{name}]: 1" for name in "abcd"]
    first, *more = words(made(), made(*lines))
    assert first == "mode or options: 4 settings differ" and len(more) == 4


@pytest.mark.parametrize(
    "text",
    [
        "no base64!",
        base64.b64encode(b"not compressed").decode(),
        base64.b64encode(zlib.compress(b"[1]")).decode(),
        base64.b64encode(zlib.compress(json.dumps([[1], [], {}, {}, {}]).encode())).decode(),
        base64.b64encode(zlib.compress(json.dumps([["\x1b[2J"], [], {}, {}, {}]).encode())).decode(),
        base64.b64encode(zlib.compress(b"[" * 5_000_000)).decode(),
    ],
)
def test_what_is_no_components_or_cannot_be_shown_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        from_text(text)


def test_the_nearest_graph_is_the_one_that_differs_least() -> None:
    far = to_text(made("[x] cpp_runtime_thread_count: 1", "[x] inductor_config[max_autotune]: True"))
    near = to_text(made("[x] cpp_runtime_thread_count: 1"))
    found = explain_miss(made(), [("far", far), ("damaged", "?"), ("unknown", ""), ("near", near)])
    assert found is not None and (found.nearest, found.clause()) == ("near", "threads: 1 before, 2 now")
    found = explain_miss(made(), [("far", far)])
    assert found is not None and found.clause().endswith("; and 1 more, see %nbcache why")
    assert explain_miss(made(), [("same", to_text(made()))]) is None


OTHER = "[x] gm: another graph"


@pytest.mark.parametrize(
    ("what", "before", "now", "action"),
    [
        ("constant lr", "0.1", "0.2", "make it a tensor"),
        ("constant K of f", "1", "2", "make it a tensor"),
        ("constant net.scale", "1", "2", "if the code only computes with it"),
        ("constant self.param_groups[0]['lr']", "0.1", "0.2", "lr=torch.tensor"),
        ("constant self.param_groups[0]['nesterov']", "False", "True", "each value has its own graph"),
        ("constant net.training", "True", "False", "train mode and eval mode"),
        ("constant lr", "0.1", "not a constant", "other values do not compile again"),
        ("input 0", "f32[2, 4]", "f32[3, 4]", "dynamic=True"),
        ("input 0", "f32[2, 4]", "f64[2, 4]", "cast it"),
        ("input 0", "f32[2, 4] on cuda:0", "f32[2, 4] on cuda:1", "on one device"),
        ("input 0", "f32[2, 4]", "f32[2, 4] of strides (1, 2)", "contiguous"),
        ("input x", "f32[2, 4]", "f32[1, 4]", "sizes 0 and 1 separately"),
        ("input x", "f32[2, 4]", "f32[2]", "the same number of dimensions"),
        ("input x", "f32[2, 4]", "f32[2, 4], requires grad", "x.detach()"),
        ("parameter net.a.weight", "f32[2, 4]", "f32[3, 4]", "if you have changed the model"),
        ("inputs", "4", "6", "the variables that the function uses"),
        ("inputs: in another order", "", "", NOTHING_TO_DO),
        ("sizes", "dynamic", "fixed", NOTHING_TO_DO),
        ("sizes", "fixed", "dynamic", "this graph serves several sizes"),
        ("mode or options: 4 settings differ", "", "", "use the same mode"),
        ("torch's sources", "", "", NOTHING_TO_DO),
        ("threads", "2", "1", "torch.set_num_threads"),
        ("torch", "2.13.0", "2.15.0", "each environment stores its own"),
        ("cpu features", "avx512", "none", "each environment stores its own"),
    ],
)
def test_what_to_do_follows_from_the_values_as_well(what: str, before: str, now: str, action: str) -> None:
    found = Explanation("k", (Difference(what, before, now),))
    graph = GraphRecord("f", "0/0", Direction.INFERENCE, Outcome.MISS, explanation=found)
    assert action in next_action(graph)


@pytest.mark.parametrize(
    ("more", "action"),
    [
        ({"recompile_reason": "0/0: G['steps'] == 1"}, "make it a tensor"),
        ({"graph_break_reason": "generic_jump: an `if` asks for the value of a tensor"}, "torch.where"),
        ({"outcome": Outcome.BYPASS, "reason": "it does not use torch's caches"}, "backend='inductor'"),
        ({"outcome": Outcome.BYPASS, "reason": "no idea"}, "torch does not cache such a graph"),
        ({"outcome": Outcome.DISABLED, "reason": "fx_graph_cache is off"}, "%nbcache config"),
        ({"outcome": Outcome.HIT}, "this graph was reused"),
        ({}, NOTHING_TO_DO),
    ],
)
def test_each_graph_has_one_next_action(more: dict[str, object], action: str) -> None:
    told = {"outcome": Outcome.MISS, **more}
    graph = GraphRecord("f", "0/0", Direction.INFERENCE, **told)  # type: ignore[arg-type]
    assert action in next_action(graph)


def test_a_change_of_the_graph_names_the_line_that_it_stands_in() -> None:
    def at(code: str, **places: str) -> Components:
        return from_lines([f"[{sha256(code.encode())}] gm: {code}"], DEFAULTS, {}, places)

    lines = {"sin": "In[3]:4", "mul": "In[3]:5"}
    (constant,) = differences(at(CODE), at(CODE.replace("0.001", "0.002"), **lines))
    assert constant.words().endswith("mul.Tensor(_, 0.002) now (In[3]:5)")
    (node,) = differences(at(CODE), at(CODE.replace("aten.sin", "aten.cos"), **lines))
    assert node.words() == "graph: 1 node differs: sin(_) before, cos(_) now (In[3]:4)"
    shorter = CODE.replace("    mul = torch.ops.aten.mul.Tensor(sin, 0.001);  sin = None\n", "")
    (gone,) = differences(at(CODE), at(shorter, sin="In[3]:4"))
    assert gone.where == "In[3]:4" and gone.now == ""


def test_constants_are_compared_where_both_are_known_and_those_that_changed_come_first() -> None:
    def reads(constants: dict[str, str] | None, *lines: str) -> Components:
        return from_lines(lines or ["[a] gm: a graph"], DEFAULTS, constants)

    before = reads({"a": "1", "self.lr": "0.1"})
    assert [each.what for each in differences(before, reads(None, OTHER))] == [
        "graph: its nodes are connected otherwise"
    ]
    now = reads({"b": "2", "self.lr": "0.2"}, OTHER)
    assert [each.what for each in differences(before, now)][:3] == [
        "constant self.lr",
        "constant a",
        "constant b",
    ]
    assert from_text(to_text(reads(None))).constants is None


def test_a_constant_explains_nothing_where_the_graph_is_the_same() -> None:
    before, now = (
        from_lines(["[a] gm: a graph", f"[{size}] example_inputs[0]: [{size}]"], DEFAULTS, {"epoch": size})
        for size in ("1", "2")
    )
    assert [each.what for each in differences(before, now)] == ["input 0"]


def test_a_constant_that_is_read_now_only_follows_from_what_else_has_changed() -> None:
    before = from_lines(["[a] gm: a", "[1] example_inputs[0]: [1]"], DEFAULTS, {})
    now = from_lines([OTHER, "[2] example_inputs[0]: [2]"], DEFAULTS, {"BIG": "2.0"})
    assert [each.what for each in differences(before, now)][:2] == ["input 0", "constant BIG"]
    tensor = from_lines([OTHER], DEFAULTS, {"BIG": "2.0"})
    assert differences(before, tensor)[0].what == "constant BIG"  # one input less: it was a tensor
