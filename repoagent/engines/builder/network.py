"""A network from an ONNX file, and what the parser has against it as a list that a person can use."""

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from repoagent.engines.bindings import trt
from repoagent.errors import InvalidArgumentError

_python: Final = logging.getLogger("repoagent.tensorrt")
_NOISE: Final = "cudaError"
"""On a machine without a driver most failures are followed by an error about that."""


class _Logger(trt.ILogger):  # type: ignore[misc]
    """Keeps errors for those who collect. What it raises would be swallowed, so it raises nothing."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._lock = threading.Lock()
        self._lists: list[list[str]] = []

    def log(self, severity: Any, msg: str) -> None:
        """Take one message of the library."""
        if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
            with self._lock:
                for one in self._lists:
                    one.append(msg)
            _python.debug("error: %s", msg)
        else:
            _python.debug("%s", msg)

    def add(self, errors: list[str]) -> None:
        """Put the errors from now on into ``errors``, too."""
        with self._lock:
            self._lists.append(errors)

    def remove(self, errors: list[str]) -> None:
        """Put no more there."""
        with self._lock:
            self._lists = [one for one in self._lists if one is not errors]


logger: Final = _Logger()


@contextmanager
def collected() -> Iterator[list[str]]:
    """The errors that are logged inside the block, on any thread."""
    errors: list[str] = []
    logger.add(errors)
    try:
        yield errors
    finally:
        logger.remove(errors)


def first_error(errors: list[str]) -> str:
    """What to show of several: the first, as later ones follow from it, and rather not one about the driver."""
    telling = [error for error in errors if _NOISE not in error] or errors
    return _short(telling[0]) if telling else "the library gives no reason"


def _short(error: str) -> str:
    """Without the place in the library's sources: ``[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda ...``."""
    text = " ".join(error.split())
    if text.startswith("["):
        text = text.partition("] ")[2] or text
    return text


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
        # The network hands out plain layers; the class shows what else they have.
        layer.__class__ = trt.IAttentionBoundaryLayer
        layer.attention.decomposable = True


_MOST_SHOWN: Final = 8
_FALSE: Final = "false"
_NO_PLUGIN: Final = ("Plugin not found", "was not found in plugin registry")
_QUOTED: Final = re.compile(r'&& "([^"]+)"')
_CAPACITY: Final = "must have a static sequence length"
_MICROSOFT: Final = "com.microsoft"
_OF_ONNX_RUNTIME: Final = frozenset(
    """
    BiasGelu ConvInteger DynamicQuantizeLinear DynamicQuantizeMatMul EmbedLayerNormalization FusedConv FusedGemm
    FusedMatMul FusedMatMulActivation GroupQueryAttention MatMulInteger MatMulIntegerToFloat MatMulNBits
    MultiHeadAttention NhwcConv NhwcFusedConv NhwcMaxPool QuickGelu SkipLayerNormalization
    """.split()  # noqa: SIM905 - a list of twenty texts reads worse
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
    """Read the ONNX file ``path``, and the data files that it names, into ``network``. Raises ``InvalidArgumentError``
    with every node that the parser complains about."""
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
    """Without repeats. An error without a node helps less than one with a node that follows."""
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
