"""What a graph holds: operators, arguments, values, and which of its inputs share memory."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

from nbcache.core.fingerprints.digests import Fingerprint

__all__ = [
    "add_metadata",
    "annotations_of",
    "checkpointing_of",
    "constants_of",
    "fixes_numbers",
    "frozen_of",
    "intermediates_of",
    "is_leaf",
    "memory_of",
    "methods_of",
    "modules_of",
    "names_of",
    "operators_of",
    "parts_of",
    "shapes",
    "sharing",
    "training_of",
    "within",
]

_METADATA = (
    *("custom", "fwd_nn_module_stack", "fwd_source_fn_stack", "nn_module_stack", "original_aten"),
    *("partitioner_tag", "recompute", "source_fn_stack", "torch_fn"),
)
"""Names of what torch, exporters and annotations put into the metadata of nodes."""
_TELL_METADATA = frozenset({"meta", "stack_trace"})
"""Attributes of nodes by which code reads their metadata."""
_CALL = "call_id"
"""The annotation by which torch counts calls of regions in a process."""
_VALUES = frozenset({"example_value", "grapharg", "tensor_meta", "val"})
"""Names of what follows from the graph and its inputs."""
_OF_PROCESS = re.compile(
    r" at 0x[0-9a-f]+|\b\d{9,}\b"
    r"|/ipykernel_\d+/\d+\.py|/nbcache/cell-[0-9a-f]+\.py|<ipython-input-\d+-[0-9a-f]+>"
)
"""Addresses, ids, and the names of files that cells are given, by all of their text."""
_ARITHMETIC = frozenset(
    {
        *("add", "add_", "div", "div_", "eq", "ge", "gt", "iadd", "imul", "isub", "itruediv", "le", "lt"),
        *("mul", "mul_", "ne", "pow", "sub", "sub_", "truediv"),
    }
)
"""Names of operators, functions and methods for which torch makes a tensor of a number."""
_PLAIN = (bool, complex, float, int, str, type(None))


def _graphs(torch: ModuleType, graph: Any) -> Iterator[Any]:
    if isinstance(graph, torch.nn.Module):
        for module in graph.modules():
            if isinstance(module, torch.fx.GraphModule):
                yield module


def operators_of(torch: ModuleType, graph: Any) -> Collection[Any]:
    """Return what the graph calls, and each argument that is neither a node's value nor plain."""
    plain = (torch.fx.Node, torch.dtype, torch.device, torch.layout, torch.memory_format, *_PLAIN)
    found: dict[int, Any] = {}
    for module in _graphs(torch, graph):
        for node in module.graph.nodes:
            if node.op == "call_function":
                found[id(node.target)] = node.target
            stack = [node.args, node.kwargs]
            while stack:
                value = stack.pop()
                if isinstance(value, plain):
                    continue
                if isinstance(value, (list, tuple)):
                    stack += value
                elif isinstance(value, dict):
                    stack += value.values()
                else:
                    found[id(value)] = value
    return found.values()


def methods_of(torch: ModuleType, graph: Any) -> Collection[str]:
    """Return the names of the methods that the graph calls."""
    nodes = (node for module in _graphs(torch, graph) for node in module.graph.nodes)
    return {node.target for node in nodes if node.op == "call_method"}


def names_of(operators: Iterable[Any]) -> Collection[str]:
    """Return the names of functions and operators, without those of overloads."""
    names = (getattr(operator, "__name__", None) for operator in operators)
    return {name.partition(".")[0] for name in names if isinstance(name, str)}


def modules_of(torch: ModuleType, graph: Any) -> Iterator[Any]:
    """Return the classes of the modules that the graph calls, as one of a backend's may, and what they hold.

    Tensors are left out: torch's keys have them.
    """
    for module in _graphs(torch, graph):
        for node in module.graph.nodes:
            called = module.get_submodule(node.target) if node.op == "call_module" else None
            for part in () if called is None else called.modules():
                if isinstance(part, torch.fx.GraphModule):
                    continue
                yield type(part)
                for value in vars(part).values():
                    for each in value.values() if isinstance(value, dict) else (value,):
                        if not isinstance(each, (torch.nn.Module, torch.Tensor)):
                            yield each


def _metadata_of(
    torch: ModuleType, graph: Any, named: Collection[str], *, whole: bool
) -> Iterator[tuple[str, str]]:
    """Return what nodes hold that no key tells, with its name: what code usually reads, or has `named`.

    With `whole`, all of it.
    """
    told = {*_METADATA, *named}
    for module in _graphs(torch, graph):
        for node in module.graph.nodes:
            names = node.meta.keys() - _VALUES
            for name in sorted(names if whole else names & told, key=str):
                text = repr(node.meta[name])
                yield name, text if name == "custom" else _OF_PROCESS.sub("", text)


def add_metadata(torch: ModuleType, state: Fingerprint, graph: Any, *, passes: bool) -> None:
    """Add what nodes of the graph hold beside their operators, where code that was added may read it.

    `passes` says that some of it is given graphs: then functions of torch's may read it on its behalf.
    """
    names = state.reads.attributes
    if passes or names & _TELL_METADATA:
        whole = "meta" in names and (state.reads.formats_values or not names.isdisjoint(("items", "values")))
        for name, text in _metadata_of(torch, graph, names, whole=whole):
            state.note(name, text)


def annotations_of(torch: ModuleType, graph: Any) -> Iterator[tuple[int, Any]]:
    """Return what `torch.fx.traceback.annotate` has said of nodes; torch itself reads some of it.

    It comes with the number of the first node that it is said of; the next one ends it.
    """
    before: dict[str, Any] = {}
    nodes = (node for module in _graphs(torch, graph) for node in module.graph.nodes)
    for number, node in enumerate(nodes):
        said = {name: value for name, value in (node.meta.get("custom") or {}).items() if name != _CALL}
        if said.keys() != before.keys() or not all(_is_as(said[name], before[name]) for name in said):
            yield number, said
        before = said


def _is_as(value: Any, other: Any) -> bool:
    plain = type(value) is type(other) and isinstance(value, _PLAIN)
    return value is other or (plain and value == other)


def checkpointing_of(torch: ModuleType, graph: Any) -> list[Any]:
    """Return the functions that say what selective checkpointing keeps, in order."""
    held = (module.meta.get("_checkpoint_context_fn") for module in _graphs(torch, graph))
    return [each for each in held if each is not None]


def shapes(torch: ModuleType, graph: Any, inputs: Sequence[Any]) -> Iterator[tuple[str, list[str]]]:
    """Return ranges, guards and asserts of the symbols in a graph's inputs and values; nothing without any.

    A hit brings the guards that were made when it was compiled: they must be those of this trace. Guards and
    replacements lead from symbol to symbol. Other symbols of the trace differ between kernels that trace, or
    adopt, different functions before. Where a value is of an unknown kind, all symbols count.
    """
    context = torch._guards.TracingContext.try_get()
    known = getattr(getattr(context, "fake_mode", None), "shape_env", None)
    if known is None or not known.var_to_range:
        return
    guards = [guard.expr for guard in known.guards]
    asserts = [check.expr for checks in known.deferred_runtime_asserts.values() for check in checks]
    own = _symbols_of(torch, graph, inputs)
    if own is None:
        symbols = sorted(known.var_to_range, key=str)
    else:
        links = [expression.free_symbols for expression in (*guards, *asserts)]
        links += [{symbol, *value.free_symbols} for symbol, value in known.replacements.items()]
        symbols = _closure(own, links)
    if symbols:
        named = {symbol: _new_symbol(symbol, number) for number, symbol in enumerate(symbols)}
        ranges = known.var_to_range
        yield "ranges", [f"{name} {ranges[symbol]}" for symbol, name in named.items() if symbol in ranges]
        yield "guards", _texts(guards, named)
        yield "asserts", _texts(asserts, named)


def _closure(symbols: Iterable[Any], links: Sequence[Collection[Any]]) -> list[Any]:
    """Return these symbols in order, and then all that links lead to."""
    connected = dict.fromkeys(symbols)
    while True:
        more = {symbol for link in links if not connected.keys().isdisjoint(link) for symbol in link}
        if not (more := more - connected.keys()):
            return [*connected]
        connected |= dict.fromkeys(sorted(more, key=str))


def _new_symbol(symbol: Any, number: int) -> Any:
    """Return a symbol of the same kind and assumptions that is named for its place."""
    kind = str(symbol).rstrip("0123456789")
    return type(symbol)(f"{kind}_{number}", **symbol.assumptions0)


def _texts(expressions: Iterable[Any], named: Mapping[Any, Any]) -> list[str]:
    """Return those expressions that have one of these symbols, by their new names."""
    relevant = (
        expression for expression in expressions if not named.keys().isdisjoint(expression.free_symbols)
    )
    return sorted(str(expression.xreplace(named)) for expression in relevant)


def _symbols_of(torch: ModuleType, graph: Any, inputs: Sequence[Any]) -> list[Any] | None:
    """Return the symbols in the inputs and values of a graph, in order; None where a value is not known."""
    values = [*inputs]
    for module in _graphs(torch, graph):
        for node in module.graph.nodes:
            examples = [node.meta[name] for name in ("example_value", "val") if name in node.meta]
            if not examples and node.op not in ("get_attr", "output"):
                return None
            values += examples
    plain = (torch._subclasses.FakeTensor, torch.Tensor, torch.nn.Parameter)
    symbols: dict[Any, None] = {}
    values.reverse()
    while values:
        value = values.pop()
        if isinstance(value, (list, tuple)):
            values += reversed(value)
        elif isinstance(value, (torch.SymBool, torch.SymFloat, torch.SymInt)):
            for expression in (value.node._expr, value.node.expr):
                symbols |= dict.fromkeys(sorted(expression.free_symbols, key=str))
        elif type(value) in _PLAIN:
            continue
        elif type(value) not in plain or value.layout is not torch.strided:
            return None
        else:
            sizes = (*value.shape, *value.stride(), value.storage_offset())
            values += [size for size in reversed(sizes) if type(size) is not int]
    return [*symbols]


def fixes_numbers(torch: ModuleType, graph: Any) -> bool:
    """Tell whether torch may compile in a float that varies.

    torch makes tensors of the floats that arithmetic on tensors needs. It fixes all others after it has made
    its key, and guards them: a hit would return those of another call, and have no guard.
    """
    sizes = (torch.SymBool, torch.SymInt)
    symbolic = (torch.SymFloat, *sizes)
    for module in _graphs(torch, graph):
        for node in module.graph.nodes:
            values = [each.meta.get("example_value") for each in node.all_input_nodes]
            if not any(isinstance(value, symbolic) and _has_floats(torch, value) for value in values):
                continue
            named = [each for each in torch.utils._pytree.tree_leaves(node.kwargs) if hasattr(each, "meta")]
            if any(isinstance(each.meta.get("example_value"), torch.SymFloat) for each in named):
                return True
            if isinstance(node.meta.get("example_value"), symbolic):
                continue  # arithmetic of numbers
            has_sizes = any(isinstance(value, sizes) for value in values)
            if has_sizes or getattr(node.target, "__name__", node.target) not in _ARITHMETIC:
                return True
    return False


def _has_floats(torch: ModuleType, value: Any) -> bool:
    kinds = torch.utils._sympy.symbol
    return any(kinds.symbol_is_type(each, kinds.SymT.FLOAT) for each in value.node.expr.free_symbols)


def training_of(torch: ModuleType, graph: Any) -> Iterator[tuple[str, list[int]]]:
    """Return what a forward or backward graph of training is compiled for, and torch's keys leave out.

    A backward writes to what the forward saved, unless the user sees it or it shares memory with what the
    user sees; and the strides of what the user sees are those of eager.
    """
    context = torch._guards.TracingContext.try_get()
    donated = getattr(getattr(context, "fw_metadata", None), "bw_donated_idxs", None)
    if donated:
        yield "donated inputs", sorted(donated)
    for module in _graphs(torch, graph):
        for node in module.graph.find_nodes(op="output"):
            seen = node.meta.get("user_visible_output_idxs")
            values = torch.utils._pytree.tree_leaves(node.args)
            every = [number for number, value in enumerate(values) if isinstance(value, torch.fx.Node)]
            if seen is not None and seen != every:
                yield "outputs that the user sees", sorted(seen)


def constants_of(torch: ModuleType, graph: Any) -> list[Any]:
    """Return the tensors that a graph holds."""
    held = ((vars(each), each._buffers, each._parameters) for each in _graphs(torch, graph))
    values = (value for parts in held for part in parts for value in part.values())
    return [value for value in values if isinstance(value, torch.Tensor)]


def parts_of(value: Any) -> Iterator[Any]:
    """Return a value and what it consists of, where it is a collection or a dataclass."""
    stack, seen = [value], {}
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        yield value
        if isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, (list, tuple)):
            stack += value
        elif is_dataclass(value) and not isinstance(value, type):
            stack += (getattr(value, field.name, None) for field in fields(value))


def frozen_of(torch: ModuleType, graph: Any) -> Iterator[tuple[str, list[Any]]]:
    """Return what is compiled in of parameters that are frozen, of which torch's key has the geometry.

    Those are numbers, and which parameters are one.
    """
    held = [each for each in constants_of(torch, graph) if getattr(each, "_is_frozen_param", False)]
    if held:
        with torch.utils._mode_utils.no_dispatch():
            yield "frozen numbers", [each.item() if each.shape == () else None for each in held]
            places = [(each.untyped_storage().data_ptr(), *_geometry(each)) for each in held]
        yield "frozen as one", [places.index(place) for place in places]


def intermediates_of(torch: ModuleType, graph: Any) -> list[Any]:
    """Return what the nodes of a graph have in their metadata as examples of their values."""
    nodes = (node for module in _graphs(torch, graph) for node in module.graph.nodes)
    return [node.meta["example_value"] for node in nodes if "example_value" in node.meta]


def within(torch: ModuleType, values: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Return those values that are no plain tensors, with the tensors that subclasses hold.

    With each of them comes what it keeps beside its tensors, as `__tensor_flatten__` tells; or None.
    """
    stack = list(values)
    plain = (torch._subclasses.FakeTensor, torch.Tensor, torch.nn.Parameter)
    while stack:
        value = stack.pop()
        if type(value) in plain or value is None:
            continue
        if isinstance(value, (list, tuple)):
            stack += value
            continue
        context = None
        if isinstance(value, torch.Tensor) and hasattr(type(value), "__tensor_flatten__"):
            names, context = value.__tensor_flatten__()
            stack += [getattr(value, name) for name in names]
        yield value, context


def _geometry(tensor: Any) -> tuple[str, ...]:
    """Return where in its memory a tensor lies."""
    place = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes())
    return (str(tensor.dtype), *map(str, place))


def is_leaf(tensor: Any) -> bool:
    """Tell whether a tensor is a leaf, as AOTAutograd sees it."""
    try:
        return bool(tensor.is_leaf)
    except RuntimeError:
        return False


def sharing(torch: ModuleType, inputs: Sequence[Any]) -> list[list[int]]:
    """Return the numbers of those inputs that share memory with another, one list for each memory.

    AOTAutograd compiles for it where one of them is written to, and torch's key does not tell it.
    """
    by_storage: dict[int, list[int]] = {}
    for number, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            try:
                storage = value.untyped_storage()._cdata
            except (NotImplementedError, RuntimeError):  # a subclass that has none: its class tells
                continue
            by_storage.setdefault(storage, []).append(number)
    return [numbers for numbers in by_storage.values() if len(numbers) > 1]


def memory_of(torch: ModuleType, inputs: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Return which inputs share memory, and what AOTAutograd compiles in then; nothing where none do."""
    if shared := sharing(torch, inputs):
        yield "inputs that share memory", shared
        yield ([isinstance(each, torch.Tensor) and is_leaf(each) for each in inputs],)
        for number in (number for numbers in shared for number in numbers):
            for each in (inputs[number], inputs[number]._base):  # AOTAutograd compiles for the base of views
                yield (None if each is None else _geometry(each),)
