"""Weights in four bits, in the layout that MatMulNBits reads, and in eight bits."""

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCKS", "dequantize", "quantize", "quantize_outputs"]

#: Sizes of blocks that MatMulNBits knows.
BLOCKS: Final = (16, 32, 64, 128, 256)


def quantize(matrix: npt.NDArray[np.float32], block: int = 32) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
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
    return levels[..., 0::2] | (levels[..., 1::2] << 4), scales


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
