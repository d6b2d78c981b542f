"""AdapterCache: adapters by task id, within a number of bytes."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from repoagent_llm.lora.adapter import LoraAdapter, read_adapter
from repoagent_llm.runner.protocol import LoraShape
from repoagent_llm.types.adapters import LoraConfig
from repoagent_llm.types.cache_config import PeftCacheConfig
from repoagent_llm.types.errors import CheckError

__all__ = ["AdapterCache", "AdapterLease"]

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

    def __init__(self, cache: "AdapterCache", adapter: LoraAdapter) -> None:
        self.adapter = adapter
        self._cache: AdapterCache | None = cache

    def release(self) -> None:
        """The request is done. May be called twice."""
        cache, self._cache = self._cache, None
        if cache is not None:
            cache.release(self.adapter.task_id)


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
            self._prefetch(Path(config.lora_prefetch_dir))

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
            return AdapterLease(self, entry.adapter)

    def release(self, task_id: int) -> None:
        """One request less uses the task."""
        with self._lock:
            self._entries[task_id].users -= 1

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
        while self._used + adapter.nbytes > self._capacity:
            unused = next(known for known, entry in self._entries.items() if not entry.stays)
            self._used -= self._entries.pop(unused).adapter.nbytes
        self._used += adapter.nbytes
        entry = self._entries[task_id] = _Entry(adapter)
        return entry

    def _prefetch(self, folder: Path) -> None:
        """``folder/TASK/model.lora_weights.npy`` and ``model.lora_config.npy``, TASK a number."""
        if not folder.is_dir():
            raise CheckError(f"PeftCacheConfig.lora_prefetch_dir: no such folder: {folder}")
        for place in sorted(folder.iterdir()):
            if place.is_dir() and place.name.isdigit():
                weights, config = (_load(place / f"model.lora_{part}.npy") for part in ("weights", "config"))
                self.lease(LoraConfig(int(place.name), weights, config)).release()
                self._entries[int(place.name)].fetched = True


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
