"""Whether the cost of opening an ONNX file is plain from its graph.

While it opens a model, ONNX Runtime infers the shape of each value, follows the numbers that shapes are computed from,
and copies weights into the form that its kernels want. None of it has a bound: sixty bytes a node double a list of
numbers, a value may have any number of dimensions, and each of a thousand nodes gets its own copy of the same weight.
So the graph is walked first with upper bounds. A file for which they are small is opened; of any other
:mod:`repoagent.onnx_files.trial_opening` finds out in a process of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Final

from repoagent.onnx_files.external_files import Buffer, Span, fields, varint

__all__ = ["is_plain"]

_NODES: Final = 20_000
_ENTRIES: Final = 20_000_000
"""Dimensions of all values together, and numbers that are followed."""
_HIGHEST: Final = 1000
"""Dimensions of one value: some operators look for each of them in a list that is as long."""
_COPIES: Final = 4
"""How often all weights may be copied."""
_COPIED_BYTES: Final = 256 << 20
"""What may be copied in any case."""
_USUAL_RANK: Final = 8
"""No operator but those below has outputs of more dimensions than its inputs and this."""


@dataclass(frozen=True, slots=True)
class _Value:
    """Upper bounds: ``rank`` of the dimensions, ``length`` of the elements of what may be a shape.

    ``infinite`` means that the bound is not known.
    """

    rank: float
    length: float = inf
    bytes: int = 0
    """Of an initializer."""
    count: float = inf
    """Of the result of ``Shape``: the number in it, where it is one."""


@dataclass(slots=True)
class _Node:
    operator: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    tensor: _Value | None = None
    """The one in an attribute."""
    integers: int = 0
    """How many there are in attributes."""


def is_plain(model: Buffer) -> bool:
    """Whether ONNX Runtime opens the file with the contents ``model`` in time and memory in proportion to its size.

    False: that is not known of it, as of every file that is not an ONNX model, or has functions or loops.
    """
    found = _Graph(model)
    try:
        for number, span in fields(model, (0, len(model))):
            if number == 25:
                return False
            if number == 7:
                found.read(span)
        return len(found.nodes) <= _NODES and _fits(found)
    except (ValueError, LookupError, RecursionError):  # LookupError: cut off, or a value that no node before made
        return False


def _fits(graph: "_Graph") -> bool:
    values = graph.values()
    weights = sum(value.bytes for value in values.values())
    entries: float = 0
    highest: float = 0
    copied = 0
    for node in graph.nodes:
        inputs = [values[name] for name in node.inputs]
        copied += sum(value.bytes for value in inputs)
        made = _Value(highest) if node.operator == "If" else _made(node, inputs)
        for name in node.outputs:
            # The file may state of any value which shape it has.
            value = _larger(made, graph.declared[name]) if name in graph.declared else made
            values[name] = value
            entries += value.rank + (0 if value.length == inf else value.length)
        highest = max([highest, made.rank, *(value.rank for value in inputs)])
        if entries > _ENTRIES or made.rank > _HIGHEST:
            return False
    return copied <= max(_COPIED_BYTES, _COPIES * weights)


def _larger(made: _Value, declared: _Value) -> _Value:
    length = made.length if declared.length == inf else max(made.length, declared.length)
    return _Value(max(made.rank, declared.rank), length, 0, made.count)


def _made(node: _Node, inputs: Sequence[_Value]) -> _Value:
    if node.operator == "Constant":
        return node.tensor or _Value(1, max(node.integers, 1))
    rank = _RANKS.get(node.operator, _rank_of_inputs if node.operator in _LENGTHS else _usual_rank)(node, inputs)
    length = _LENGTHS.get(node.operator, _no_length)(inputs)
    count = inputs[0].length if node.operator == "Shape" and inputs[0].rank <= 1 else inf
    return _Value(rank, length, 0, count)


def _usual_rank(node: _Node, inputs: Sequence[_Value]) -> float:
    if node.operator.startswith("Gather"):
        return sum(value.rank for value in inputs)
    return max([_USUAL_RANK, node.integers, *(value.rank for value in inputs)])


def _rank_of_inputs(_node: _Node, inputs: Sequence[_Value]) -> float:
    return max(value.rank for value in inputs)


def _rank_of_gathered(_node: _Node, inputs: Sequence[_Value]) -> float:
    return max(sum(value.rank for value in inputs) - 1, 0)


def _rank_of_list(_node: _Node, _inputs: Sequence[_Value]) -> float:
    return 1


def _rank_by_shape(node: _Node, inputs: Sequence[_Value]) -> float:
    """``inputs[-1]`` is the shape; it is an attribute in old versions."""
    return max(node.integers, inputs[0].rank if node.operator == "Expand" else 0, inputs[-1].length)


def _rank_of_more(node: _Node, inputs: Sequence[_Value]) -> float:
    return inputs[0].rank + (inputs[1].length if len(inputs) > 1 else node.integers)


def _rank_and_one(_node: _Node, inputs: Sequence[_Value]) -> float:
    return max([_USUAL_RANK, *(value.rank for value in inputs)]) + 1


def _unknown_rank(_node: _Node, _inputs: Sequence[_Value]) -> float:
    return inf


_RANKS: Final[dict[str, Callable[[_Node, Sequence[_Value]], float]]] = {
    **dict.fromkeys(("ConstantOfShape", "Expand", "Reshape"), _rank_by_shape),
    **dict.fromkeys(("Einsum", "Loop", "Scan", "SequenceMap"), _unknown_rank),
    **dict.fromkeys(("ConcatFromSequence", "OneHot", "OneHotEncoder", "SplitToSequence"), _rank_and_one),
    **dict.fromkeys(("Shape", "Size"), _rank_of_list),
    "Gather": _rank_of_gathered,
    "Unsqueeze": _rank_of_more,
}


def _no_length(_inputs: Sequence[_Value]) -> float:
    return inf


def _length_of_first(inputs: Sequence[_Value]) -> float:
    return inputs[0].length


def _length_of_all(inputs: Sequence[_Value]) -> float:
    return sum(value.length for value in inputs)


def _length_of_pairs(inputs: Sequence[_Value]) -> float:
    flat = all(value.rank <= 1 for value in inputs)
    return (max if flat else prod)(value.length for value in inputs)


def _length_of_gathered(inputs: Sequence[_Value]) -> float:
    return inputs[1].length if inputs[0].rank <= 1 else prod(value.length for value in inputs)


_LENGTHS: Final[dict[str, Callable[[Sequence[_Value]], float]]] = {
    **dict.fromkeys(
        ("Abs", "Cast", "Ceil", "CumSum", "Floor", "Identity", "Neg", "Not", "ReduceMax", "ReduceMin", "ReduceProd",
         "ReduceSum", "Reshape", "Round", "ScatterElements", "ScatterND", "Slice", "Squeeze", "Transpose", "Unsqueeze"),
        _length_of_first,
    ),
    **dict.fromkeys(
        ("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul",
         "Or", "Pow", "Sub", "Sum", "Where"),
        _length_of_pairs,
    ),
    "Concat": _length_of_all,
    "ConstantOfShape": lambda inputs: inputs[0].count if inputs[0].length <= 1 else inf,
    "Gather": _length_of_gathered,
    "Shape": lambda inputs: inputs[0].rank,
    "Size": lambda _inputs: 1,
}  # fmt: skip


class _Graph:
    """The nodes of a graph in their order, those of a branch before the node that has it."""

    def __init__(self, model: Buffer) -> None:
        self._model = model
        self.nodes: list[_Node] = []
        self._weights: dict[str, _Value] = {}
        self._inputs: dict[str, _Value] = {}
        self.declared: dict[str, _Value] = {}
        """What the file states of values."""

    def values(self) -> dict[str, _Value]:
        """The inputs, and the initializers, which may be declared as inputs as well."""
        return self._inputs | self._weights

    def read(self, graph: Span) -> None:
        """Add what ``graph`` has."""
        for number, span in fields(self._model, graph):
            if number == 1:
                self.nodes.append(self._node(span))
            elif number == 5:
                name, value = _read_tensor(self._model, span)
                _add(self._weights, name, value)
            elif number in (11, 12, 13):
                name, value = _read_declaration(self._model, span)
                _add(self.declared, name, value)
                if number == 11:
                    self._inputs[name] = value
            elif number == 15:
                raise ValueError("a sparse initializer")

    def _node(self, place: Span) -> _Node:
        node = _Node()
        for number, span in fields(self._model, place):
            if number == 1 and span[1] > span[0]:
                node.inputs.append(self._model[slice(*span)].decode())
            elif number == 2 and span[1] > span[0]:
                node.outputs.append(self._model[slice(*span)].decode())
            elif number == 4:
                node.operator = self._model[slice(*span)].decode()
            elif number == 5:
                self._attribute(span, node)
        return node

    def _attribute(self, place: Span, node: _Node) -> None:
        for number, value in fields(self._model, place, numbers=True):
            if number in (11, 22, 23):
                raise ValueError("several graphs, or a sparse tensor")
            if number == 8:
                node.integers += 1 if isinstance(value, int) else value[1] - value[0]
            elif isinstance(value, tuple) and number == 5:
                node.tensor = _read_tensor(self._model, value)[1]
            elif isinstance(value, tuple) and number == 6:
                self.read(value)


def _add(values: dict[str, _Value], name: str, value: _Value) -> None:
    """Branches may use a name twice, for the same."""
    if values.setdefault(name, value) != value:
        raise ValueError(f"two values are named {name}")


def _read_tensor(model: Buffer, place: Span) -> tuple[str, _Value]:
    name, dims, width = "", list[int](), 4
    for number, value in fields(model, place, numbers=True):
        if number == 1:
            dims += [value] if isinstance(value, int) else _packed(model, value)
        elif number == 2 and isinstance(value, int):
            width = 8 if value in (7, 11, 13, 14, 15) else 4
        elif number == 8 and not isinstance(value, int):
            name = model[slice(*value)].decode()
    elements = prod(dims)
    return name, _Value(len(dims), elements, elements * width)


def _read_declaration(model: Buffer, place: Span) -> tuple[str, _Value]:
    """The name and the shape of a ``ValueInfoProto``; dims without a number have names, or nothing."""
    name, rank, elements = "", 0, 1.0
    pending = [(0, place)]
    while pending:
        depth, span = pending.pop()
        for number, inner in fields(model, span):
            if (depth, number) == (0, 1):
                name = model[slice(*inner)].decode()
            elif (depth, number) in ((0, 2), (1, 1), (1, 8), (2, 2)):  # its type, a tensor (or a sparse one), its shape
                pending.append((depth + 1, inner))
            elif depth == 1:
                raise ValueError("a sequence, a map or an optional value")
            elif (depth, number) == (3, 1):
                rank += 1
                sizes = [value for part, value in fields(model, inner, numbers=True) if part == 1]
                elements *= sizes[0] if sizes and isinstance(sizes[0], int) else inf
    return name, _Value(rank, elements if rank else inf)


def _packed(model: Buffer, place: Span) -> Iterator[int]:
    position, end = place
    while position < end:
        value, position = varint(model, position)
        yield value
