"""What a lease of a model holds off, and what not."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import UnavailableError
from repoagent.serving.assembly import ControlMode
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import InferRequest
from tests.serving.core_kit import first

CoreMaker = Callable[..., ServingCore]
ModelWriter = Callable[..., Path]
RequestMaker = Callable[..., InferRequest]


def ready(core: ServingCore) -> list[str]:
    return [entry["name"] for entry in core.index(ready_only=True)]


# -- leases ------------------------------------------------------------------------------------------------------------


def test_a_lease_loads_the_model_and_keeps_it_until_it_is_given_back(
    new_core: CoreMaker, write_model: ModelWriter
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    with core.lease("m"):
        assert ready(core) == ["m"]
        with core.lease("m"), pytest.raises(UnavailableError) as caught:
            core.unload("m")
        assert str(caught.value) == (
            "failed to unload 'm': it is leased by 2 holder(s); unload it when they have let go of it"
        )
        with pytest.raises(UnavailableError, match="leased by 1 holder"):
            core.unload("m")
    assert ready(core) == ["m"]
    core.unload("m")
    assert ready(core) == []


def test_a_lease_is_given_back_by_an_exception_too(new_core: CoreMaker, write_model: ModelWriter) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    with pytest.raises(ValueError, match="mine"), core.lease("m"):
        raise ValueError("mine")
    core.unload("m")


def test_a_leased_model_can_be_reloaded(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    with core.lease("m"):
        write_model("m", {1: "5"})
        core.load("m")
        assert first(core.infer(request_of("m"))) == 6
        with pytest.raises(UnavailableError):
            core.unload("m")


def test_a_lease_of_an_ensemble_keeps_its_members(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Callable[..., str]
) -> None:
    write_model("a", {1: "1"})
    write_model("e", {}, ensemble_config(("a", {"x": "x"}, {"y": "y"})))
    core = new_core()
    with core.lease("e"):
        with pytest.raises(UnavailableError, match="failed to unload 'e': it is leased"):
            core.unload("a")
        assert ready(core) == ["a", "e"]


def test_an_unload_that_was_queued_before_the_lease_began_does_not_take_the_model(
    new_core: CoreMaker, write_model: ModelWriter, scripted: Any
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m")
    slot = core._table.get("m")
    assert slot is not None
    hold, begun = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        hold.wait(60)

    slot._queue.submit(block)
    assert begun.wait(60)
    unload = slot.unload()
    with core.lease("m"):
        hold.set()
        with pytest.raises(UnavailableError):
            unload.result(60)
        assert ready(core) == ["m"]


def test_a_lease_does_not_stop_the_server_from_stopping(new_core: CoreMaker, write_model: ModelWriter) -> None:
    write_model("m", {1: "1"})
    core = new_core(control_mode=ControlMode.NONE)
    with core.lease("m"):
        core.stop()
    with pytest.raises(UnavailableError), core.lease("m"):
        pass
