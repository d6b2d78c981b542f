"""Puts the sliding window that genai_config.json describes into a graph that does not have it."""

from typing import Any, Final

from onnx import helper

from repoagent_llm.runner.decoder_spec import CONFIG_NAME, DecoderSpec
from repoagent_llm.types.errors import DecoderError, UnsupportedFeatureError

__all__ = ["limit_windows"]

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
