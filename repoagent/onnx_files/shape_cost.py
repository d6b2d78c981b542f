"""Whether the cost of opening an ONNX file is plain from its graph.

While it opens a model, ONNX Runtime infers the shape of each value, follows the numbers that shapes are computed from,
and copies weights into the form that its kernels want. None of it has a bound: sixty bytes a node double a list of
numbers, a value may have any number of dimensions, and each of a thousand nodes gets its own copy of the same weight.
So the graph is walked first with upper bounds. A file for which they are small is opened; of any other
:mod:`repoagent.onnx_files.trial_opening` finds out in a process of its own.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Final

from repoagent.onnx_files.graph import Graph, Node, Shape

_NODES: Final = 20_000
_ENTRIES: Final = 20_000_000
"""Dimensions of all values together, and numbers that are followed."""
_HIGHEST: Final = 1000
"""Dimensions of one value: some operators look for each of them in a list that is as long."""
_COPIES: Final = 4
"""How often all weights may be copied."""
_COPIED_BYTES: Final = 256 << 20
"""What may be copied in any case."""
_WIDE: Final = frozenset({7, 11, 13, 14, 15})
"""Types of more than four bytes."""
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


def is_plain(graph: Graph) -> bool:
    """Whether ONNX Runtime opens the file of ``graph`` in time and memory in proportion to its size.

    False: it may not, as every file that is not an ONNX model, or has functions or loops.
    """
    if not graph.readable or not graph.usual or graph.functions or len(graph.nodes) > _NODES:
        return False
    try:
        return _fits(graph)
    except (ValueError, LookupError, OverflowError):  # two values of one name, none, or one beyond any number
        return False


def _fits(graph: Graph) -> bool:
    # Initializers may be declared as inputs as well.
    values = {name: _value(shape) for name, shape in graph.inputs.items()} | _unique(
        (name, _weight(shape)) for name, shape in graph.initializers
    )
    declared = _unique((name, _value(shape)) for name, shape in graph.declared)
    weights = sum(value.bytes for value in values.values())
    entries: float = 0
    highest: float = 0
    copied = 0
    for node in graph.nodes:
        inputs = [values[name] for name in node.inputs]
        copied += sum(value.bytes for value in inputs)
        made = _Value(highest) if node.operator == "If" else _made(node, inputs)
        for name in node.outputs:
            # The file may declare a shape for any value.
            value = _larger(made, declared[name]) if name in declared else made
            values[name] = value
            entries += value.rank + (0 if value.length == inf else value.length)
        highest = max([highest, made.rank, *(value.rank for value in inputs)])
        if entries > _ENTRIES or made.rank > _HIGHEST:
            return False
    return copied <= max(_COPIED_BYTES, _COPIES * weights)


def _value(shape: Shape) -> _Value:
    return _Value(shape.rank, shape.elements)


def _weight(shape: Shape) -> _Value:
    """A small type may be widened to four bytes."""
    elements = int(shape.elements)
    return _Value(shape.rank, elements, elements * (8 if shape.data_type in _WIDE else 4))


def _unique(values: Iterable[tuple[str, _Value]]) -> dict[str, _Value]:
    """Branches may use a name twice, for the same."""
    found: dict[str, _Value] = {}
    for name, value in values:
        if found.setdefault(name, value) != value:
            raise ValueError(f"two values are named {name}")
    return found


def _larger(made: _Value, declared: _Value) -> _Value:
    length = made.length if declared.length == inf else max(made.length, declared.length)
    return _Value(max(made.rank, declared.rank), length, 0, made.count)


def _made(node: Node, inputs: Sequence[_Value]) -> _Value:
    if node.operator == "Constant":
        return _weight(node.tensor) if node.tensor is not None else _Value(1, max(node.integers, 1))
    rank = _RANKS.get(node.operator, _usual_rank)(node, inputs)
    length = _LENGTHS[node.operator](inputs) if node.operator in _LENGTHS else inf
    count = inputs[0].length if node.operator == "Shape" and inputs[0].rank <= 1 else inf
    return _Value(rank, length, 0, count)


def _usual_rank(node: Node, inputs: Sequence[_Value]) -> float:
    if node.operator in _LENGTHS:
        return max(value.rank for value in inputs)
    if node.operator.startswith("Gather"):
        return sum(value.rank for value in inputs)
    return max([_USUAL_RANK, node.integers, *(value.rank for value in inputs)])


def _rank_by_shape(node: Node, inputs: Sequence[_Value]) -> float:
    """``inputs[-1]`` is the shape; it is an attribute in old versions."""
    return max(node.integers, inputs[0].rank if node.operator == "Expand" else 0, inputs[-1].length)


_RANKS: Final[dict[str, Callable[[Node, Sequence[_Value]], float]]] = {
    **dict.fromkeys(("ConstantOfShape", "Expand", "Reshape"), _rank_by_shape),
    **dict.fromkeys(("Einsum", "Loop", "Scan", "SequenceMap"), lambda *_: inf),
    **dict.fromkeys(
        ("ConcatFromSequence", "OneHot", "OneHotEncoder", "SplitToSequence"),
        lambda _, inputs: max([_USUAL_RANK, *(value.rank for value in inputs)]) + 1,
    ),
    **dict.fromkeys(("Shape", "Size"), lambda *_: 1),
    "Gather": lambda _, inputs: max(sum(value.rank for value in inputs) - 1, 0),
    "Unsqueeze": lambda node, inputs: inputs[0].rank + (inputs[1].length if len(inputs) > 1 else node.integers),
}


def _length_of_pairs(inputs: Sequence[_Value]) -> float:
    flat = all(value.rank <= 1 for value in inputs)
    return (max if flat else prod)(value.length for value in inputs)


_LENGTHS: Final[dict[str, Callable[[Sequence[_Value]], float]]] = {
    **dict.fromkeys(
        ("Abs", "Cast", "Ceil", "CumSum", "Floor", "Identity", "Neg", "Not", "ReduceMax", "ReduceMin", "ReduceProd",
         "ReduceSum", "Reshape", "Round", "ScatterElements", "ScatterND", "Slice", "Squeeze", "Transpose", "Unsqueeze"),
        lambda inputs: inputs[0].length,
    ),
    **dict.fromkeys(
        ("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul",
         "Or", "Pow", "Sub", "Sum", "Where"),
        _length_of_pairs,
    ),
    "Concat": lambda inputs: sum(value.length for value in inputs),
    "ConstantOfShape": lambda inputs: inputs[0].count if inputs[0].length <= 1 else inf,
    "Gather": lambda inputs: inputs[1].length if inputs[0].rank <= 1 else prod(value.length for value in inputs),
    "Shape": lambda inputs: inputs[0].rank,
    "Size": lambda _inputs: 1,
}  # fmt: skip
