"""The arithmetic of ``token_sampling`` as graphs of ONNX Runtime, for many rows in one run; ``BatchSampler`` runs them.

The numbers of a row decide about that row alone. A row gets -1 where nothing can be drawn from it, or where its token
may be among those that top-p leaves out: ``token_sampling.draw`` decides then, with the same random numbers.
"""

import enum
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from repoagent_llm.engine.token_sampling import BLOCK

#: Inputs: logits float32 [rows, vocabulary]; temperature float32, top-p and a random number float64, each [rows, 1].
#: For ``Way.TOP_P_AGAIN`` random numbers [rows, tries].
LOGITS: Final = "logits"
TEMPERATURE: Final = "temperature"
TOP_P: Final = "top_p"
UNIFORM: Final = "uniform"
#: Inputs of top-k alone, int64: the largest top-k of all rows [1], and each row's top-k less one [rows, 1].
LARGEST: Final = "largest"
LAST_KEPT: Final = "last_kept"
#: The output, int64 [rows, 1]; for ``Way.TOP_P_AGAIN`` [rows, 2], behind each token the number of tries that it took.
DRAWN: Final = "drawn"
_Node = tuple[str, str, str, Mapping[str, Any]]
_F32, _F64, _I64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64


class Way(enum.Enum):
    """How a graph draws. ``TOP_P_AGAIN``: with several numbers for each row, the first of which that top-p takes."""

    TOP_K = "top-k, and top-p"
    TOP_P = "top-p"
    TOP_P_AGAIN = "top-p, again"


# Draws from all tokens: finds the block on which each random number falls, then the token in it. The weight of what is
# at least as likely, less the token's own, must be less than top-p. Equally likely tokens are counted too many, so that
# some tokens at the edge are left to be decided about exactly.
_TOP_P_NODES: Final[list[_Node]] = [
    ("Div", "logits temperature", "scaled", {}),
    ("Softmax", "scaled", "weights", {"axis": -1}),
    ("Reshape", "weights blocked", "blocks", {}),
    ("ReduceSum", "blocks last", "sums32", {"keepdims": 0}),
    ("Cast", "sums32", "sums", {"to": _F64}),
    ("CumSum", "sums across", "starts", {"exclusive": 1}),
    ("ReduceSum", "sums last", "total", {}),
    ("Mul", "uniform total", "target", {}),
    ("Unsqueeze", "starts middle", "all_starts", {}),
    ("Unsqueeze", "target last", "targets", {}),
    ("LessOrEqual", "all_starts targets", "passed", {}),
    ("Cast", "passed", "passed_ones", {"to": _I64}),
    ("ReduceSum", "passed_ones last", "passed_count", {}),
    ("Sub", "passed_count one", "block", {}),
    ("GatherND", "starts block", "start", {"batch_dims": 1}),
    ("Sub", "target start", "rest", {}),
    ("Unsqueeze", "rest last", "rests", {}),
    ("GatherND", "blocks block", "inside32", {"batch_dims": 1}),
    ("Cast", "inside32", "inside", {"to": _F64}),
    ("CumSum", "inside deepest", "places", {"exclusive": 1}),
    ("LessOrEqual", "places rests", "reached", {}),
    ("Cast", "reached", "reached_ones", {"to": _I64}),
    ("ReduceSum", "reached_ones last", "reached_count", {}),
    ("Sub", "reached_count one", "place", {}),
    ("Mul", "block width", "first", {}),
    ("Add", "first place", "token", {}),
    ("GatherND", "weights token", "weight", {"batch_dims": 1}),
    ("Unsqueeze", "weight last", "edge", {}),
    ("Unsqueeze", "weights middle", "all_weights", {}),
    ("GreaterOrEqual", "all_weights edge", "likely", {}),
    ("Cast", "likely", "likely_ones", {"to": _F32}),
    ("Mul", "all_weights likely_ones", "heavy", {}),
    ("ReduceSum", "heavy last", "mass32", {"keepdims": 0}),
    ("Sub", "mass32 weight", "above32", {}),
    ("Cast", "above32", "above", {"to": _F64}),
    ("Mul", "top_p total", "limit", {}),
    ("Less", "above limit", "kept", {}),
    ("Squeeze", "token last", "tokens", {}),
    ("Where", "kept tokens nothing", "each", {}),
]
# Goes on to the next number where what is more likely alone has the weight of top-p.
_AGAIN_NODES: Final[list[_Node]] = [
    ("Greater", "all_weights edge", "more", {}),
    ("Cast", "more", "more_ones", {"to": _F32}),
    ("Mul", "all_weights more_ones", "heavier", {}),
    ("ReduceSum", "heavier last", "more_mass32", {"keepdims": 0}),
    ("Cast", "more_mass32", "more_mass", {"to": _F64}),
    ("Less", "more_mass limit", "open", {}),
    ("Cast", "open", "open_ones", {"to": _I64}),
    ("ArgMax", "open_ones", "try", {"axis": 1}),
    ("GatherElements", "each try", "found", {"axis": 1}),
    ("Add", "try one", "tries", {}),
    ("Concat", "found tries", DRAWN, {"axis": 1}),
]
# Of the largest tokens, in order, those are kept before which there is less weight than top-p of the row's top-k.
_TOP_K_NODES: Final[list[_Node]] = [
    ("TopK", "logits largest", "values tokens", {"axis": -1}),
    ("Div", "values temperature", "scaled", {}),
    ("Softmax", "scaled", "weights32", {"axis": -1}),
    ("Cast", "weights32", "weights", {"to": _F64}),
    ("CumSum", "weights across", "starts", {"exclusive": 1}),
    ("Add", "starts weights", "ends", {}),
    ("GatherElements", "ends last_kept", "total", {"axis": 1}),
    ("Mul", "top_p total", "limit", {}),
    ("Less", "starts limit", "kept", {}),
    ("Cast", "kept", "kept_ones", {"to": _F64}),
    ("Mul", "weights kept_ones", "heavy", {}),
    ("ReduceSum", "heavy last", "mass", {}),
    ("Mul", "uniform mass", "target", {}),
    ("LessOrEqual", "starts target", "passed", {}),
    ("And", "passed kept", "reached", {}),
    ("Cast", "reached", "reached_ones", {"to": _I64}),
    ("ReduceSum", "reached_ones last", "reached_count", {}),
    ("Sub", "reached_count one", "place", {}),
    ("GatherElements", "tokens place", "token", {"axis": 1}),
    ("GreaterOrEqual", "place zero", "found", {}),
    ("Where", "found token nothing", DRAWN, {}),
]


@cache
def drawing_session(vocab_size: int, way: Way) -> Any:
    """A session that draws in this way; a top-k must be less than the vocabulary.

    It runs on the caller's thread: other threads would wait busily for the next run, and take the decoder's place.
    """
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.intra_op_num_threads = 1
    graph = _top_k_graph(vocab_size) if way is Way.TOP_K else _top_p_graph(vocab_size, again=way is Way.TOP_P_AGAIN)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def _top_p_graph(vocab_size: int, *, again: bool) -> Any:
    padding = -vocab_size % BLOCK
    nodes = _TOP_P_NODES + (_AGAIN_NODES if again else [("Identity", "each", DRAWN, {})])
    constants: dict[str, Any] = {"blocked": [0, -1, BLOCK], "middle": [1], "deepest": 2, "width": BLOCK}
    if padding:
        nodes[2:3] = [("Pad", "weights padding", "padded", {}), ("Reshape", "padded blocked", "blocks", {})]
        constants["padding"] = [0, 0, 0, padding]
    return _graph(nodes, constants, {}, vocab_size)


def _top_k_graph(vocab_size: int) -> Any:
    return _graph(_TOP_K_NODES, {"zero": 0}, {LARGEST: (_I64, [1]), LAST_KEPT: (_I64, ["rows", 1])}, vocab_size)


def _graph(
    nodes: list[_Node], constants: Mapping[str, Any], inputs: Mapping[str, tuple[int, Any]], vocab_size: int
) -> Any:
    shared = {"across": 1, "last": [-1], "one": 1, "nothing": -1}
    inputs = {
        LOGITS: (_F32, ["rows", vocab_size]),
        TEMPERATURE: (_F32, ["rows", 1]),
        TOP_P: (_F64, ["rows", 1]),
        UNIFORM: (_F64, ["rows", "tries"]),
        **inputs,
    }
    return helper.make_graph(
        [helper.make_node(kind, given.split(), made.split(), **settings) for kind, given, made, settings in nodes],
        "drawing",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(DRAWN, _I64, ["rows", "columns"])],
        [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in {**shared, **constants}.items()],
    )
