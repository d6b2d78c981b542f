import threading
import time
from typing import Any

import pytest

from repoagent.config import ModelConfig
from repoagent.serving.lifecycle.loaded_model import LoadedModel, Retirements


class Served:
    """One version that a test keeps busy."""

    name = "m"
    config = ModelConfig()

    def __init__(self) -> None:
        self.running = 0
        self.left = threading.Event()
        self.closed = False
        self.broken = False

    def retire(self) -> None: ...

    def drain(self, timeout: float | None) -> bool:
        return not self.running or self.left.wait(timeout)

    def close(self) -> None:
        self.closed = True
        if self.broken:
            raise RuntimeError("stuck")


class Chain:
    def __init__(self) -> None:
        self.gone = threading.Event()

    def unload_complete(self) -> None:
        self.gone.set()


@pytest.fixture
def versions() -> dict[int, Served]:
    return {1: Served(), 2: Served()}


@pytest.fixture
def model(versions: dict[int, Any]) -> Any:
    chain: Any = Chain()
    return LoadedModel(chain, versions, "key")


@pytest.fixture
def leaving(model: Any) -> Any:
    return model.without(None)


def test_the_empty_name_is_the_highest_version(model: Any, versions: dict[int, Served]) -> None:
    assert model.by_name == {"1": versions[1], "2": versions[2], "": versions[2]}


def test_an_idle_model_goes_at_once_on_the_same_thread(leaving: Any, model: Any, versions: dict[int, Served]) -> None:
    done: list[int] = []
    finished = Retirements(10).begin(leaving, lambda: done.append(threading.get_ident()))
    assert finished.is_set()
    assert done == [threading.get_ident()]
    assert all(served.closed for served in versions.values())
    assert model.chain.gone.is_set()


def test_a_busy_model_is_waited_for_elsewhere(leaving: Any, model: Any, versions: dict[int, Served]) -> None:
    retirements, done = Retirements(10), threading.Event()
    versions[1].running = 1
    finished = retirements.begin(leaving, done.set)
    assert not finished.is_set()
    assert not retirements.wait(time.monotonic())
    versions[1].left.set()
    assert finished.wait(60)
    assert retirements.wait(time.monotonic() + 60)
    assert done.is_set()
    assert versions[1].closed


def test_a_model_that_stays_busy_goes_after_the_limit(
    leaving: Any, model: Any, versions: dict[int, Served], caplog: pytest.LogCaptureFixture
) -> None:
    versions[1].running = 3
    assert Retirements(0.01).begin(leaving).wait(60)
    assert "with 3 requests still running" in caplog.text
    assert model.chain.gone.is_set()


def test_a_version_that_cannot_be_closed_does_not_keep_the_others(
    leaving: Any, model: Any, versions: dict[int, Served], caplog: pytest.LogCaptureFixture
) -> None:
    versions[1].broken = True
    Retirements(1).begin(leaving)
    assert versions[2].closed
    assert model.chain.gone.is_set()
    assert "closing model 'm' version 1 failed" in caplog.text
