"""A replica by itself: what it does before Ray has a part in it."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray[serve] is not installed: `make ray` installs it")

from repoagent_ray.replica import Replica
from repoagent_ray.settings import Settings
from repoagent_ray.wire import Failure

from deploy.ray.tests.kit import PATIENCE

_REQUESTS = 100


async def test_many_requests_for_one_model_take_one_thread_to_look_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there" / "1").mkdir(parents=True)
    (tmp_path / "there" / "config.pbtxt").write_text('backend: "onnxruntime"')
    monkeypatch.setattr("repoagent_ray.logs.process_name", lambda: "replica")  # which only Ray knows
    replica = Replica(Settings(model_repository=str(tmp_path)))
    core: Any = replica._core
    gate, searched, has_model = threading.Event(), [], core.has_model

    def slowly(name: str) -> Any:
        searched.append(name)
        assert gate.wait(PATIENCE)
        return has_model(name)

    monkeypatch.setattr(type(core), "has_model", lambda _, name: slowly(name))
    try:
        asked = [asyncio.ensure_future(replica.knows("there")) for _ in range(_REQUESTS)]
        await asyncio.sleep(0)  # each has asked
        asked.pop().cancel()
        gate.set()
        assert await asyncio.gather(*asked) == [True] * (_REQUESTS - 1)
        assert searched == ["there"]
        assert await replica.knows("there"), "it is looked for again"
        assert not await replica.knows("not-there")
        assert searched == ["there", "there", "not-there"]
    finally:
        gate.set()
        await replica.__del__()


async def test_only_questions_reach_the_core_of_a_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there" / "1").mkdir(parents=True)
    monkeypatch.setattr("repoagent_ray.logs.process_name", lambda: "replica")
    replica = Replica(Settings(model_repository=str(tmp_path)))
    try:
        assert await replica.ask("ready") is True
        for question in ("load", "unload", "stop", "register_repository", "__init__", "_table"):
            failure = await replica.ask(question, "there")
            assert isinstance(failure, Failure)
            assert f"'{question}' is not a question that a replica answers" in str(failure)
        assert await replica.ask("ready") is True
    finally:
        await replica.__del__()
