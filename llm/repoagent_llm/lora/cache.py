"""Adapters by task id, within a number of bytes, and their matrices by the layer that they change."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent_llm.lora.modules import ColumnRange, columns_of
from repoagent_llm.lora.peft import PEFT_CONFIG, read_peft
from repoagent_llm.runner.protocol import AdapterWeights, LoraShape
from repoagent_llm.types.adapters import LoraConfig
from repoagent_llm.types.cache_config import PeftCacheConfig
from repoagent_llm.types.executor_errors import CheckError, UnsupportedFeatureError

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


_DEFAULT_BYTES: Final = 1 << 30


@dataclass(slots=True, eq=False)
class _Entry:
    adapter: LoraAdapter
    users: int = 0
    fetched: bool = False
    """Beforehand, from the operator's folder."""

    @property
    def stays(self) -> bool:
        return self.fetched or self.users > 0


class AdapterLease:
    """An adapter that stays in the cache until ``release``."""

    def __init__(self, adapter: LoraAdapter, release: Callable[[], None]) -> None:
        self.adapter = adapter
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """The request is done. May be called twice."""
        release, self._release = self._release, None
        if release is not None:
            release()


class AdapterCache:
    """Full, it forgets the task unused longest; tasks of requests that are not done stay, and those that were read
    beforehand: a client could put weights of its own in their place. Any thread may call it."""

    def __init__(self, config: PeftCacheConfig, shape: LoraShape, dtype: str) -> None:
        self._shape = shape
        self._dtype = np.dtype(dtype)
        self._max_rank = config.max_adapter_size
        self._capacity = _capacity(config, shape, self._dtype.itemsize)
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._used = 0
        if config.lora_prefetch_dir is not None:
            self.renew(Path(config.lora_prefetch_dir))()

    def __contains__(self, task_id: int) -> bool:
        with self._lock:
            return task_id in self._entries

    @property
    def in_use(self) -> int:
        """How many leases are out."""
        with self._lock:
            return sum(entry.users for entry in self._entries.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all adapters that are held."""
        return self._used

    def lease(self, config: LoraConfig) -> AdapterLease:
        """The adapter of a request. Weights of a task that is known already are not looked at again.

        Raises ``CheckError``: the task is unknown and no weights came, they do not fit the model, the cache is full.
        """
        with self._lock:
            known = config.task_id in self._entries
        # Without the lock: the engine's thread gives leases back, and must not wait while an adapter is read.
        adapter = None if known else self._read(config)
        with self._lock:
            entry = self._entries.get(config.task_id)
            if entry is None:  # or forgotten since the first look
                entry = self._store(config.task_id, self._read(config) if adapter is None else adapter)
            entry.users += 1
            self._entries.move_to_end(config.task_id)
            return AdapterLease(entry.adapter, partial(self._release, entry))

    def _release(self, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1

    def _read(self, config: LoraConfig) -> LoraAdapter:
        if config.weights is None and config.config is None:
            raise CheckError(f"LoRA task {config.task_id} not found in cache. Please send LoRA weights with request")
        if config.weights is None:
            raise CheckError("Request for LoRA inference must have both lora_weights and lora_keys")
        return read_adapter(
            config.task_id,
            config.weights,
            config.config,
            self._shape,
            max_rank=self._max_rank,
            dtype=self._dtype,
        )

    def _store(self, task_id: int, adapter: LoraAdapter) -> _Entry:
        held = sum(entry.adapter.nbytes for entry in self._entries.values() if entry.stays)
        if held + adapter.nbytes > self._capacity:  # nothing is forgotten for what cannot be kept
            raise CheckError(
                f"PEFT Cache is full. Could not store taskId={task_id}: it needs {adapter.nbytes} bytes, "
                f"{held} of {self._capacity} are held by tasks that are in use or were fetched beforehand"
            )
        self._used += adapter.nbytes
        self._make_room()
        entry = self._entries[task_id] = _Entry(adapter)
        return entry

    def renew(self, folder: Path) -> Callable[[], None]:
        """Read the operator's adapters again. Nothing changes before what is returned is called, which does not raise.

        Requests that have an adapter keep it; later ones get the new one, or learn that there is none.

        Raises ``CheckError``: one makes no sense, or they do not fit into the cache.
        """
        found = {config.task_id: self._read(config) for config in _in_folder(folder)}
        needed = sum(adapter.nbytes for adapter in found.values())
        if needed > self._capacity:
            raise CheckError(
                f"PEFT Cache is full. The adapters of {folder.name}/ need {needed} of {self._capacity} bytes"
            )
        return partial(self._put_in_place, found)

    def _put_in_place(self, found: Mapping[int, LoraAdapter]) -> None:
        with self._lock:
            for task_id in [task_id for task_id, entry in self._entries.items() if entry.fetched or task_id in found]:
                self._used -= self._entries.pop(task_id).adapter.nbytes
            for task_id, adapter in found.items():
                self._entries[task_id] = _Entry(adapter, fetched=True)
                self._used += adapter.nbytes
            self._make_room()

    def _make_room(self) -> None:
        """Forget the tasks that are unused longest until what is left fits. Holds the lock."""
        for task_id in [task_id for task_id, entry in self._entries.items() if not entry.stays]:
            if self._used <= self._capacity:
                break
            self._used -= self._entries.pop(task_id).adapter.nbytes


def _in_folder(folder: Path) -> Iterator[LoraConfig]:
    """``folder/TASK/model.lora_weights.npy`` and ``model.lora_config.npy``, TASK a number; ``folder/NAME`` as PEFT
    saves adapters."""
    if not folder.is_dir():
        raise CheckError(f"PeftCacheConfig.lora_prefetch_dir: no such folder: {folder}")
    for place in sorted(folder.iterdir()):
        if place.is_dir() and place.name.isdigit():
            weights, config = (_load(place / f"model.lora_{part}.npy") for part in ("weights", "config"))
            yield LoraConfig(int(place.name), weights, config)
        elif (place / PEFT_CONFIG).is_file():
            yield read_peft(place, task_of(place.name))


def task_of(name: str) -> int:
    """The task of the adapter that has a name: beyond the numbers that clients are likely to choose."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) | 1 << 63


def _load(path: Path) -> Any:
    """A two-dimensional array; TensorRT-LLM's converter writes a leading dimension of one."""
    if not path.is_file():
        raise CheckError(f"PeftCacheConfig.lora_prefetch_dir: {path}: File does not exist")
    array = np.load(path, allow_pickle=False)
    return array[0] if array.ndim == 3 else array


def _capacity(config: PeftCacheConfig, shape: LoraShape, itemsize: int) -> int:
    """``num_host_module_layer`` counts modules of rank 1 of the largest kind; else ``host_cache_size`` bytes."""
    if config.num_host_module_layer > 0:
        return config.num_host_module_layer * itemsize * max(sum(size) for size in shape.sites.values())
    return _DEFAULT_BYTES if config.host_cache_size is None else config.host_cache_size
