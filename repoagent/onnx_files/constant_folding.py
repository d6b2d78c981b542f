"""How much ONNX Runtime may compute while it opens a model, decided from the graph before it is opened.

ONNX Runtime computes whatever follows from constants alone when it makes a session ("constant folding"), and nothing
can end that: a file of a few kilobytes may describe years of it, or any amount of memory. Folding itself changes no
result, only where it is computed: what is not folded runs with each request, where it can be ended. So the graph is
read first, without decoding a tensor, and an upper bound of the work decides how large a folded value may be.

ONNX Runtime also infers shapes when it opens a model, at every level of optimisation: see ``trial_opening``.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

from repoagent.errors import InvalidArgumentError
from repoagent.onnx_files.graph import Graph, Node

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


def bound_folding(options: Any, graph: Graph, name: str) -> None:
    """Set in ``options``, a ``SessionOptions``, what may be folded when the file of ``graph`` is opened.

    They change only where the work has no bound, or one above what is allowed. What is not an ONNX file folds nothing:
    ONNX Runtime reports what is wrong. Raises ``InvalidArgumentError``, with ``name`` for the file, if its functions
    become more than 100,000 nodes.
    """
    largest = _largest_folded(graph, name)
    if largest is None:
        return
    if largest and _runtime_version() >= _KNOWS_LARGEST:
        options.add_session_config_entry(LARGEST_FOLDED, str(largest))
    else:
        options.add_session_config_entry(DISABLED_OPTIMIZERS, "ConstantFolding")


def _largest_folded(graph: Graph, name: str) -> int | None:
    """Bytes of the largest value that may be folded; 0 for none, None where no bound is needed."""
    if not graph.readable:
        return 0
    if graph.functions:
        _refuse_inflation(graph, name)
        return 0
    sizes: dict[str, int] = {}
    for initializer, shape in graph.initializers:
        sizes[initializer] = max(shape.bytes, sizes.get(initializer, 0))
    constant = _constant(graph.nodes, sizes)
    allowed = max(_BYTES, 16 * sum(sizes.values()))
    try:
        return next((cap for cap in (None, *_CAPS) if _fits(constant, sizes, cap, allowed)), 0)
    except OverflowError:  # a tensor of more bytes than a float counts
        return 0


def _operator(node: Node) -> str:
    return node.operator if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.operator}"


def _constant(nodes: Sequence[Node], initializers: Mapping[str, int]) -> list[Node]:
    """The nodes that depend on constants alone, each after those that it depends on, whatever their order in the file.

    ONNX Runtime folds no node that holds a graph; the nodes of such a graph are in ``nodes`` themselves. The shape of a
    value may be known where the value is not.
    """
    waiting: dict[str, list[Node]] = {}
    missing: dict[int, int] = {}
    ready = []
    for node in nodes:
        if node.has_graphs:
            continue
        unknown = set() if _operator(node) in _SHAPES else {name for name in node.inputs if name not in initializers}
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


def _fits(constant: Sequence[Node], initializers: Mapping[str, int], cap: int | None, allowed: int) -> bool:
    """Whether what can be folded stays within the bounds if no value above ``cap`` bytes is; None caps nothing."""
    sizes = dict(initializers)
    total, steps = 0, 0.0
    for node in constant:
        operator = _operator(node)
        inputs = [sizes[name] for name in node.inputs] if operator not in _SHAPES else [_SHAPE_BYTES]
        size = _bound(operator, inputs or [node.bytes])
        if size is None or (cap is None and size < 0):
            return False
        if cap is not None:
            size = cap if size < 0 else min(size, cap)
        total += size * len(node.outputs)
        steps += float(size) * max(inputs, default=0) if operator in _PRODUCTS else 0
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


def _refuse_inflation(graph: Graph, name: str) -> None:
    sizes: dict[str, int] = {}
    # Each round writes out one level of calls; calls in a circle, which ONNX Runtime refuses, end at the bound.
    for _ in range(len(graph.functions) + 1):
        grown = {key: sum(sizes.get(one, 1) for one in operators) for key, operators in graph.functions.items()}
        total = sum(grown.get(node.operator.rpartition(".")[2], 1) for node in graph.nodes)
        if total > _INLINED:
            raise InvalidArgumentError(f"{name}: its functions become more than {_INLINED:,} nodes; call fewer of them")
        if grown == sizes:
            return
        sizes = grown


def _runtime_version() -> tuple[int, ...]:
    import onnxruntime  # who has options to set has imported it

    return tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
