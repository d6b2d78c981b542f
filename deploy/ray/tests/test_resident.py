"""A model that keeps sequences, in a replica that is one of several: each of its requests is refused."""

import asyncio
import gc
import weakref
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray[serve] is not installed: `make ray` installs it")

from repoagent_ray.replica import Replica
from repoagent_ray.settings import Settings

from repoagent.errors import UnsupportedError

_CONFIG = """
backend: "identity" max_batch_size: 1 sequence_batching { }
input { name: "INPUT0" data_type: TYPE_FP32 dims: [1] } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }
"""


class _Body:
    """What a request brings along."""


async def test_requests_that_are_refused_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keeps" / "1").mkdir(parents=True)
    (tmp_path / "keeps" / "config.pbtxt").write_text(_CONFIG)
    monkeypatch.setattr("repoagent_ray.logs.process_name", lambda: "replica")  # which only Ray knows
    replica = Replica(Settings(model_repository=str(tmp_path), max_replicas=2))
    resident, left = replica.place("keeps"), []

    async def ask() -> None:
        body = _Body()
        left.append(weakref.ref(body))
        with pytest.raises(UnsupportedError, match="sequence_batching"):
            async with resident.use():
                raise AssertionError("it is let in")

    try:
        await asyncio.create_task(ask())  # loads the model, on a thread that may still have the error
        left.clear()
        for _ in range(3):
            await asyncio.create_task(ask())
        gc.collect()
        assert [body() for body in left] == [None] * 3
    finally:
        await replica.__del__()
