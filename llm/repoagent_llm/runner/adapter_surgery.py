"""Makes a graph take LoRA adapters that was not built for them: onnxruntime-genai's, and our builder's without LoRA."""

import re
from typing import Any, Final

from onnx import helper

from repoagent_llm.types.executor_errors import DecoderError

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
