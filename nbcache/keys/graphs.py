"""Contents of a graph: operators, arguments, values, symbols, and inputs that share memory."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

from nbcache.keys.fingerprints.code import words
from nbcache.keys.fingerprints.digests import Fingerprint

_METADATA = (
    *("custom", "fwd_nn_module_stack", "fwd_source_fn_stack", "nn_module_stack", "original_aten"),
    *("partitioner_tag", "recompute", "source_fn_stack", "torch_fn"),
)
_METADATA_READERS = frozenset({"meta", "stack_trace"})
_CALL = "call_id"
"""The annotation in which torch numbers calls of regions."""
_DERIVED_METADATA = frozenset({"example_value", "grapharg", "tensor_meta", "val"})
"""Metadata that follows from the graph and its inputs."""
_PROCESS_SPECIFIC = re.compile(
    r" at 0x[0-9a-f]+|\b\d{9,}\b"
    r"|/ipykernel_\d+/\d+\.py|/nbcache/cell-[0-9a-f]+\.py|<ipython-input-\d+-[0-9a-f]+>"
)
"""Addresses, ids and file names of cells, which differ between processes."""
_ARITHMETIC = words(
    "add add_ div div_ eq ge gt iadd imul isub itruediv le lt mul mul_ ne pow sub sub_ truediv",
)
"""Operators, functions and methods for which torch converts a number to a tensor."""
_PLAIN = (bool, complex, float, int, str, type(None))


class TracedGraph:
    def __init__(self, torch: ModuleType, graph: Any) -> None:
        self._torch = torch
        modules = graph.modules() if isinstance(graph, torch.nn.Module) else ()
        self._graphs = [module for module in modules if isinstance(module, torch.fx.GraphModule)]
        self._nodes = [node for module in self._graphs for node in module.graph.nodes]

    def operators(self) -> Collection[Any]:
        """Return the functions that the graph calls, and its arguments other than nodes and plain values."""
        torch = self._torch
        plain = (torch.fx.Node, torch.dtype, torch.device, torch.layout, torch.memory_format, *_PLAIN)
        operators: dict[int, Any] = {}
        for node in self._nodes:
            if node.op == "call_function":
                operators[id(node.target)] = node.target
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
                    operators[id(value)] = value
        return operators.values()

    def methods(self) -> Collection[str]:
        return {node.target for node in self._nodes if node.op == "call_method"}

    def parts_of_modules(self) -> Iterator[Any]:
        """Yield the classes and attributes of called modules; torch's keys cover their tensors."""
        torch = self._torch
        for graph in self._graphs:
            called = (graph.get_submodule(node.target) for node in graph.graph.find_nodes(op="call_module"))
            for part in (part for module in called for part in module.modules()):
                if isinstance(part, torch.fx.GraphModule):
                    continue
                yield type(part)
                for value in vars(part).values():
                    for item in value.values() if isinstance(value, dict) else (value,):
                        if not isinstance(item, (torch.nn.Module, torch.Tensor)):
                            yield item

    def add_metadata(self, state: Fingerprint, *, passes: bool) -> None:
        """Add the metadata of nodes that added code may read; torch may read more for `passes`."""
        names = state.reads.attributes
        if not passes and not names & _METADATA_READERS:
            return
        reads_items = state.reads.formats_values or not names.isdisjoint(("items", "values"))
        reads_all = "meta" in names and reads_items
        read_names = {*_METADATA, *names}
        for node in self._nodes:
            own = node.meta.keys() - _DERIVED_METADATA
            for name in sorted(own if reads_all else own & read_names, key=str):
                text = repr(node.meta[name])
                state.note(name, text if name == "custom" else _PROCESS_SPECIFIC.sub("", text))

    def annotations(self) -> Iterator[tuple[int, Any]]:
        """Yield the annotations by `torch.fx.traceback.annotate`, each with the index of its first node."""
        previous: dict[str, Any] = {}
        for number, node in enumerate(self._nodes):
            custom = node.meta.get("custom") or {}
            annotation = {name: value for name, value in custom.items() if name != _CALL}
            pairs = [(value, previous.get(name, _CALL)) for name, value in annotation.items()]
            if annotation.keys() != previous.keys() or not all(_is_same(*pair) for pair in pairs):
                yield number, annotation
            previous = annotation

    def checkpoint_policies(self) -> list[Any]:
        functions = (graph.meta.get("_checkpoint_context_fn") for graph in self._graphs)
        return [function for function in functions if function is not None]

    def shapes(self, inputs: Sequence[Any]) -> Iterator[tuple[str, list[str]]]:
        """Yield ranges, guards and asserts of the symbols in the inputs and values, if there are any.

        A hit restores the guards of the compile, so they must equal the guards of this trace. Symbols that
        share a guard, an assert or a replacement with the graph's symbols are included. All others are left
        out: they depend on functions traced or adopted before. A value of an unknown type includes them all.
        """
        context = self._torch._guards.TracingContext.try_get()
        shape_env = getattr(getattr(context, "fake_mode", None), "shape_env", None)
        if shape_env is None or not shape_env.var_to_range:
            return
        ranges = shape_env.var_to_range
        guards = [guard.expr for guard in shape_env.guards]
        asserts = [check.expr for checks in shape_env.deferred_runtime_asserts.values() for check in checks]
        own = self._symbols(inputs)
        if own is None:
            symbols = sorted(ranges, key=str)
        else:
            links = [expression.free_symbols for expression in (*guards, *asserts)]
            links += [{symbol, *value.free_symbols} for symbol, value in shape_env.replacements.items()]
            symbols = _closure(own, links)
        if symbols:
            renamed = {symbol: _new_symbol(symbol, number) for number, symbol in enumerate(symbols)}
            yield (
                "ranges",
                [f"{name} {ranges[symbol]}" for symbol, name in renamed.items() if symbol in ranges],
            )
            yield "guards", _texts(guards, renamed)
            yield "asserts", _texts(asserts, renamed)

    def _symbols(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Return the symbols in the inputs and values, in order; None if a value is of an unknown type."""
        torch = self._torch
        values = [*inputs]
        for node in self._nodes:
            examples = [node.meta[name] for name in ("example_value", "val") if name in node.meta]
            if not examples and node.op not in ("get_attr", "output"):
                return None
            values += examples
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
            elif type(value) not in _plain_tensors(torch) or value.layout is not torch.strided:
                return None
            else:
                sizes = (*value.shape, *value.stride(), value.storage_offset())
                values += [size for size in reversed(sizes) if type(size) is not int]
        return [*symbols]

    def fixes_numbers(self) -> bool:
        """Return whether torch may compile a varying float into the graph as a constant.

        torch converts the floats in tensor arithmetic to tensors. It specializes all other floats, with a
        guard, after it computes its key: a hit would use the float of another call and have no guard.
        """
        torch = self._torch
        sizes = (torch.SymBool, torch.SymInt)
        symbolic = (torch.SymFloat, *sizes)
        for node in self._nodes:
            values = [argument.meta.get("example_value") for argument in node.all_input_nodes]
            if not any(isinstance(value, symbolic) and _has_floats(torch, value) for value in values):
                continue
            leaves = torch.utils._pytree.tree_leaves(node.kwargs)
            keywords = [leaf.meta.get("example_value") for leaf in leaves if hasattr(leaf, "meta")]
            if any(isinstance(value, torch.SymFloat) for value in keywords):
                return True
            if isinstance(node.meta.get("example_value"), symbolic):
                continue  # arithmetic of numbers
            has_sizes = any(isinstance(value, sizes) for value in values)
            if has_sizes or getattr(node.target, "__name__", node.target) not in _ARITHMETIC:
                return True
        return False

    def training(self) -> Iterator[tuple[str, list[int]]]:
        """Yield a training graph's donated inputs and visible outputs, which torch's keys leave out.

        A backward overwrites what the forward saved, unless the user sees it or what shares its memory.
        Outputs that the user sees have the strides of eager mode.
        """
        torch = self._torch
        context = torch._guards.TracingContext.try_get()
        donated = getattr(getattr(context, "fw_metadata", None), "bw_donated_idxs", None)
        if donated:
            yield "donated inputs", sorted(donated)
        for node in (node for node in self._nodes if node.op == "output"):
            visible = node.meta.get("user_visible_output_idxs")
            values = torch.utils._pytree.tree_leaves(node.args)
            outputs = [number for number, value in enumerate(values) if isinstance(value, torch.fx.Node)]
            if visible is not None and visible != outputs:
                yield "outputs that the user sees", sorted(visible)

    def constants(self) -> list[Any]:
        groups = ((vars(graph), graph._buffers, graph._parameters) for graph in self._graphs)
        values = (value for group in groups for part in group for value in part.values())
        return [value for value in values if isinstance(value, self._torch.Tensor)]

    def frozen_parameters(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield frozen scalars and which frozen parameters share memory; torch's keys leave them out."""
        frozen = [tensor for tensor in self.constants() if getattr(tensor, "_is_frozen_param", False)]
        if frozen:
            with self._torch.utils._mode_utils.no_dispatch():
                yield "frozen numbers", [tensor.item() if tensor.shape == () else None for tensor in frozen]
                storages = [(tensor.untyped_storage().data_ptr(), *_geometry(tensor)) for tensor in frozen]
            yield "frozen as one", [storages.index(storage) for storage in storages]

    def example_values(self) -> list[Any]:
        return [node.meta["example_value"] for node in self._nodes if "example_value" in node.meta]


def _plain_tensors(torch: ModuleType) -> tuple[type, ...]:
    return torch._subclasses.FakeTensor, torch.Tensor, torch.nn.Parameter


def names_of(operators: Iterable[Any]) -> Collection[str]:
    names = (getattr(operator, "__name__", None) for operator in operators)
    return {name.partition(".")[0] for name in names if isinstance(name, str)}


def _is_same(value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and isinstance(value, _PLAIN) and value == other)


def _closure(symbols: Iterable[Any], links: Sequence[Collection[Any]]) -> list[Any]:
    """Return these symbols in order, followed by all symbols that links connect to them."""
    connected = dict.fromkeys(symbols)
    while True:
        more = {symbol for link in links if not connected.keys().isdisjoint(link) for symbol in link}
        if not (more := more - connected.keys()):
            return [*connected]
        connected |= dict.fromkeys(sorted(more, key=str))


def _new_symbol(symbol: Any, number: int) -> Any:
    """Return a symbol of the same kind and assumptions that is named by its position."""
    kind = str(symbol).rstrip("0123456789")
    return type(symbol)(f"{kind}_{number}", **symbol.assumptions0)


def _texts(expressions: Iterable[Any], renamed: Mapping[Any, Any]) -> list[str]:
    relevant = (term for term in expressions if not renamed.keys().isdisjoint(term.free_symbols))
    return sorted(str(expression.xreplace(renamed)) for expression in relevant)


def _has_floats(torch: ModuleType, value: Any) -> bool:
    kinds = torch.utils._sympy.symbol
    return any(kinds.symbol_is_type(symbol, kinds.SymT.FLOAT) for symbol in value.node.expr.free_symbols)


def parts_of(value: Any) -> Iterator[Any]:
    """Yield a value and, if it is a collection or a dataclass, its parts at any depth."""
    stack, visited = [value], {}
    while stack:
        value = stack.pop()
        if id(value) in visited:
            continue
        visited[id(value)] = value
        yield value
        if isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, (list, tuple)):
            stack += value
        elif is_dataclass(value) and not isinstance(value, type):
            stack += (getattr(value, field.name, None) for field in fields(value))


def unusual_values(torch: ModuleType, values: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the values that are no plain tensors, each with its `__tensor_flatten__` context or None."""
    stack = list(values)
    while stack:
        value = stack.pop()
        if type(value) in _plain_tensors(torch) or value is None:
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
    geometry = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes())
    return (str(tensor.dtype), *map(str, geometry))


def is_leaf(tensor: Any) -> bool:
    """Return whether AOTAutograd treats a tensor as a leaf."""
    try:
        return bool(tensor.is_leaf)
    except RuntimeError:
        return False


def inputs_sharing_memory(torch: ModuleType, inputs: Sequence[Any]) -> list[list[int]]:
    """Return the indexes of the inputs that share memory, one list per storage.

    If one is mutated, AOTAutograd compiles for the sharing, which torch's keys leave out.
    """
    by_storage: dict[int, list[int]] = {}
    for number, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            try:
                storage = value.untyped_storage()._cdata
            except (NotImplementedError, RuntimeError):  # a subclass without storage: its class is in the key
                continue
            by_storage.setdefault(storage, []).append(number)
    return [numbers for numbers in by_storage.values() if len(numbers) > 1]


def memory_of(torch: ModuleType, inputs: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the inputs that share memory, and the properties that AOTAutograd then compiles in."""
    if shared := inputs_sharing_memory(torch, inputs):
        yield "inputs that share memory", shared
        yield ([isinstance(value, torch.Tensor) and is_leaf(value) for value in inputs],)
        for number in (number for numbers in shared for number in numbers):
            # AOTAutograd compiles for the base of a view.
            for tensor in (inputs[number], inputs[number]._base):
                yield (None if tensor is None else _geometry(tensor),)
