"""LoraAdapter: an adapter's matrices by the layer of the graph that they change."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from repoagent_llm.lora.modules import ColumnRange, columns_of
from repoagent_llm.runner.protocol import AdapterWeights, LoraShape
from repoagent_llm.types.errors import CheckError, UnsupportedFeatureError

__all__ = ["LoraAdapter", "read_adapter"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """``digest`` distinguishes adapters that one task had one after the other."""

    task_id: int
    weights: AdapterWeights
    digest: int

    @property
    def nbytes(self) -> int:
        """The size of all matrices."""
        return sum(a.nbytes + b.nbytes for a, b in self.weights.values())


def read_adapter(
    task_id: int, weights: Array, config: Array, shape: LoraShape, *, max_rank: int, dtype: Any
) -> LoraAdapter:
    """An adapter from TensorRT-LLM's form: of each module, "in" [rank, inputs] and "out" [outputs, rank], flat, one
    after the other, the scale in "out"; ``config`` [modules, 3]: module, layer, rank.

    Raises ``CheckError`` for what does not fit the model, ``UnsupportedFeatureError`` for DoRA.
    """
    if config.shape[1] not in (3, 4):
        raise CheckError(f"Expected dim2 of lora_keys to have a size in [3, 4], not {config.shape[1]}")
    if weights.dtype.kind != "f":
        raise CheckError(f"LoraConfig.weights must be of a floating-point type, not {weights.dtype}")
    if not np.isfinite(weights).all():
        raise CheckError("LoraConfig.weights hold values that are not finite")
    parts: dict[str, list[tuple[ColumnRange, Array, Array]]] = {}
    for row, values in zip(config.tolist(), weights, strict=True):
        if len(row) == 4 and row[3]:
            raise UnsupportedFeatureError("DoRA in LoraConfig", "only plain LoRA adapters are applied")
        place, rank = columns_of(row[0], row[1], shape), row[2]
        _check_row(row, place, len(values), max_rank)
        middle, end = rank * place.inputs, rank * (place.inputs + place.outputs)
        a = values[:middle].reshape(rank, place.inputs).T
        b = values[middle:end].reshape(place.outputs, rank).T
        parts.setdefault(place.site, []).append((place, a, b))
    joined = {site: _join(items, shape.sites[site][1], dtype) for site, items in parts.items()}
    digest = hashlib.blake2b(np.ascontiguousarray(config).tobytes(), digest_size=8)
    digest.update(np.ascontiguousarray(weights).data)
    return LoraAdapter(task_id, joined, int.from_bytes(digest.digest(), "little"))


def _check_row(row: Sequence[int], place: ColumnRange, values: int, max_rank: int) -> None:
    rank = row[2]
    if rank <= 0:
        raise CheckError(f"Expected adapterSize to be > 0, not {rank}")
    if rank > max_rank:
        raise CheckError(
            f"Invalid low_rank ({rank}). low_rank must be smaller than mMaxLowRank ({max_rank}), which is "
            "PeftCacheConfig.max_adapter_size"
        )
    needed = rank * (place.inputs + place.outputs)
    if needed > values:
        raise CheckError(f"lora_weights has to few values for {place.site}: {values}, rank {rank} needs {needed}")


def _join(parts: Sequence[tuple[ColumnRange, Array, Array]], outputs: int, dtype: Any) -> tuple[Array, Array]:
    """Modules of one layer side by side: a [inputs, ranks], b [ranks, outputs]; zeros where a module gives nothing."""
    ranks = [a.shape[1] for _, a, _ in parts]
    wide = np.zeros((sum(ranks), outputs), dtype)
    first = 0
    for (place, _, b), rank in zip(parts, ranks, strict=True):
        wide[first : first + rank, place.start : place.stop] = b
        first += rank
    return np.concatenate([a for _, a, _ in parts], axis=1).astype(dtype, order="C"), wide
