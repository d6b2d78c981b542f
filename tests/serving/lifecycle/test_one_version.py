"""One version of a model is loaded beside the others, or unloaded; the others serve on."""

import shutil
import threading
from typing import Any

import pytest

from repoagent.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    RepoAgentError,
    UnavailableError,
    UnsupportedError,
)
from repoagent.serving.core import ControlMode, ServingCore
from repoagent.serving.lifecycle.model_slot import ModelSlot
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.versions.served_model import ServedModel
from tests.serving.core_kit import CoreMaker, ModelWriter, RequestMaker, first, in_thread, loads_cancelled


def _served(core: ServingCore, version: int) -> ServedModel:
    return core.find(InferRequest(Asked("m", {}, str(version))))


def _states(core: ServingCore) -> dict[str, str]:
    return {entry["version"]: entry["state"] for entry in core.index() if entry["name"] == "m"}


def _slot(core: ServingCore) -> ModelSlot:
    slot = core._table.get("m")
    assert slot is not None
    return slot


@pytest.fixture
def core(new_core: CoreMaker, write_model: ModelWriter, loader: Any) -> ServingCore:
    """Serves version 3 of ``m``, the latest, of 1 to 3."""
    write_model("m", {1: "1", 2: "2", 3: "3"})
    core = new_core()
    core.load("m")
    del loader.trace[:]
    return core


def test_a_version_is_loaded_beside_what_serves_whatever_the_policy_is(
    core: ServingCore, request_of: RequestMaker, loader: Any
) -> None:
    before = _served(core, 3)
    core.load("m", version=1)
    assert _served(core, 3) is before
    assert [first(core.infer(request_of(model_version=v))) for v in ("1", "3", "")] == [2, 4, 4]
    assert _states(core) == {"1": "READY", "3": "READY"}
    assert loader.trace == ["m2 LOAD", "m1 UNLOAD", "m2 LOAD_COMPLETE", "m1 UNLOAD_COMPLETE"]


def test_a_version_of_a_model_that_is_not_loaded_is_loaded_alone(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("m", {1: "1", 2: "2"})
    core = new_core()
    core.load("m", version=1)
    assert first(core.infer(request_of())) == 2
    assert _states(core) == {"1": "READY"}


def test_a_version_that_is_loaded_and_unchanged_is_not_loaded_again(core: ServingCore, loader: Any) -> None:
    core.load("m", version=3)
    assert loader.trace == []
    core.load("m", version=2)
    core.load("m", version=3)
    assert loader.trace.count("m2 LOAD") == 1
    assert not any(line.startswith("m3") for line in loader.trace)


def test_the_versions_stay_until_a_load_of_the_whole_model(core: ServingCore, write_model: ModelWriter) -> None:
    core.load("m", version=1)
    write_model("m", {4: "4"})
    core.load("m", version=2)
    assert _states(core) == {"1": "READY", "2": "READY", "3": "READY"}
    core.load("m")
    assert [version for version, state in _states(core).items() if state == "READY"] == ["4"]


def test_a_version_whose_files_have_changed_is_replaced_by_the_load_of_another(
    core: ServingCore, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("m", {3: "30"})
    core.load("m", version=1)
    assert first(core.infer(request_of(model_version="3"))) == 31


def test_a_version_that_is_gone_from_the_repository_goes_with_the_load_of_another(
    core: ServingCore, repository: Any
) -> None:
    core.load("m", version=2)
    shutil.rmtree(repository / "m" / "3")
    core.load("m", version=1)
    assert [version for version, state in _states(core).items() if state == "READY"] == ["1", "2"]


@pytest.mark.parametrize("there", [True, False], ids=["that fails", "that does not exist"])
def test_a_version_that_cannot_be_loaded_leaves_the_others_and_the_servers_readiness(
    core: ServingCore, write_model: ModelWriter, request_of: RequestMaker, there: bool
) -> None:
    before = _served(core, 3)
    if there:
        write_model("m", {9: "fail no such luck"})
    with pytest.raises(InvalidArgumentError, match="no such luck" if there else "there is no such version directory"):
        core.load("m", version=9)
    assert _served(core, 3) is before
    assert core.ready()
    (entry,) = (entry for entry in core.index() if entry["version"] == "9")
    assert entry["state"] == "UNAVAILABLE"
    assert ("no such luck" if there else "no such version directory") in entry["reason"]
    with pytest.raises(UnavailableError, match="is not at ready state"):
        core.infer(request_of(model_version="9"))


def test_an_agent_that_refuses_leaves_the_other_versions_and_names_the_reason(
    core: ServingCore, loader: Any, request_of: RequestMaker
) -> None:
    loader.refusal = "not today"
    with pytest.raises(InternalError):
        core.load("m", version=1)
    assert first(core.infer(request_of())) == 4
    assert core.ready()
    assert _states(core) == {"1": "UNAVAILABLE", "3": "READY"}


def test_a_version_is_loading_in_the_index_while_it_is_and_the_server_stays_ready(
    core: ServingCore, scripted: Any, request_of: RequestMaker
) -> None:
    while scripted.loading.acquire(blocking=False):
        pass
    scripted.hold = threading.Event()
    load, _ = in_thread(lambda: core.load("m", version=1))
    assert scripted.loading.acquire(timeout=60)
    assert _states(core) == {"1": "LOADING", "3": "READY"}
    assert core.ready()
    assert first(core.infer(request_of())) == 4
    scripted.hold.set()
    load.join(60)
    assert _states(core) == {"1": "READY", "3": "READY"}


def test_unloading_a_version_calls_no_agent_and_waits_for_its_requests(
    core: ServingCore, scripted: Any, request_of: RequestMaker, loader: Any
) -> None:
    core.load("m", version=1)
    del loader.trace[:]
    runner = next(runner for runner in scripted.runners if not runner.closed and runner.offset == 1)
    runner.hold = threading.Event()
    infer, answers = in_thread(lambda: core.infer(request_of(model_version="1")))
    assert runner.running.acquire(timeout=60)
    core.unload("m", version=1, wait=False)
    assert _states(core) == {"1": "UNLOADING", "3": "READY"}
    with pytest.raises(UnavailableError):
        core.infer(request_of(model_version="1"))
    assert first(core.infer(request_of())) == 4
    unload, _ = in_thread(lambda: core.unload("m", version=1))
    runner.hold.set()
    infer.join(60)
    unload.join(60)
    assert first(answers[0]) == 2  # type: ignore[arg-type]
    assert loader.trace == []
    while not runner.closed:
        pass
    assert core.ready()


def test_the_highest_version_can_go_and_requests_without_one_get_the_next(
    core: ServingCore, request_of: RequestMaker
) -> None:
    core.load("m", version=1)
    core.load("m", version=2)
    core.unload("m", version=3)
    assert first(core.infer(request_of())) == 3
    with pytest.raises(UnavailableError):
        core.infer(request_of(model_version="3"))
    core.load("m", version=3)
    assert first(core.infer(request_of())) == 4


def test_the_last_version_takes_the_model_with_it_through_its_agents(core: ServingCore, loader: Any) -> None:
    core.load("m", version=1)
    core.unload("m", version=3)
    del loader.trace[:]
    core.unload("m", version=1)
    assert loader.trace == ["m2 UNLOAD", "m2 UNLOAD_COMPLETE"]
    assert not core.model_loaded("m")
    assert set(_states(core).values()) == {"UNAVAILABLE"}
    assert core.ready()


def test_a_lease_keeps_the_last_version(core: ServingCore) -> None:
    core.load("m", version=1)
    with core.lease("m"):
        core.unload("m", version=3)
        with pytest.raises(UnavailableError, match="it is leased"):
            core.unload("m", version=1)
        assert _states(core) == {"1": "READY", "3": "UNAVAILABLE"}


def test_unloading_what_is_not_loaded_changes_nothing(core: ServingCore, loader: Any) -> None:
    core.unload("m", version=7)
    core.unload("nothing", version=1)
    assert _states(core) == {"3": "READY"}
    assert loader.trace == []


def test_an_unload_of_a_version_cancels_its_load_and_no_other(core: ServingCore, scripted: Any) -> None:
    while scripted.loading.acquire(blocking=False):
        pass
    scripted.hold = threading.Event()
    first_load, results = in_thread(lambda: core.load("m", version=1))
    assert scripted.loading.acquire(timeout=60)
    second_load, others = in_thread(lambda: core.load("m", version=2))
    while len(_slot(core)._pending) < 2:
        pass
    unload, _ = in_thread(lambda: core.unload("m", version=1))
    while not any(loads_cancelled([_slot(core)])):
        pass
    scripted.hold.set()
    for thread in (first_load, second_load, unload):
        thread.join(60)
    assert isinstance(results[0], CancelledError)
    assert not isinstance(others[0], RepoAgentError)
    assert _states(core) == {"1": "UNAVAILABLE", "2": "READY", "3": "READY"}
    assert core.ready()


def test_an_ensemble_goes_on_with_the_next_version(
    core: ServingCore, write_model: ModelWriter, ensemble_config: Any, request_of: RequestMaker
) -> None:
    core.load("m", version=1)
    write_model("e", {}, ensemble_config(("m", {"x": "x"}, {"y": "y"})))
    core.load("e")
    assert first(core.infer(request_of("e"))) == 4
    core.unload("m", version=3)
    assert first(core.infer(request_of("e"))) == 2
    core.load("m", version=2)
    assert first(core.infer(request_of("e"))) == 3
    core.unload("m", version=1)
    core.unload("m", version=2)
    with pytest.raises(RepoAgentError):
        core.infer(request_of("e"))


def test_the_last_two_versions_unloaded_at_once_take_ensembles_with_them_as_an_unload_does(
    core: ServingCore, write_model: ModelWriter, ensemble_config: Any
) -> None:
    """Neither caller knows that its version will be the last. No ensemble is left with an error."""
    write_model("e", {}, ensemble_config(("m", {"x": "x"}, {"y": "y"})))
    for _ in range(10):
        core.load("m", version=1)
        core.load("m", version=3)
        core.load("e")
        unloads = [in_thread(lambda version=version: core.unload("m", version=version)) for version in (1, 3)]  # type: ignore[misc]
        for thread, results in unloads:
            thread.join(60)
            assert results == [None]
        assert not core.model_loaded("m")
        assert {entry.get("reason") for entry in core.index()} == {"unloaded"}
        assert core.ready()


def test_a_configuration_of_the_callers_own_stays_and_files_of_its_own_are_refused(
    core: ServingCore, request_of: RequestMaker
) -> None:
    core.load("m", config='{"backend": "scripted", "versionPolicy": {"specific": {"versions": [2]}}}')
    core.load("m", version=1)
    assert [version for version, state in _states(core).items() if state == "READY"] == ["1", "2"]
    assert core.model_config("m")["version_policy"] == {"specific": {"versions": [2]}}
    core.load("m", config='{"backend": "scripted"}', files={"1/model.txt": b"7"})
    with pytest.raises(UnsupportedError, match="load it again with all files"):
        core.load("m", version=2)
    assert first(core.infer(request_of())) == 8
    with pytest.raises(InvalidArgumentError, match="one version is loaded from the repository"):
        core.load("m", version=2, config="{}")


@pytest.mark.parametrize("mode", [ControlMode.NONE, ControlMode.POLL])
def test_other_control_modes_refuse(new_core: CoreMaker, write_model: ModelWriter, mode: ControlMode) -> None:
    write_model("m", {1: "1", 2: "2"})
    core = new_core(control_mode=mode)
    with pytest.raises(UnavailableError, match="not allowed if polling is enabled"):
        core.load("m", version=1)
    with pytest.raises(UnavailableError, match="not allowed if polling is enabled"):
        core.unload("m", version=2)
    assert _states(core) == {"2": "READY"}


def test_loads_and_unloads_of_versions_at_once_lose_no_request(core: ServingCore, request_of: RequestMaker) -> None:
    """Version 3 serves throughout; 1 and 2 come and go."""
    ended = threading.Event()
    failures: list[RepoAgentError] = []

    def ask() -> None:
        while not ended.is_set():
            try:
                assert first(core.infer(request_of(model_version="3"))) == 4
            except RepoAgentError as error:
                failures.append(error)
                return

    def change(version: int) -> None:
        for _ in range(10):
            core.load("m", version=version)
            core.unload("m", version=version)

    askers = [threading.Thread(target=ask) for _ in range(2)]
    changers = [in_thread(lambda version=version: change(version)) for version in (1, 2)]  # type: ignore[misc]
    for thread in askers:
        thread.start()
    for thread, results in changers:
        thread.join(120)
        assert results == [None]
    ended.set()
    for thread in askers:
        thread.join(60)
    assert failures == []
    assert _states(core)["3"] == "READY"
