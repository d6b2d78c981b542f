"""A network from an ONNX file, and what the parser has against it as a list that a person can use."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from repoagent.engines.bindings import trt
from repoagent.engines.building.log import collected, first_error, logger
from repoagent.errors import InvalidArgumentError

__all__ = ["UNFUSED", "Complaint", "attention_groups", "let_decompose", "parse"]


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


_MOST_SHOWN: Final = 8
_FALSE: Final = "false"
_NO_PLUGIN: Final = ("Plugin not found", "was not found in plugin registry")
_QUOTED: Final = re.compile(r'&& "([^"]+)"')
_CAPACITY: Final = "must have a static sequence length"
_MICROSOFT: Final = "com.microsoft"
_OF_ONNX_RUNTIME: Final = frozenset(
    {
        "FusedGemm",
        "FusedConv",
        "FusedMatMul",
        "FusedMatMulActivation",
        "QuickGelu",
        "BiasGelu",
        "SkipLayerNormalization",
    }
    | {"EmbedLayerNormalization", "NhwcMaxPool", "NhwcConv", "NhwcFusedConv", "DynamicQuantizeMatMul"}
    | {
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "ConvInteger",
        "MatMulIntegerToFloat",
        "GroupQueryAttention",
        "MultiHeadAttention",
        "MatMulNBits",
    }
)
"""Operators that ONNX Runtime's optimiser and its quantisation make."""
_REMEDY: Final = (
    "ONNX Runtime's optimiser makes such operators: convert from the original model, or optimise with level 'basic'"
)

_FIXED: Final = (
    "build the decoder again with a fixed cache length: build(capacity=N), or convert the checkpoint with the "
    "parameters 'to' = 'decoder', 'form' = 'std' and 'capacity' = N"
)


@dataclass(frozen=True, slots=True)
class Complaint:
    """One error of the parser."""

    node: str
    """Its name in quotes, or its number where it has none; empty where the error is not about a node."""
    operator: str
    reason: str

    def __str__(self) -> str:
        operator = f" ({self.operator})" if self.operator else ""
        place = f"node {self.node}{operator}: " if self.node else ""
        return f"{place}{self._reason}{self._hint}"

    @property
    def _reason(self) -> str:
        # Of an operator that it does not know the parser reports "false", the text of its own check, or looks for a
        # plugin of that name.
        if self.reason in ("", _FALSE) or any(text in self.reason for text in _NO_PLUGIN):
            return f"the operator {self.operator or 'of this node'} is not supported"
        return self.reason

    @property
    def _hint(self) -> str:
        if _CAPACITY in self.reason:
            return f"; {_FIXED}"
        if self.operator in _OF_ONNX_RUNTIME or _MICROSOFT in self.reason:
            return f"; {_REMEDY}"
        return ""


def parse(network: Any, path: Path) -> None:
    """Read the ONNX file ``path``, and the data files that it names beside it, into ``network``.

    Raises:
        InvalidArgumentError: the parser refuses it; the message has every node that it complains about.
    """
    with collected() as errors:
        parser = trt.OnnxParser(network, logger)
        if parser.parse_from_file(str(path)):
            if not network.num_outputs:
                raise InvalidArgumentError("TensorRT cannot take the model: it has no output")
            return
    complaints = _complaints(parser)
    if not complaints:
        raise InvalidArgumentError(f"TensorRT cannot read the model: {first_error(errors)}")
    shown = "; ".join(map(str, complaints[:_MOST_SHOWN]))
    more = f"; and {len(complaints) - _MOST_SHOWN} more" if len(complaints) > _MOST_SHOWN else ""
    raise InvalidArgumentError(f"TensorRT cannot take the model: {shown}{more}")


def _complaints(parser: Any) -> list[Complaint]:
    """Without repeats. An error without a node says less than one with a node that follows."""
    found: dict[Complaint, None] = {}
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        found[Complaint(_place(error), error.node_operator(), _plain(error.desc()))] = None
    placed = [one for one in found if one.node]
    return placed or list(found)


def _place(error: Any) -> str:
    if error.node_name():
        return f"'{error.node_name()}'"
    return str(error.node()) if error.node() >= 0 and error.node_operator() else ""


def _plain(text: str) -> str:
    """Without the source of the check that failed: ``check && "what is wrong"``."""
    text = " ".join(text.split()).removeprefix("Assertion failed: ")
    return quoted[1] if (quoted := _QUOTED.search(text)) else text
