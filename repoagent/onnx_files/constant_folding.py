"""How much ONNX Runtime may compute while it opens a model, decided from the graph before it is opened.

ONNX Runtime computes whatever follows from constants alone when it makes a session ("constant folding"), and nothing
can end that: a file of a few kilobytes may describe years of it, or any amount of memory. Folding itself changes no
result, only where it is computed: what is not folded runs with each request, where it can be ended. So the graph is
read first, without decoding a tensor, and an upper bound of the work decides how large a folded value may be.

ONNX Runtime also infers shapes when it opens a model, at every level of optimisation: see ``trial_opening``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

from repoagent.errors import InvalidArgumentError
from repoagent.onnx_files.external_files import Buffer, Span, fields, varint

__all__ = ["DISABLED_OPTIMIZERS", "LARGEST_FOLDED", "bound_folding"]

DISABLED_OPTIMIZERS: Final = "optimization.disable_specified_optimizers"
LARGEST_FOLDED: Final = "optimization.constant_folding_max_output_size_in_bytes"
_KNOWS_LARGEST: Final = (1, 27)
"""The first ONNX Runtime that obeys ``LARGEST_FOLDED``."""

_BYTES: Final = 1 << 30
_STEPS: Final = 5e10
"""Bounds of all folded values together and of the multiplications for them: seconds on one core."""
_CAPS: Final = tuple(1 << shift for shift in range(30, 11, -2))
"""Sizes of the largest folded value that are tried, the largest first."""
_INLINED: Final = 100_000
"""Nodes that the functions of a model may become: ONNX Runtime writes out each call."""

_SAME: Final = frozenset(
    """
    Abs Acos Asin Atan Ceil Cos CumSum Elu Erf Exp Flatten Floor Identity LeakyRelu Log LogSoftmax Neg Not Reciprocal
    Relu Reshape Round ScatterElements ScatterND Sigmoid Sign Sin Slice Softmax Softplus Split Sqrt Squeeze Tan Tanh
    Transpose Trilu Unsqueeze ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    """.split()  # noqa: SIM905 - a list of fifty texts reads worse
)
_WIDER: Final = frozenset(
    {"ArgMax", "ArgMin", "Cast", "CastLike", "Clip", "DequantizeLinear", "QuantizeLinear", "TopK"}
)
_BROADCAST: Final = frozenset(
    """
    Add And BitShift Div Equal Gather GatherElements GatherND Greater GreaterOrEqual Less LessOrEqual Max Mean Min
    Mod Mul Or PRelu Pow Sub Sum Where Xor
    """.split()  # noqa: SIM905 - as above
)
_GROWING: Final = frozenset(
    {"ConstantOfShape", "Expand", "EyeLike", "NonZero", "OneHot", "Pad", "Range", "Resize", "Tile"}
)
_PRODUCTS: Final = frozenset(["Conv", "Gemm", "MatMul"])
_SHAPES: Final = frozenset({"Shape", "Size"})
_SHAPE_BYTES: Final = 1 << 10


def bound_folding(options: Any, model: Buffer, name: str) -> None:
    """Set in ``options``, a ``SessionOptions``, what may be folded when the ONNX file ``model`` is opened.

    Args:
        options: Changed only where the work has no bound, or one above what is allowed.
        model: The contents of the file. What is not an ONNX file folds nothing: ONNX Runtime reports what is wrong.
        name: What to call the file in a message.

    Raises:
        InvalidArgumentError: its functions become more than 100,000 nodes.
    """
    largest = _largest_folded(model, name)
    if largest is None:
        return
    if largest and _runtime_version() >= _KNOWS_LARGEST:
        options.add_session_config_entry(LARGEST_FOLDED, str(largest))
    else:
        options.add_session_config_entry(DISABLED_OPTIMIZERS, "ConstantFolding")


@dataclass(slots=True)
class _Node:
    operator: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    graphs: list[Span] = field(default_factory=list)
    bytes: int = 0
    """Of the tensor in an attribute, as ``Constant`` has it."""


def _largest_folded(model: Buffer, name: str) -> int | None:
    """Bytes of the largest value that may be folded; 0 for none, None where no bound is needed."""
    try:
        functions = _functions(model)
        if functions:
            _refuse_inflation(model, functions, name)
            return 0
        nodes: list[_Node] = []
        sizes: dict[str, int] = {}
        for number, span in fields(model, (0, len(model))):
            if number == 7:
                _read_graph(model, span, nodes, sizes)
    except (ValueError, IndexError):
        return 0
    constant = _constant(nodes, sizes)
    allowed = max(_BYTES, 16 * sum(sizes.values()))
    return next((cap for cap in (None, *_CAPS) if _fits(constant, sizes, cap, allowed)), 0)


def _constant(nodes: Sequence[_Node], initializers: Mapping[str, int]) -> list[_Node]:
    """The nodes that depend on constants alone, each after those that it depends on, whatever their order in the file.

    ONNX Runtime folds no node that holds a graph; the nodes of such a graph are in ``nodes`` themselves. The shape of a
    value may be known where the value is not.
    """
    waiting: dict[str, list[_Node]] = {}
    missing: dict[int, int] = {}
    ready = []
    for node in nodes:
        if node.graphs:
            continue
        unknown = set() if node.operator in _SHAPES else {name for name in node.inputs if name not in initializers}
        missing[id(node)] = len(unknown)
        for name in unknown:
            waiting.setdefault(name, []).append(node)
        if not unknown:
            ready.append(node)
    for node in ready:  # It grows.
        for user in (user for name in node.outputs for user in waiting.pop(name, ())):
            missing[id(user)] -= 1
            if not missing[id(user)]:
                ready.append(user)
    return ready


def _fits(constant: Sequence[_Node], initializers: Mapping[str, int], cap: int | None, allowed: int) -> bool:
    """Whether what can be folded stays within the bounds if no value above ``cap`` bytes is; None caps nothing."""
    sizes = dict(initializers)
    total, steps = 0, 0.0
    for node in constant:
        inputs = [sizes[name] for name in node.inputs] if node.operator not in _SHAPES else [_SHAPE_BYTES]
        size = _bound(node.operator, inputs or [node.bytes])
        if size is None or (cap is None and size < 0):
            return False
        if cap is not None:
            size = cap if size < 0 else min(size, cap)
        total += size * len(node.outputs)
        steps += float(size) * max(inputs) if node.operator in _PRODUCTS else 0
        if total > allowed or steps > _STEPS:
            return False
        sizes |= dict.fromkeys(node.outputs, size)
    return True


def _bound(operator: str, inputs: Sequence[int]) -> int | None:
    """Bytes that one output has at most; below 0 where the values of the inputs decide, None for other operators."""
    if operator == "Constant" or operator in _SAME or operator in _SHAPES:
        return inputs[0]
    if operator in _WIDER:
        return 8 * inputs[0]
    if operator == "Concat":
        return sum(inputs)
    if operator in _BROADCAST or operator in _PRODUCTS:
        return 8 * prod(max(size, 1) for size in inputs if size > 8 or len(inputs) == 1) or 64
    return -1 if operator in _GROWING else None


def _read_graph(model: Buffer, graph: Span, nodes: list[_Node], sizes: dict[str, int]) -> None:
    """Add the nodes of a graph and of those inside it, in their order, and the sizes of its initializers."""
    pending = [graph]
    while pending:
        for number, span in fields(model, pending.pop()):
            if number == 1:
                node = _read_node(model, span)
                nodes.append(node)
                pending += node.graphs
            elif number == 5:
                name, size = _read_tensor(model, span)
                sizes[name] = max(size, sizes.get(name, 0))
            elif number == 15:  # A sparse tensor: its dims show how much it becomes, and are not worth reading.
                raise ValueError("a sparse initializer")


def _read_node(model: Buffer, place: Span) -> _Node:
    node = _Node()
    domain = ""
    for number, span in fields(model, place):
        if number == 5:
            _read_attribute(model, span, node)
        elif number in (1, 2, 4, 7):
            text = model[slice(*span)].decode()
            if number == 1 and text:
                node.inputs.append(text)
            elif number == 2:
                node.outputs.append(text)
            elif number == 4:
                node.operator = text
            elif number == 7:
                domain = text
    if domain not in ("", "ai.onnx"):
        node.operator = f"{domain}.{node.operator}"
    return node


def _read_attribute(model: Buffer, place: Span, node: _Node) -> None:
    for number, span in fields(model, place):
        if number in (6, 11):
            node.graphs.append(span)
        elif number in (22, 23):
            raise ValueError("a sparse constant")
        else:
            node.bytes += _read_tensor(model, span)[1] if number == 5 else span[1] - span[0]


_WIDTHS: Final = {2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 8: 32, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 14: 8, 15: 16, 16: 2}


def _read_tensor(model: Buffer, place: Span) -> tuple[str, int]:
    """The name of a tensor, and its bytes by its dims, which need not be in this file."""
    name, dims, width = "", 1, 4
    for number, value in fields(model, place, numbers=True):
        if number == 1:
            for dim in [value] if isinstance(value, int) else _packed(model, value):
                dims *= dim
        elif number == 2 and isinstance(value, int):
            width = _WIDTHS.get(value, 4)
        elif number == 8 and not isinstance(value, int):
            name = model[slice(*value)].decode()
    return name, dims * width


def _packed(model: Buffer, place: Span) -> Iterator[int]:
    position, end = place
    while position < end:
        value, position = varint(model, position)
        yield value


def _functions(model: Buffer) -> dict[str, list[str]]:
    """Of each function of the model the operators that its nodes have; names are taken without their domains."""
    found: dict[str, list[str]] = {}
    for number, span in fields(model, (0, len(model))):
        if number == 25:
            name, nodes = "", list[_Node]()
            for part, inner in fields(model, span):
                if part == 1:
                    name = model[slice(*inner)].decode()
                elif part == 7:
                    nodes.append(_read_node(model, inner))
                    for graph in nodes[-1].graphs:
                        _read_graph(model, graph, nodes, {})
            found.setdefault(name, []).extend(node.operator.rpartition(".")[2] for node in nodes)
    return found


def _refuse_inflation(model: Buffer, functions: Mapping[str, Sequence[str]], name: str) -> None:
    nodes: list[_Node] = []
    for number, span in fields(model, (0, len(model))):
        if number == 7:
            _read_graph(model, span, nodes, {})
    sizes: dict[str, int] = {}
    # Each round writes out one level of calls; calls in a circle, which ONNX Runtime refuses, end at the bound.
    for _ in range(len(functions) + 1):
        grown = {key: sum(sizes.get(one, 1) for one in operators) for key, operators in functions.items()}
        total = sum(grown.get(node.operator.rpartition(".")[2], 1) for node in nodes)
        if total > _INLINED:
            raise InvalidArgumentError(f"{name}: its functions become more than {_INLINED:,} nodes; call fewer of them")
        if grown == sizes:
            return
        sizes = grown


def _runtime_version() -> tuple[int, ...]:
    import onnxruntime  # who has options to set has imported it

    return tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
