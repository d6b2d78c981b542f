"""The cache of adapters: by task id, bounded in bytes, what is in use stays."""

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm import LoraConfig, PeftCacheConfig
from repoagent_llm.lora.cache import AdapterCache, LoraAdapter, read_adapter
from repoagent_llm.runner.protocol import LoraShape

SHAPE = LoraShape(1, 2, {"layers.0.attention_out": (4, 4)})
ONE = 4 * 8  # bytes of an adapter of rank 1


def _config(task_id: int, value: float = 1.0) -> LoraConfig:
    return LoraConfig(task_id, np.full((1, 8), value, np.float32), np.array([[4, 0, 1]], np.int32))


def _cache(adapters: int) -> AdapterCache:
    return AdapterCache(PeftCacheConfig(host_cache_size=adapters * ONE), SHAPE, "float32")


def test_the_second_request_needs_the_id_only_and_the_first_weights_stay() -> None:
    cache = _cache(2)
    first = cache.lease(_config(1))
    assert cache.lease(LoraConfig(1)).adapter is first.adapter
    assert cache.lease(_config(1, 2.0)).adapter is first.adapter
    assert cache.nbytes == ONE


def test_the_task_unused_longest_goes_and_then_is_unknown() -> None:
    cache = _cache(2)
    for task_id in (1, 2, 1, 3):
        cache.lease(_config(task_id)).release()
    assert [task_id in cache for task_id in (1, 2, 3)] == [True, False, True]
    assert cache.nbytes == 2 * ONE
    with pytest.raises(RuntimeError, match=r"^LoRA task 2 not found in cache\. Please send LoRA weights with request$"):
        cache.lease(LoraConfig(2))


def test_tasks_in_use_are_not_forgotten() -> None:
    cache = _cache(2)
    leases = [cache.lease(_config(1)), cache.lease(_config(1)), cache.lease(_config(2))]
    leases[0].release()
    leases[0].release()  # the second time means nothing
    with pytest.raises(RuntimeError, match=r"PEFT Cache is full\. Could not store taskId=3"):
        cache.lease(_config(3))
    leases[1].release()
    cache.lease(_config(3))
    assert [task_id in cache for task_id in (1, 2, 3)] == [False, True, True]


def test_an_adapter_that_cannot_be_kept_makes_no_other_one_go() -> None:
    cache = _cache(2)
    for task_id in (1, 2):
        cache.lease(_config(task_id)).release()
    with pytest.raises(RuntimeError, match=r"Could not store taskId=3: it needs 96 bytes, 0 of 64 are held"):
        cache.lease(LoraConfig(3, np.ones((1, 24), np.float32), np.array([[4, 0, 3]], np.int32)))
    assert [task_id in cache for task_id in (1, 2, 3)] == [True, True, False]


def test_leases_come_back_while_an_adapter_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = _cache(2)
    lease = cache.lease(_config(1))

    def slowly(*arguments: Any, **named: Any) -> LoraAdapter:
        thread = threading.Thread(target=lease.release)
        thread.start()
        thread.join(60)
        assert cache.in_use == 0
        return read_adapter(*arguments, **named)

    monkeypatch.setattr("repoagent_llm.lora.cache.read_adapter", slowly)
    cache.lease(_config(2))
    assert cache.in_use == 1


def test_bad_weights_leave_nothing_behind() -> None:
    cache = _cache(2)
    with pytest.raises(RuntimeError, match="to few values"):
        cache.lease(LoraConfig(1, np.ones((1, 3), np.float32), np.array([[4, 0, 1]], np.int32)))
    with pytest.raises(RuntimeError, match="must have both lora_weights and lora_keys"):
        cache.lease(LoraConfig(1, None, np.array([[4, 0, 1]], np.int32)))
    assert 1 not in cache
    assert cache.nbytes == 0


def test_room_can_be_given_in_modules_of_rank_one() -> None:
    cache = AdapterCache(PeftCacheConfig(num_host_module_layer=1), SHAPE, "float32")
    cache.lease(_config(1)).release()
    cache.lease(_config(2)).release()
    assert 1 not in cache


def test_adapters_are_fetched_from_a_folder_beforehand(tmp_path: Path) -> None:
    for name, shape in (("4", (1, 1, 8)), ("15", (1, 8)), ("notes", (1, 8))):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "model.lora_weights.npy", np.ones(shape, np.float32))
        keys = np.array([4, 0, 1], np.int32)
        np.save(tmp_path / name / "model.lora_config.npy", keys.reshape((*shape[:-1], 3)))
    cache = AdapterCache(PeftCacheConfig(lora_prefetch_dir=str(tmp_path)), SHAPE, "float32")
    assert 4 in cache
    assert 15 in cache
    assert cache.nbytes == 2 * ONE
    (tmp_path / "15" / "model.lora_config.npy").unlink()
    with pytest.raises(RuntimeError, match=r"model\.lora_config\.npy: File does not exist"):
        AdapterCache(PeftCacheConfig(lora_prefetch_dir=str(tmp_path)), SHAPE, "float32")
    with pytest.raises(RuntimeError, match="no such folder"):
        AdapterCache(PeftCacheConfig(lora_prefetch_dir=str(tmp_path / "gone")), SHAPE, "float32")


def _fetched(folder: Path, **tasks: float) -> Path:
    """A folder with adapters of these task numbers, as ``t4=1.0``, and values."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, value in tasks.items():
        (folder / name[1:]).mkdir(parents=True)
        np.save(folder / name[1:] / "model.lora_weights.npy", np.full((1, 8), value, np.float32))
        np.save(folder / name[1:] / "model.lora_config.npy", np.array([[4, 0, 1]], np.int32))
    return folder


def test_adapters_are_read_again_and_requests_keep_theirs(tmp_path: Path) -> None:
    folder = _fetched(tmp_path / "all", t1=1.0, t2=1.0)
    config = PeftCacheConfig(lora_prefetch_dir=str(folder), host_cache_size=3 * ONE)
    cache = AdapterCache(config, SHAPE, "float32")
    before = cache.lease(LoraConfig(1))
    cache.lease(_config(9)).release()
    take = cache.renew(_fetched(folder, t1=2.0, t3=2.0))
    assert cache.lease(LoraConfig(1)).adapter is before.adapter  # Nothing has changed yet.
    take()
    after = cache.lease(LoraConfig(1))
    assert after.adapter.digest != before.adapter.digest
    assert [task_id in cache for task_id in (1, 2, 3, 9)] == [True, False, True, True]
    assert (cache.nbytes, cache.in_use) == (3 * ONE, 1)
    before.release()
    after.release()
    assert cache.in_use == 0
    cache.lease(_config(8)).release()  # Those of the operator stay.
    assert [task_id in cache for task_id in (1, 3, 8, 9)] == [True, True, True, False]


def test_adapters_that_do_not_fit_leave_the_ones_before(tmp_path: Path) -> None:
    folder = _fetched(tmp_path / "all", t1=1.0)
    cache = AdapterCache(PeftCacheConfig(lora_prefetch_dir=str(folder), host_cache_size=ONE), SHAPE, "float32")
    with pytest.raises(RuntimeError, match=r"PEFT Cache is full\. The adapters of all/ need 64 of 32 bytes"):
        cache.renew(_fetched(folder, t1=2.0, t2=2.0))
    assert (1 in cache, 2 in cache, cache.nbytes) == (True, False, ONE)
