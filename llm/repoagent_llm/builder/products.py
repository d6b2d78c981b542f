"""How a graph of the gqa form multiplies by a weight matrix, in each precision."""

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from repoagent_llm.builder.graph import MICROSOFT, GraphWriter, finite

if TYPE_CHECKING:
    from repoagent_llm.builder.weights import Linear

#: Sizes of blocks that MatMulNBits knows.
BLOCKS: Final = (16, 32, 64, 128, 256)
Blocks = tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]
"""A matrix in four bits: packed [outputs, blocks, block / 2] and scales [outputs, blocks]."""
WideBlocks = tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]
"""A matrix in eight bits: levels [outputs, blocks, block] and scales [outputs, blocks]."""


def pack(levels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Levels [..., n] from 0 to 15 -> [..., n / 2]; the low half of a byte comes first."""
    packed: npt.NDArray[np.uint8] = levels[..., 0::2] | (levels[..., 1::2] << 4).astype(np.uint8)
    return packed


def four_bits(layer: "Linear", block: int, name: str) -> Blocks:
    """The layer's matrix in blocks: as the checkpoint has it, if that has blocks of this size, else rounded."""
    if layer.blocks is not None and layer.blocks[0].dtype == np.uint8 and layer.blocks[0].shape[2] * 2 == block:
        finite(layer.blocks[1], np.float32, name)
        return layer.blocks[0].view(np.uint8), layer.blocks[1]
    return quantize(finite(layer.matrix, np.float32, name), block)


def eight_bits(layer: "Linear", name: str) -> WideBlocks | None:
    """The layer's matrix in blocks as the checkpoint has it; None where it has none."""
    if layer.blocks is None:
        return None
    levels, scales = layer.blocks
    finite(scales, np.float32, name)
    if levels.dtype == np.uint8:
        levels = np.stack([levels & 15, levels >> 4], axis=-1).reshape(*levels.shape[:2], -1).astype(np.int8) - 8
    return levels.astype(np.int8), scales


def quantize(matrix: npt.NDArray[np.float32], block: int = 32) -> Blocks:
    """[outputs, inputs] -> packed [outputs, blocks, ``block`` / 2] and scales [outputs, blocks].

    Symmetric with the zero at 8: the value of largest magnitude in a block becomes 0 or, rounded, 15. The low half
    of a byte comes first.
    """
    outputs, inputs = matrix.shape
    padded = np.pad(matrix, ((0, 0), (0, -inputs % block))).reshape(outputs, -1, block)
    largest = np.take_along_axis(padded, np.abs(padded).argmax(axis=2)[..., None], axis=2)[..., 0]
    scales = (largest / -8.0).astype(np.float32)
    safe = np.where(scales == 0, 1, scales)[..., None]
    levels = np.clip(np.rint(padded / safe) + 8, 0, 15).astype(np.uint8)
    return pack(levels), scales


def dequantize(packed: npt.NDArray[np.uint8], scales: npt.NDArray[np.float32], inputs: int) -> npt.NDArray[np.float32]:
    """The matrix [outputs, inputs] that the packed form stands for."""
    levels = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:2], -1)
    values = (levels.astype(np.float32) - 8) * scales[..., None]
    return np.ascontiguousarray(values.reshape(len(packed), -1)[:, :inputs])


def quantize_outputs(
    matrix: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """[outputs, inputs] -> eight bits [inputs, outputs] and scales [outputs]; zero is zero."""
    scales = (np.abs(matrix).max(axis=1) / 127).astype(np.float32)
    safe = np.where(scales == 0, 1, scales)[:, None]
    return np.ascontiguousarray(np.rint(matrix / safe).astype(np.int8).T), scales


Floats = npt.NDArray[np.float32]
# Activations in eight bits: unsigned, with this in the place of zero, and as many steps up as down.
_MIDDLE: Final = 128
_STEPS: Final = 127


class Product(Protocol):
    """Writes the product of an activation and a matrix."""

    def __call__(self, x: str, layer: "Linear", name: str) -> str:
        """x [..., inputs] times the layer's matrix [outputs, inputs] -> [..., outputs], called ``name``."""


class Plain:
    """Weights in the graph's element type."""

    def __init__(self, graph: GraphWriter, dtype: Any) -> None:
        self._graph = graph
        self._dtype = dtype

    def __call__(self, x: str, layer: "Linear", name: str) -> str:
        """See Product."""
        weight = f"{name}.weight"
        self._graph.weight(weight, finite(layer.matrix.T, self._dtype, weight))
        return self._graph.node("MatMul", [x, weight], name)


class FourBits:
    """Weights in four bits, ``block`` of them with one scale."""

    def __init__(self, graph: GraphWriter, block: int) -> None:
        self._graph = graph
        self._block = block

    def __call__(self, x: str, layer: "Linear", name: str) -> str:
        """See Product."""
        outputs, inputs = layer.matrix.shape
        packed, scales = four_bits(layer, self._block, name)
        weights = [
            self._graph.weight(f"{name}.packed", packed),
            self._graph.weight(f"{name}.scales", scales.reshape(-1)),
        ]
        return self._graph.node(
            "MatMulNBits",
            [x, *weights],
            name,
            domain=MICROSOFT,
            K=inputs,
            N=outputs,
            bits=4,
            block_size=self._block,
            accuracy_level=4,
        )


class EightBits:
    """Weights in eight bits with a scale per output, and activations in eight bits with a scale per token.

    ONNX Runtime's operators that round activations themselves do so with one scale for all tokens, so that what a
    request gets would depend on its neighbours.
    """

    def __init__(self, graph: GraphWriter) -> None:
        self._graph = graph
        self._rounded: dict[str, tuple[str, str]] = {}

    def __call__(self, x: str, layer: "Linear", name: str) -> str:
        """See Product."""
        levels, steps = self._rounded.get(x) or self._round(x)
        weights, scales = quantize_outputs(finite(layer.matrix, np.float32, name))
        operands = [
            levels,
            self._graph.weight(f"{name}.levels", weights),
            self._one(),
            self._graph.weight(f"{name}.scales", scales),
            self._middle(),
        ]
        counted = self._graph.node("MatMulIntegerToFloat", operands, f"{name}.counted", domain=MICROSOFT)
        return self._graph.node("Mul", [counted, steps], name)

    def _round(self, x: str) -> tuple[str, str]:
        """Levels uint8 [..., inputs] and the size of a step [..., 1]; layers that read the same x share them."""
        graph = self._graph
        last = graph.weight("int8.last_axis", np.array([-1], np.int64))
        share = graph.weight("int8.share", np.array(1 / _STEPS, np.float32))
        largest = graph.node("ReduceMax", [graph.node("Abs", [x], f"{x}.sizes"), last], f"{x}.largest", keepdims=1)
        steps = graph.node("Mul", [largest, share], f"{x}.step")
        # A token of zeros has steps of zero, and levels without a meaning, which are multiplied by zero in the end.
        scaled = graph.node("Div", [x, steps], f"{x}.scaled")
        levels = graph.node("QuantizeLinear", [scaled, self._one(), self._middle()], f"{x}.levels")
        self._rounded[x] = levels, steps
        return levels, steps

    def _one(self) -> str:
        return self._graph.weight("int8.one", np.array(1, np.float32))

    def _middle(self) -> str:
        return self._graph.weight("int8.middle", np.array(_MIDDLE, np.uint8))
