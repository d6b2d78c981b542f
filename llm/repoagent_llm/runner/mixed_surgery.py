"""Lets one run carry rows of one token each and longer pieces: linear layers see all tokens one after the other.

Only attention treats them differently. Each GroupQueryAttention becomes two, one for the pieces, one for the rows, with
caches of their own; indices say which tokens go where, and in which order the results are put together again. The
operator takes no empty batch, so a run without pieces or without rows gives it one token to throw away.
"""

from typing import Any, Final

from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from repoagent.errors import InvalidArgumentError
from repoagent_llm.runner.decoder_spec import DecoderSpec

PIECE_INDEX: Final = "piece_index"
PIECE_LENGTHS: Final = "piece_lengths"
PIECE_TOTAL: Final = "longest_piece"
ROW_INDEX: Final = "row_index"
ORDER: Final = "token_order"
_LENGTHS, _TOTAL = 5, 6  # among the operator's inputs
_OPERANDS, _CACHE = (0, 1, 2), (3, 4)


def of_pieces(name: str) -> str:
    """What a tensor of the cache is called where pieces read and write it."""
    return f"pieces.{name}"


def mix_runs(graph: Any, spec: DecoderSpec) -> None:
    """Change a graph that takes row lengths directly. Tokens are then [1, tokens], pieces before rows."""
    if any(item.name.startswith("lora.") for item in graph.input):
        raise InvalidArgumentError(
            f"{spec.place}: a graph that takes LoRA adapters cannot mix rows and pieces in a run"
        )
    nodes = []
    for node in graph.node:
        nodes += _apart(node) if node.op_type == "GroupQueryAttention" else [node]
    del graph.node[:]
    graph.node.extend(nodes)
    for layer in range(spec.layers):
        _double(graph.input, spec.past(layer))
        _double(graph.output, spec.present(layer))
    inputs: list[tuple[str, int, list[str | int | None]]] = [
        (PIECE_INDEX, TensorProto.INT64, ["pieces", "width"]),
        (PIECE_LENGTHS, TensorProto.INT32, ["pieces"]),
        (PIECE_TOTAL, TensorProto.INT32, []),
        (ROW_INDEX, TensorProto.INT64, ["rows", 1]),
        (ORDER, TensorProto.INT64, [1, "tokens"]),
    ]
    graph.input.extend(helper.make_tensor_value_info(*item) for item in inputs)


def _apart(node: Any) -> list[Any]:
    stem = node.output[0]
    pieces, rows = NodeProto(), NodeProto()
    made = []
    for copy, part, index in ((pieces, "pieces", PIECE_INDEX), (rows, "rows", ROW_INDEX)):
        copy.CopyFrom(node)
        copy.name = f"{node.name or stem}.{part}"
        copy.output[0] = f"{stem}.{part}"
        for place in _OPERANDS:
            if node.input[place]:
                copy.input[place] = f"{stem}.{part}.{place}"
                made.append(helper.make_node("Gather", [f"{stem}.{place}", index], [copy.input[place]], axis=0))
    for place in _CACHE:
        pieces.input[place] = of_pieces(node.input[place])
        pieces.output[place - 2] = of_pieces(node.output[place - 2])
    pieces.input[_LENGTHS], pieces.input[_TOTAL] = PIECE_LENGTHS, PIECE_TOTAL
    flat = [
        helper.make_node("Flatten", [node.input[place]], [f"{stem}.{place}"], axis=2)
        for place in _OPERANDS
        if node.input[place]
    ]
    ends = [
        helper.make_node("Flatten", [part.output[0]], [f"{part.output[0]}.flat"], axis=2) for part in (pieces, rows)
    ]
    joined = helper.make_node("Concat", [end.output[0] for end in ends], [f"{stem}.joined"], axis=0)
    return [*flat, *made, pieces, rows, *ends, joined, helper.make_node("Gather", [joined.output[0], ORDER], [stem])]


def _double(group: Any, names: tuple[str, str]) -> None:
    """Inputs or outputs of the same kind for the pieces."""
    for item in [item for item in group if item.name in names]:
        copy = ValueInfoProto()
        copy.CopyFrom(item)
        copy.name = of_pieces(item.name)
        for axis in (0, 2):
            copy.type.tensor_type.shape.dim[axis].dim_param = f"{copy.name}.{axis}"
        group.append(copy)
