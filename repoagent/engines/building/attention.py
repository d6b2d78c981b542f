"""Attention for which there is no fused kernel: TensorRT builds nothing then, unless it may use several kernels."""

from typing import Any, Final

from repoagent.engines.bindings import trt

__all__ = ["UNFUSED", "attention_groups", "let_decompose"]

UNFUSED: Final = "not supported by a dedicated kernel"
"""In the error of a build. It does not name the layer."""


def attention_groups(network: Any) -> list[list[Any]]:
    """The attention layers of ``network`` by the type of their numbers, those of 32 bits first.

    Whether there is a kernel depends on the type first of all, so what one group lacks another one may have.
    """
    kind = getattr(trt.LayerType, "ATTENTION_INPUT", None)  # not in the older versions
    groups: dict[str, list[Any]] = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if kind is not None and layer.type == kind:
            groups.setdefault(layer.get_input(0).dtype.name, []).append(layer)
    return [groups[name] for name in sorted(groups, key=lambda name: name != "FLOAT")]


def let_decompose(layers: list[Any]) -> None:
    """Let each of the layers be computed by several kernels."""
    for layer in layers:
        # The network hands out plain layers; the class says what else they have.
        layer.__class__ = trt.IAttentionBoundaryLayer
        layer.attention.decomposable = True
