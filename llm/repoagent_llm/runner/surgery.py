"""Changes to a decoder graph at load; the weights file is not touched.

A graph as published computes the mask from ``attention_mask`` and logits for every token. Ours takes the row
lengths directly, computes logits only for the rows asked for, and their largest token beside them. The embeddings of
some tokens may be given with a run.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper

from repoagent.beneath.opening import open_beneath, read_up_to
from repoagent.errors import RepoAgentError
from repoagent_llm.runner.decoder_spec import CONFIG_NAME, DecoderSpec
from repoagent_llm.runner.external_data import hold_inner_tensors, outside_files
from repoagent_llm.runner.mixed_surgery import mix_runs
from repoagent_llm.runner.runner_options import MOST_GRAPH_BYTES
from repoagent_llm.types.executor_errors import CheckError, DecoderError, UnsupportedFeatureError, text_of

_ATTRIBUTE: Final = "local_window_size"
_PAST_KEY: Final = 3  # among the operator's inputs


def limit_windows(graph: Any, spec: DecoderSpec) -> None:
    """Let each layer of ``spec.window`` attend to so many tokens.

    Raises ``DecoderError`` where the graph has another window, ``UnsupportedFeatureError`` where it cannot have one.
    """
    if spec.window is None:
        return
    if spec.standard:
        raise UnsupportedFeatureError(
            "model.decoder.sliding_window", f"a graph of standard operators contains its own window ({spec.place})"
        )
    layer_of = {spec.past(layer)[0]: layer for layer in spec.window.layers}
    left = set(spec.window.layers)
    for node in graph.node:
        if node.op_type == "GroupQueryAttention" and node.input[_PAST_KEY] in layer_of:
            left.discard(layer_of[node.input[_PAST_KEY]])
            _limit(node, spec.window.size, spec.place)
    if left:
        raise DecoderError(f"{spec.place}: the graph has no attention in layer {min(left)}, which {CONFIG_NAME} limits")


def _limit(node: Any, size: int, place: str) -> None:
    attribute = next((item for item in node.attribute if item.name == _ATTRIBUTE), None)
    if attribute is None:
        node.attribute.append(helper.make_attribute(_ATTRIBUTE, size))
    elif attribute.i == -1:
        attribute.i = size
    elif attribute.i != size:
        raise DecoderError(
            f"{place}: {node.name or node.output[0]} attends to {attribute.i} tokens, but {CONFIG_NAME} has "
            f"model.decoder.sliding_window.window_size {size}"
        )


LENGTHS: Final = "row_lengths"
TOTAL: Final = "longest"
INDEX: Final = "logits_index"
ROW_LOGITS: Final = "row_logits"
ARGMAX: Final = "row_argmax"
PROMPT_PLACES: Final = "prompt_places"
PROMPT_ROWS: Final = "prompt_rows"
_HEADS: Final = ("MatMul", "MatMulNBits", "MatMulIntegerToFloat", "Gemm")


@dataclass(frozen=True, slots=True)
class Operated:
    """``graph``: serialized, with our inputs and outputs. ``outside``: the files that hold weights of it."""

    graph: bytes
    outside: frozenset[str]


def operate(
    spec: DecoderSpec,
    extra_outputs: Sequence[str] = (),
    *,
    lora: bool = False,
    mixed: bool = False,
    own_weights: bool = False,
    most_bytes: int | None = None,
) -> Operated:
    """The graph of ``spec`` with our inputs and outputs, and ``extra_outputs`` by name.

    ``lora``: let its linear layers take adapters. ``mixed``: let a run carry rows and longer pieces (see mix_runs).
    ``own_weights``: what a session could not take from files in memory is in the graph. ``most_bytes``: of its file.
    """
    model = _load(spec, most_bytes)
    try:
        _change(model.graph, spec, extra_outputs, lora=lora, mixed=mixed)
    except RepoAgentError:
        raise
    except Exception as error:  # nodes without the inputs of their kind, tensors without dimensions: what there may be
        raise DecoderError(f"{spec.place}: the graph is not one of a decoder: {text_of(error)}") from error
    if own_weights and spec.graph is None:
        hold_inner_tensors(model, spec, MOST_GRAPH_BYTES - model.ByteSize())
    return Operated(bytes(model.SerializeToString()), outside_files(model.graph))


def _change(graph: Any, spec: DecoderSpec, extra_outputs: Sequence[str], *, lora: bool, mixed: bool) -> None:
    path = spec.place
    _check_vocabulary(graph, spec)
    del graph.value_info[:]  # shapes between the nodes: some are others now, and no one needs any
    limit_windows(graph, spec)
    if not spec.standard:
        _feed_lengths(graph, path)
        _gather_rows(graph, spec.logits, path)
    _take_embeddings(graph, spec)
    if lora:
        take_adapters(graph, path)
    if mixed:
        mix_runs(graph, spec)
    _finish_logits(graph, spec)
    _add_outputs(graph, extra_outputs, path)
    _drop_unused(graph)


def _load(spec: DecoderSpec, most_bytes: int | None = None) -> Any:
    content = _read(spec, most_bytes) if spec.graph is None else spec.graph
    try:
        model = onnx.load_model_from_string(content)
    except DecodeError as error:
        raise DecoderError(f"{spec.place} is not an ONNX model: {error}") from error
    if spec.graph is not None:
        _check_weights(model.graph, spec.weights)
    return model


def _read(spec: DecoderSpec, most_bytes: int | None) -> bytes:
    try:
        with open_beneath(spec.folder, spec.filename) as file:
            content = file.readall() if most_bytes is None else read_up_to(file, most_bytes + 1)
    except OSError as error:
        raise DecoderError(f"{spec.place}: File does not exist") from error
    if most_bytes is not None and len(content) > most_bytes:
        raise DecoderError(
            f"{spec.place}: the graph has more than {most_bytes} bytes; keep its weights in a file beside it, or raise "
            "the limit (--limit-decoder-graph-bytes of a server, RunnerOptions.max_graph_bytes)"
        )
    return content


def outside_types(spec: DecoderSpec) -> dict[str, int]:
    """The element types of the weights that a graph in memory does not hold itself, by name."""
    graph = _load(spec).graph
    return {item.name: item.data_type for item in graph.initializer if item.data_location == TensorProto.EXTERNAL}


def _check_weights(graph: Any, weights: Mapping[str, npt.NDArray[Any]]) -> None:
    """All that the graph keeps elsewhere is there; others are passed over, as in TensorRT-LLM."""
    outside = {item.name: item for item in graph.initializer if item.data_location == TensorProto.EXTERNAL}
    for name, tensor in outside.items():
        expected = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if name not in weights:
            raise CheckError(f"managed_weights lacks {name!r}, which the engine buffer keeps outside")
        found = weights[name]
        if not _same_type(found.dtype, expected) or found.shape != tuple(tensor.dims):
            raise CheckError(
                f"managed_weights[{name!r}] is {found.dtype} {list(found.shape)}, the engine buffer expects "
                f"{expected} {list(tensor.dims)}"
            )


def _same_type(found: np.dtype[Any], expected: np.dtype[Any]) -> bool:
    """Bytes that only say in their metadata what they are (bfloat16, float8) have the type that the graph says."""
    described = found.kind == "V" and found.itemsize == expected.itemsize and bool(found.metadata)
    return found == expected or (described and expected.name.startswith(("bfloat16", "float8")))


def _check_vocabulary(graph: Any, spec: DecoderSpec) -> None:
    logits = next((item for item in graph.output if item.name == spec.logits), None)
    sizes = [] if logits is None else [dim.dim_value for dim in logits.type.tensor_type.shape.dim]
    if sizes and sizes[-1] not in (0, spec.vocab_size):  # 0: the graph does not say
        raise DecoderError(
            f"{spec.place}: the graph's vocabulary has {sizes[-1]} tokens, {CONFIG_NAME} has {spec.vocab_size}"
        )


def _producers(graph: Any) -> dict[str, Any]:
    return {name: node for node in graph.node for name in node.output if name}


def _feed_lengths(graph: Any, path: str) -> None:
    nodes = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    if not nodes:
        raise DecoderError(
            f"{path}: no GroupQueryAttention node; folders for CPU are made with onnxruntime-genai's builder (-e cpu) "
            "or with repoagent_llm.builder"
        )
    for node in nodes:
        node.input[5], node.input[6] = LENGTHS, TOTAL
    graph.input.append(helper.make_tensor_value_info(LENGTHS, TensorProto.INT32, ["batch"]))
    graph.input.append(helper.make_tensor_value_info(TOTAL, TensorProto.INT32, []))


def _gather_rows(graph: Any, logits: str, path: str) -> None:
    """Put Flatten and Gather before the LM head, so that it sees only the rows asked for."""
    producers = _producers(graph)
    head = producers.get(logits)
    passed: set[str] = set()
    while head is not None and head.op_type not in _HEADS:
        passed.add(head.output[0])
        head = producers.get(head.input[0])
        if head is not None and head.output[0] in passed:
            raise DecoderError(f"{path}: the graph has a cycle before the output {logits!r}")
    if head is None:
        raise DecoderError(f"{path}: no LM head ({', '.join(_HEADS)}) leads to the output {logits!r}")
    operands = [(head, 0)]
    if head.op_type == "MatMulIntegerToFloat":  # the size of each row's steps comes in behind it
        operands += [(node, 1) for node in graph.node if node.op_type == "Mul" and node.input[0] == head.output[0]]
    graph.input.append(helper.make_tensor_value_info(INDEX, TensorProto.INT64, ["rows"]))
    for node, place in operands:
        name = node.input[place]
        node.input[place] = f"{name}.wanted"
        before = list(graph.node).index(head)
        graph.node.insert(before, helper.make_node("Gather", [f"{name}.all", INDEX], [f"{name}.wanted"], axis=0))
        graph.node.insert(before, helper.make_node("Flatten", [name], [f"{name}.all"], axis=2))


def _take_embeddings(graph: Any, spec: DecoderSpec) -> None:
    """Let rows come in that stand in for the embeddings of some tokens, by (row, column); usually there are none."""
    lookup = next((node for node in graph.node if node.op_type == "Gather" and node.input[1] == "input_ids"), None)
    table = next((item for item in graph.initializer if lookup is not None and item.name == lookup.input[0]), None)
    if lookup is None or table is None:
        return  # an embedding of another kind: prompt tables are refused by name then
    if table.dims[1] != spec.hidden_size:
        raise DecoderError(
            f"{spec.place}: an embedding has {table.dims[1]} values, {CONFIG_NAME} has a hidden size of "
            f"{spec.hidden_size}"
        )
    embedded = lookup.output[0]
    lookup.output[0] = f"{embedded}.looked_up"
    scatter = helper.make_node("ScatterND", [lookup.output[0], PROMPT_PLACES, PROMPT_ROWS], [embedded])
    graph.node.insert(list(graph.node).index(lookup) + 1, scatter)
    rows: list[str | int | None] = ["embeddings", spec.hidden_size]
    graph.input.append(helper.make_tensor_value_info(PROMPT_PLACES, TensorProto.INT64, ["embeddings", 2]))
    graph.input.append(helper.make_tensor_value_info(PROMPT_ROWS, table.data_type, rows))


def _finish_logits(graph: Any, spec: DecoderSpec) -> None:
    """Logits as float32 under our name, and their largest token."""
    (output,) = (output for output in graph.output if output.name == spec.logits)
    if output.type.tensor_type.elem_type != TensorProto.FLOAT:
        graph.node.append(helper.make_node("Cast", [spec.logits], [ROW_LOGITS], to=TensorProto.FLOAT))
    else:  # a cast that changes nothing copies all the same
        _rename(graph, spec.logits, ROW_LOGITS)
    graph.node.append(helper.make_node("ArgMax", [ROW_LOGITS], [ARGMAX], axis=1, keepdims=0))
    _remove(graph.output, [spec.logits])
    shape: list[str | int | None] = ["rows", spec.vocab_size]
    graph.output.append(helper.make_tensor_value_info(ROW_LOGITS, TensorProto.FLOAT, shape))
    graph.output.append(helper.make_tensor_value_info(ARGMAX, TensorProto.INT64, ["rows"]))


def _add_outputs(graph: Any, names: Iterable[str], path: str) -> None:
    known = _producers(graph)
    for name in names:
        if name not in known:
            close = sorted(item for item in known if name.lower() in item.lower())[:5]
            hint = f"; names like it: {', '.join(close)}" if close else ""
            raise DecoderError(f"{path}: no tensor is named {name!r}, so it cannot be an output{hint}")
        graph.output.append(onnx.ValueInfoProto(name=name))


def _drop_unused(graph: Any) -> None:
    """Remove nodes, inputs and initializers that no output needs."""
    producers = _producers(graph)
    needed: set[str] = set()
    waiting = [output.name for output in graph.output]
    while waiting:
        name = waiting.pop()
        if name and name not in needed:
            needed.add(name)
            waiting += producers[name].input if name in producers else []
    unused = [node for node in graph.node if not needed.intersection(node.output)]
    for node in unused:
        graph.node.remove(node)
    for group in (graph.input, graph.initializer):
        _remove(group, [item.name for item in group if item.name not in needed])


def _rename(graph: Any, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == old:
                    names[place] = new


def _remove(group: Any, names: Iterable[str]) -> None:
    gone = set(names)
    kept = [item for item in group if item.name not in gone]
    del group[:]
    group.extend(kept)


_GENAI: Final = re.compile(r"/model/layers\.(\d+)/(?:attn|mlp)/(qkv|q|k|v|o|gate|up|down)_proj/MatMul/output_0")
_OURS: Final = re.compile(r"layers\.(\d+)\.(qkv|attention_out|gate|up|mlp_out)(?:\.product)?")
_SITES: Final = {"o": "attention_out", "down": "mlp_out"}
_OPS: Final = ("MatMul", "MatMulNBits")


def take_adapters(graph: Any, place: str) -> None:
    """Add to each linear layer of attention and MLP the two inputs that ``repoagent_llm.builder`` gives it.

    Does nothing where they are there already; raises ``DecoderError`` for a graph whose layers have other
    names.
    """
    if any(item.name.startswith("lora.") for item in graph.input):
        return
    sizes = {item.name: item.dims for item in graph.initializer}
    element = next(item.type.tensor_type.elem_type for item in graph.input if "past" in item.name)
    found = False
    for node in list(graph.node):
        site = _site(node)
        if site is not None:
            found = True
            inputs, outputs = _size(node, sizes)
            rank = f"rank.{site}"
            graph.input.append(helper.make_tensor_value_info(f"lora.{site}.a", element, ["batch", inputs, rank]))
            graph.input.append(helper.make_tensor_value_info(f"lora.{site}.b", element, ["batch", rank, outputs]))
            _insert(graph, node, site)
    if not found:
        raise DecoderError(f"{place}: no linear layer has a name by which it could take a LoRA adapter")


def _site(node: Any) -> str | None:
    """What the builder calls the layer that a node is; None: it is no layer that takes adapters."""
    if node.op_type not in _OPS:
        return None
    match = _GENAI.fullmatch(node.output[0]) or _OURS.fullmatch(node.output[0])
    return None if match is None else f"layers.{match[1]}.{_SITES.get(match[2], match[2])}"


def _size(node: Any, sizes: Any) -> tuple[int, int]:
    if node.op_type == "MatMul":
        inputs, outputs = sizes[node.input[1]]
        return int(inputs), int(outputs)
    attributes = {item.name: item.i for item in node.attribute}
    return attributes["K"], attributes["N"]


def _insert(graph: Any, node: Any, site: str) -> None:
    """x @ a @ b beside the layer, added to what it gives."""
    output = node.output[0]
    node.output[0] = f"{output}.base"
    added = [
        helper.make_node("MatMul", [node.input[0], f"lora.{site}.a"], [f"{output}.narrow"]),
        helper.make_node("MatMul", [f"{output}.narrow", f"lora.{site}.b"], [f"{output}.change"]),
        helper.make_node("Add", [f"{output}.base", f"{output}.change"], [output]),
    ]
    place = list(graph.node).index(node) + 1
    for offset, new in enumerate(added):
        graph.node.insert(place + offset, new)
