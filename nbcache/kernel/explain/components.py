"""The components of a graph's key, stored in short form with the graph, and differences of keys.

torch writes the parts of a key as lines, `[digest] name: value`: the graph's code, each input, each setting.
"""

from __future__ import annotations

import base64
import enum
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from nbcache.core.canonical_json import corrupt
from nbcache.core.errors import FormatError
from nbcache.core.reports import Difference, Explanation
from nbcache.core.text import counted

_LINE = re.compile(r"\[(\w*)\] (.*?): (.*)", re.DOTALL)
_SETTING = re.compile(r"inductor_config\[(.*)\]")
_INPUT = re.compile(r"example_inputs\[(\d+)\]")
_FIELD = re.compile(r"(\w+)=((?:[^,()\[\]]|\([^()]*\)|torch\.Size\(\[[^\]]*\]\))*)")
_NODE = re.compile(r"\s*(?:\w+(?:, \w+)* = )?(torch\.\S+?|operator\.\w+|[\w.]+)\((.*?)\);?(?:  .*)?$")
_VARIABLE = re.compile(r"\b[a-z_]\w*_\d+\b|\b[a-z_]\w*\b(?!\s*[.=(])")
_KIND = re.compile(r"^(bf|[a-z])[a-z]*")
_SIZE = re.compile(r"\('(.*)',\)")
_SYMBOL = re.compile(r"-?[su]\d+")
_FEW = 3
"""More settings than these come from a mode."""
_MOST_COMPARED = 400
"""Graphs with more nodes from the first difference on are not compared node by node."""
MOST_CONSTANTS = 300
"""So many constants are stored, those with the shortest names: a large model has thousands."""
_MOST_GRAPHS = 32
_MOST_NODES = 4000
_MOST_BYTES = 1 << 20
_LONGEST = 120
_OUTSIDE = "nbcache_dependencies"
"""The part that nbcache adds to torch's keys; its value is JSON: part → its text."""
_PART = f"{_OUTSIDE} "
"""Prefix of the names of these parts in `Components.others`."""
_UNREADABLE = frozenset({_OUTSIDE, "system_info[hash]", "torch_version"})
"""Parts whose values are digests themselves."""
_NAMES = {
    "autocast": "autocast",
    "grad mode": "gradients",
    "cpp_runtime_thread_count": "threads",
    "default_dtype": "default dtype",
    "deterministic_algorithms_settings": "deterministic algorithms",
    "cuda_matmul_settings": "precision of matrix multiplications",
    "cache_key_tag": "cache tag",
    "torch_version": "torch's sources",
    "system_info[hash]": "device",
    "fx_kwargs[is_inference]": "without backward",
    "fx_kwargs[static_input_idxs]": "which inputs are parameters and buffers",
    _OUTSIDE: "something outside the graph (a custom operator, a class, a setting of torch)",
}
"""Names for people of parts of torch's keys, the most telling first."""
_ANOTHER = "another graph"
_FEW_NODES = 5
"""A graph is another one if more nodes than these, and more than a third of all, differ."""
_REWIRED = "graph: its nodes are connected otherwise"


@dataclass(frozen=True, slots=True)
class Named:
    """An input of a graph, by its name for people."""

    kind: str = "input"
    """`input`, `parameter`, `buffer` or `number`."""
    name: str = ""
    """`self.wide.weight`; an input without a name is called by its number."""
    note: str = ""
    """A property that torch's key leaves out: `frozen`, or `requires grad`."""


@dataclass(frozen=True, slots=True)
class Components:
    nodes: tuple[str, ...]
    """The operators of the graph in order, with their constants: `mul.Tensor(_, 0.001)`."""
    inputs: tuple[str, ...]
    """The graph's inputs: `f32[2, 64]`."""
    settings: Mapping[str, str]
    """Settings of inductor that are not its defaults; long values are `#` and a digest."""
    others: Mapping[str, str]
    constants: Mapping[str, str] | None = None
    """Numbers and flags that the function reads, by name; None if they are unknown."""
    places: tuple[str, ...] = field(default=(), compare=False)
    """The line of each of `nodes`, `In[4]:7`; not stored, and empty if it is unknown."""
    names: tuple[str, ...] = field(default=(), compare=False)
    """The name for people of each of `inputs`, `parameter self.a.weight`; not stored, and may be empty."""


def from_lines(
    lines: Iterable[str],
    defaults: Mapping[str, str],
    constants: Mapping[str, str] | None = None,
    places: Mapping[str, str] = {},
    named: Sequence[Named] = (),
) -> Components:
    """Return the components in torch's lines; `defaults` are inductor's settings as torch writes them.

    `constants` are those that the function reads, `places` the lines of nodes by the nodes' names, `named`
    the graph's inputs, which are ignored if torch has made other inputs of them.
    """
    nodes: tuple[tuple[str, str], ...] = ()
    by_index: dict[int, str] = {}
    settings: dict[str, str] = {}
    parts: dict[str, str] = {}
    for line in lines:
        if (match := _LINE.fullmatch(line)) is None:
            continue
        digest, name, value = match.groups()
        if name == "gm":
            nodes = (*_nodes(value),)
            parts["gm"] = _hidden(digest)
        elif match := _INPUT.fullmatch(name):
            by_index[int(match[1])] = _input(value, digest)
        elif match := _SETTING.fullmatch(name):
            if defaults.get(match[1]) != value:
                settings[match[1]] = _short(value, digest)
        else:
            if name == _OUTSIDE:
                parts |= {_PART + part: text for part, text in json.loads(value).items()}
            parts[name] = _hidden(digest) if name in _UNREADABLE else _short(value, digest)
    inputs = [by_index[index] for index in sorted(by_index)]
    names: list[str] = []
    if len(named) == len(inputs):
        notes = (f", {one.note}" if one.note else "" for one in named)
        inputs = [text + note for text, note in zip(inputs, notes, strict=True)]
        names = [f"{one.kind} {one.name}" if one.name else "" for one in named]
    return Components(
        tuple(text for _, text in nodes),
        tuple(inputs),
        settings,
        parts,
        None if constants is None else dict(constants),
        tuple(places.get(name, "") for name, _ in nodes),
        tuple(names),
    )


def _short(value: str, digest: str) -> str:
    """Return a value if it is short and readable, without addresses and bytes; else its digest."""
    shown = value.isprintable() and " at 0x" not in value and len(value) <= _LONGEST
    return value if shown else _hidden(digest)


def _hidden(digest: str) -> str:
    return f"#{digest[:12]}"


def _nodes(code: str) -> Iterator[tuple[str, str]]:
    for line in code.splitlines()[:_MOST_NODES]:
        text = line.strip()
        if " = " not in text and not text.startswith("torch."):
            continue  # the function's head, a comment, or its return
        if match := _NODE.match(text):
            operator = match[1].removeprefix("torch.ops.").removeprefix("aten.").removesuffix(".default")
            name = text.partition(" = ")[0].partition(",")[0]
            yield name, f"{operator}({_VARIABLE.sub('_', match[2])})"[:_LONGEST]


def _input(value: str, digest: str) -> str:
    """Return an input in short, `f32[2, 64]`, with its unusual properties."""
    if match := _SIZE.fullmatch(value):
        return match[1]
    if not value.startswith("TensorMetadata("):
        return _short(value, digest)
    fields = dict(_FIELD.findall(value.removeprefix("TensorMetadata(").removesuffix(")")))
    dtype = fields.get("dtype", "").removeprefix("torch.").replace("bool", "b8")
    shape, strides = (
        re.findall(r"-?\w+", fields.get(name, "").removeprefix("torch.Size")) for name in ("shape", "stride")
    )
    text = _KIND.sub(r"\1", dtype) + f"[{', '.join(shape)}]"
    if strides != _contiguous(shape):
        text += f" of strides ({', '.join(strides)})"
    device = re.findall(r"(?:type='|index=)(\w+)", fields.get("device", ""))
    if device and device[0] != "cpu":
        text += f" on {':'.join(device)}"
    for name, usual in (("requires_grad", "False"), ("storage_offset", "0"), ("is_conj", "False")):
        if fields.get(name, usual) != usual:
            text += f", {name} {fields[name]}"
    return text


def _contiguous(shape: list[str]) -> list[str]:
    strides, size = [], 1
    for length in reversed(shape):
        strides.append(str(size))
        size *= max(1, int(length)) if length.isdigit() else 1
    return strides[::-1]


class _Rank(enum.IntEnum):
    """The order of differences, the most telling first. FOLLOWS are listed only if nothing else differs."""

    CHANGED = enum.auto()
    SIZES = enum.auto()
    NAMED = enum.auto()
    INPUT = enum.auto()
    VANISHED = enum.auto()
    INPUTS = enum.auto()
    SETTING = enum.auto()
    OTHER = enum.auto()
    GRAPH = enum.auto()
    BACKWARD = enum.auto()
    FOLLOWS = enum.auto()


_RANKS = {
    "fx_kwargs[is_inference]": _Rank.BACKWARD,
    "fx_kwargs[static_input_idxs]": _Rank.FOLLOWS,
    _OUTSIDE: _Rank.FOLLOWS,
}


def explain_miss(new: Components, stored: Iterable[tuple[str, str]]) -> Explanation | None:
    """Return the differences of a graph from the nearest of `stored`: (key, components as text).

    Of several as near, it takes the one with most nodes in common, then the first. None if no stored graph
    differs: then the cause is outside the key.
    """
    nodes = Counter(new.nodes)
    nearest: tuple[tuple[int, int], str, Components] | None = None
    for key, text in [pair for pair in stored if pair[1]][:_MOST_GRAPHS]:
        try:
            old = from_text(text)
        except FormatError:
            continue
        apart = len(differences(old, new, in_nodes=False))
        distance = (apart, -(nodes & Counter(old.nodes)).total())
        if apart and (nearest is None or distance < nearest[0]):
            nearest = (distance, key, old)
    if nearest is None:
        return None
    _, key, old = nearest
    return Explanation(key, tuple(differences(old, new)))


def differences(old: Components, new: Components, *, in_nodes: bool = True) -> list[Difference]:
    """Return the differences, the most telling first; `in_nodes` compares the nodes of the graphs."""
    ranked = [*_other_parts(old.others, new.others), *_inputs(old, new)]
    settings = _mappings("setting", old.settings, new.settings, "the default")
    if len(settings) > _FEW:
        settings.insert(0, Difference(f"mode or options: {len(settings)} settings differ", "", ""))
    ranked += [(_Rank.SETTING, difference) for difference in settings]
    if old.others.get("gm") != new.others.get("gm"):  # otherwise no constant has had an effect
        graph = _graph(old, new) if in_nodes else Difference("graph", "", "")
        ranked += [(_Rank.GRAPH, graph), *_constants(old.constants, new.constants)]
        if graph.what == _ANOTHER:  # the other differences follow from it
            ranked = [pair for pair in ranked if pair[0] in (_Rank.CHANGED, _Rank.SIZES, _Rank.GRAPH)]
    ranked.sort(key=lambda pair: pair[0])
    causes = [part for rank, part in ranked if rank < _Rank.FOLLOWS and part.what != _REWIRED]
    return causes if causes and in_nodes else [part for _, part in ranked]


def _constants(
    old: Mapping[str, str] | None, new: Mapping[str, str] | None
) -> Iterator[tuple[_Rank, Difference]]:
    """Yield the constants that have changed, and those that only one of the two reads."""
    if old is None or new is None:
        return
    is_cut = max(len(old), len(new)) >= MOST_CONSTANTS
    for difference in _mappings("constant", old, new, "not a constant"):
        if difference.what.partition(" ")[2] in old.keys() & new.keys():
            yield _Rank.CHANGED, difference
        elif not is_cut:
            yield _Rank.VANISHED, difference


def _other_parts(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[_Rank, Difference]]:
    named = [*_named_parts(old, new)] if old.get(_OUTSIDE) != new.get(_OUTSIDE) else []
    yield from named
    names = {name for name in (*old, *new) if not name.startswith(_PART)} - {"gm", _OUTSIDE if named else ""}
    for name in [*filter(names.__contains__, _NAMES), *sorted(names - _NAMES.keys())]:
        called = _NAMES.get(name, name.replace("fx_kwargs[", "").rstrip("]").replace("_", " "))
        if (old_value := old.get(name, "none")) != (new_value := new.get(name, "none")):
            rank = _RANKS.get(name, _Rank.NAMED if name in _NAMES else _Rank.OTHER)
            yield rank, _difference(called, old_value, new_value)


def _named_parts(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[_Rank, Difference]]:
    """Yield the differences in the parts of nbcache's addition that are named in both keys, or are flags."""
    for name in sorted(name for name in {*old, *new} if name.startswith(_PART)):
        label = name.removeprefix(_PART)
        is_flag = label.startswith("the flag ")
        old_text, new_text = (one.get(name, "the default" if is_flag else "") for one in (old, new))
        if old_text != new_text and old_text and new_text:
            rank = _Rank.FOLLOWS if is_flag else _Rank.CHANGED
            yield rank, _difference(label, old_text, new_text)


def _difference(label: str, old: str, new: str) -> Difference:
    shown = not (old.startswith("#") or new.startswith("#"))
    return Difference(label, *((old, new) if shown else ("", "")))


def _inputs(old: Components, new: Components) -> Iterator[tuple[_Rank, Difference]]:
    was_dynamic, is_dynamic = (any(map(_SYMBOL.fullmatch, one.inputs)) for one in (old, new))
    if was_dynamic != is_dynamic:
        words = ["dynamic" if dynamic else "fixed" for dynamic in (was_dynamic, is_dynamic)]
        inputs = zip(new.names, new.inputs, strict=False)
        numbers = (name for name, value in inputs if name.startswith("number ") and _SYMBOL.fullmatch(value))
        yield _Rank.SIZES, Difference(next(numbers, "sizes"), *words)
    elif len(old.inputs) != len(new.inputs):
        yield _Rank.INPUTS, Difference("inputs", str(len(old.inputs)), str(len(new.inputs)))
    elif old.inputs != new.inputs and Counter(old.inputs) == Counter(new.inputs):
        yield _Rank.FOLLOWS, Difference("inputs: in another order", "", "")
    else:
        for index, (old_input, new_input) in enumerate(zip(old.inputs, new.inputs, strict=True)):
            if old_input != new_input:
                name = new.names[index] if new.names else ""
                yield _Rank.INPUT, _difference(name or f"input {index}", old_input, new_input)


def _mappings(kind: str, old: Mapping[str, str], new: Mapping[str, str], absent: str) -> list[Difference]:
    return [
        _difference(f"{kind} {name}", old.get(name, absent), new.get(name, absent))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _graph(old_graph: Components, new_graph: Components) -> Difference:
    """Return the difference of two graphs: one constant, some nodes with the first of them, or the sizes."""
    old, new, places = old_graph.nodes, new_graph.nodes, new_graph.places
    most = max(len(old), len(new))
    if most - (Counter(old) & Counter(new)).total() > max(_FEW_NODES, most / 3):
        counts = ((len(graph.inputs), len(graph.nodes)) for graph in (old_graph, new_graph))
        return Difference(
            _ANOTHER,
            *(f"{counted(inputs, 'input')} and {counted(nodes, 'operator')}" for inputs, nodes in counts),
        )
    pairs = enumerate(zip(old, new, strict=False))
    changes = [(index, old_node, new_node) for index, (old_node, new_node) in pairs if old_node != new_node]
    begin = changes[0][0] if changes else min(len(old), len(new))
    if len(changes) == 1 and len(old) == len(new):
        _, old_node, new_node = changes[0]
        if old_node.partition("(")[0] == new_node.partition("(")[0]:
            return Difference("constant in the graph", old_node, new_node, _place(places, begin))
    one, two = old[begin:], new[begin:]
    if not one and not two:
        return Difference(_REWIRED, "", "")
    count = max(len(one), len(two))
    if count <= _MOST_COMPARED:
        steps = SequenceMatcher(None, one, two, autojunk=False).get_opcodes()
        changed = [step for step in steps if step[0] != "equal"]
        count = sum(max(step[2] - step[1], step[4] - step[3]) for step in changed)
        one, two = one[changed[0][1] :], two[changed[0][3] :]
    text = "1 node differs" if count == 1 else f"{count} nodes differ, first"
    where = _place(places, len(new) - len(two))
    return Difference(f"graph: {text}", one[0] if one else "", two[0] if two else "", where)


def _place(places: tuple[str, ...], index: int) -> str:
    """Return the line of a node, or, for one that is gone, of the last node."""
    return places[min(index, len(places) - 1)] if places else ""


def to_text(components: Components) -> str:
    """Return components as a manifest holds them: JSON, compressed, in base64."""
    mappings = (components.settings, components.others, components.constants)
    value = [components.nodes, components.inputs, *(None if one is None else dict(one) for one in mappings)]
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def from_text(text: str) -> Components:
    """Return the components that a manifest holds; CorruptEntry if it holds none that can be shown."""
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        nodes, inputs, settings, parts, constants = json.loads(content)
        mappings = (settings, parts, {} if constants is None else constants)
        names = [
            *nodes,
            *inputs,
            *(part for mapping in mappings for pair in mapping.items() for part in pair),
        ]
        if not all(isinstance(name, str) and name.isprintable() for name in names):
            raise ValueError("no text that can be shown")
        return Components(tuple(nodes), tuple(inputs), settings, parts, constants)
    except (ValueError, TypeError, AttributeError, zlib.error, RecursionError) as error:
        raise corrupt("what the key of a graph is made of is not as nbcache writes it") from error
