"""Models that are loaded by requests and leases, and make room for each other."""

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from repoagent.serving.assembly import ControlMode
from repoagent.serving.core import ServingCore
from repoagent.serving.lifecycle.on_demand import OnDemand
from repoagent.serving.requests.request import InferRequest
from tests.serving.core_kit import Answers, loads_cancelled

CoreMaker = Callable[..., ServingCore]
ModelWriter = Callable[..., Path]
RequestMaker = Callable[..., InferRequest]

# Every scripted model has a configuration of 19 bytes ('backend: "scripted"') and one version file.
SIZE = 20


def ready(core: ServingCore) -> list[str]:
    return [entry["name"] for entry in core.index(ready_only=True)]


@pytest.fixture
def models(write_model: ModelWriter) -> None:
    for number, name in enumerate("abc"):
        write_model(name, {1: str(number)})


def use(core: ServingCore, request_of: RequestMaker, name: str) -> float:
    return float(core.infer(request_of(name)).outputs["y"].array[0, 0])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at a clock is a second after the one before, so that the order of uses is sure. There are two clocks:
    when a request ended is known by one, and said by the other."""
    ticks = itertools.count(1)
    for clock in ("time.time_ns", "time.monotonic_ns"):
        monkeypatch.setattr(clock, lambda: next(ticks) * 1_000_000_000)


@pytest.mark.usefixtures("models")
def test_a_request_loads_its_model(new_core: CoreMaker, request_of: RequestMaker) -> None:
    core = new_core(on_demand=True)
    assert ready(core) == []
    assert use(core, request_of, "b") == 2
    assert ready(core) == ["b"]


@pytest.mark.usefixtures("models")
def test_a_submitted_request_loads_its_model_without_blocking(
    new_core: CoreMaker, request_of: RequestMaker, loader: Any
) -> None:
    core = new_core(on_demand=True)
    loader.hold = threading.Event()
    answers = [Answers() for _ in range(3)]
    for answer in answers:
        request = request_of("c", sender=answer)
        core.check(request)
        assert core.infer_here(request, patient=True) is None
        core.submit(request)
    assert not any(answer.complete.is_set() for answer in answers)
    loader.hold.set()
    assert [float(answer.response.outputs["y"].array[0, 0]) for answer in answers] == [3, 3, 3]
    assert loader.trace.count("c1 LOAD") == 1


@pytest.mark.usefixtures("models")
def test_nothing_is_loaded_by_requests_unless_the_options_say_so(new_core: CoreMaker, request_of: RequestMaker) -> None:
    core = new_core()
    with pytest.raises(NotFoundError, match="Request for unknown model: 'a' is not found"):
        core.infer(request_of("a"))
    answer = Answers()
    core.submit(request_of("a", sender=answer))
    assert isinstance(answer.response.error, NotFoundError)
    with pytest.raises(UnsupportedError, match="--model-load-on-demand is off"):
        core.load_on_demand("a")  # As a worker process asks for it.


@pytest.mark.usefixtures("models")
def test_a_model_that_no_repository_has_stays_unknown(new_core: CoreMaker, request_of: RequestMaker) -> None:
    core = new_core(on_demand=True)
    for call in (core.infer, core.check, lambda request: core.infer_here(request, patient=True)):
        with pytest.raises(NotFoundError, match="Request for unknown model: 'none' is not found"):
            call(request_of("none"))
    with pytest.raises(NotFoundError, match="version 7 is not found"):
        core.infer(request_of("a", model_version="7"))


def test_a_load_that_failed_is_tried_again_only_when_the_files_change(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, loader: Any
) -> None:
    write_model("a", {1: "0"})
    core = new_core(on_demand=True)
    loader.refusal = "no"
    with pytest.raises(InternalError, match="no"):
        core.infer(request_of("a"))
    for _ in range(3):
        with pytest.raises(UnavailableError, match=r"no.* .not tried again before its files change."):
            core.infer(request_of("a"))
    answer = Answers()
    core.submit(request_of("a", sender=answer))
    assert isinstance(answer.response.error, UnavailableError)
    assert loader.trace.count("a1 LOAD") == 1
    assert "a2 LOAD" not in loader.trace

    loader.refusal = None
    write_model("a", {1: "4.5"})
    assert use(core, request_of, "a") == 5.5


@pytest.mark.usefixtures("models", "clock")
def test_the_model_used_least_lately_makes_room(new_core: CoreMaker, request_of: RequestMaker) -> None:
    core = new_core(on_demand=True, memory_budget_bytes=2 * SIZE)
    for name in "aba":
        use(core, request_of, name)
    use(core, request_of, "c")
    assert ready(core) == ["a", "c"]
    use(core, request_of, "b")
    assert ready(core) == ["b", "c"]


@pytest.mark.usefixtures("models", "clock")
def test_a_leased_model_stays(new_core: CoreMaker, request_of: RequestMaker) -> None:
    core = new_core(on_demand=True, memory_budget_bytes=2 * SIZE)
    with core.lease("a"), core.lease("a"):
        assert ready(core) == ["a"]
        for name in "bcb":
            use(core, request_of, name)
        assert ready(core) == ["a", "b"]
        with core.lease("b"), pytest.raises(UnavailableError, match=f"no room for model 'c' .{SIZE} bytes."):
            core.infer(request_of("c"))
    use(core, request_of, "c")
    assert ready(core) == ["b", "c"]


@pytest.mark.usefixtures("models", "clock")
def test_what_was_loaded_explicitly_neither_counts_nor_goes(new_core: CoreMaker, request_of: RequestMaker) -> None:
    core = new_core(on_demand=True, memory_budget_bytes=SIZE, startup_models=("a",))
    use(core, request_of, "b")
    core.load("b")
    use(core, request_of, "c")
    assert ready(core) == ["a", "b", "c"]
    core.unload("b")
    use(core, request_of, "b")
    assert ready(core) == ["a", "b"]


def test_a_model_larger_than_the_budget_is_refused(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("a", {1: "0"})
    core = new_core(on_demand=True, memory_budget_bytes=SIZE - 1)
    with pytest.raises(
        UnavailableError, match=f"files of {SIZE} bytes, more than the whole memory budget of {SIZE - 1}"
    ):
        core.infer(request_of("a"))


@pytest.mark.usefixtures("models")
def test_a_lease_loads_also_where_requests_do_not(new_core: CoreMaker) -> None:
    core = new_core()
    with core.lease("a"):
        assert ready(core) == ["a"]
    assert ready(core) == ["a"]
    with pytest.raises(NotFoundError), core.lease("none"):
        pass


@pytest.mark.usefixtures("models")
def test_models_come_on_demand_in_explicit_mode_only(new_core: CoreMaker) -> None:
    with pytest.raises(InvalidArgumentError, match="only if the model control mode is EXPLICIT"):
        new_core(on_demand=True, control_mode=ControlMode.NONE)
    core = new_core(control_mode=ControlMode.NONE)
    with core.lease("a"):
        pass
    with pytest.raises(UnavailableError):
        core.lease("none")


@pytest.mark.usefixtures("models")
def test_many_threads_share_one_load_and_a_small_budget(new_core: CoreMaker, request_of: RequestMaker) -> None:
    core = new_core(on_demand=True, memory_budget_bytes=3 * SIZE)
    wrong: list[object] = []

    def work(offset: int) -> None:
        for number in range(30):
            name = "abc"[(offset + number) % 3]
            if use(core, request_of, name) != "abc".index(name) + 1:
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert ready(core) == ["a", "b", "c"]


@pytest.mark.usefixtures("models")
def test_the_end_of_the_server_ends_a_load_on_demand(
    new_core: CoreMaker, request_of: RequestMaker, loader: Any
) -> None:
    core = new_core(on_demand=True)
    loader.hold = threading.Event()
    answer = Answers()
    core.submit(request_of("a", sender=answer))
    assert loader.entered.acquire(timeout=60)
    stopping = threading.Thread(target=core.stop)
    stopping.start()
    while not any(loads_cancelled(core._table.slots())):
        threading.Event().wait(0.001)
    loader.hold.set()
    stopping.join(60)
    assert answer.response.error is not None


@pytest.mark.usefixtures("models")
def test_a_load_that_somebody_cancelled_is_tried_again(
    new_core: CoreMaker, request_of: RequestMaker, loader: Any
) -> None:
    core = new_core(on_demand=True)
    loader.hold = threading.Event()
    answer = Answers()
    core.submit(request_of("a", sender=answer))
    assert loader.entered.acquire(timeout=60)
    slot = core._table.get("a")
    assert slot is not None
    slot.cancel()  # As an unload does first.
    loader.hold.set()
    assert isinstance(answer.response.error, CancelledError)
    assert use(core, request_of, "a") == 1


@pytest.mark.usefixtures("models", "clock")
def test_a_request_during_an_explicit_load_does_not_make_the_model_one_that_may_go(
    new_core: CoreMaker, request_of: RequestMaker, loader: Any
) -> None:
    core = new_core(on_demand=True, memory_budget_bytes=SIZE)
    loader.hold = threading.Event()
    loading = threading.Thread(target=core.load, args=("a",))
    loading.start()
    assert loader.entered.acquire(timeout=60)
    answer = Answers()
    core.submit(request_of("a", sender=answer))
    loader.hold.set()
    loading.join(60)
    assert answer.response.error is None
    use(core, request_of, "b")
    assert ready(core) == ["a", "b"]


@pytest.mark.usefixtures("models", "clock")
def test_members_that_came_with_an_ensemble_count_and_go_after_it(
    new_core: CoreMaker, request_of: RequestMaker, write_model: ModelWriter, ensemble_config: Callable[..., str]
) -> None:
    steps = [("a", {"x": "x"}, {"y": "mid"}), ("b", {"x": "mid"}, {"y": "y"})]
    config = ensemble_config(*steps)
    write_model("pair", {}, config)
    core = new_core(on_demand=True, memory_budget_bytes=len(config) + 3 * SIZE)
    use(core, request_of, "pair")
    assert ready(core) == ["a", "b", "pair"]
    use(core, request_of, "c")
    assert ready(core) == ["a", "b", "c", "pair"]
    write_model("d", {1: "3"}, 'backend: "scripted"' + " " * (len(config) + 2 * SIZE))
    use(core, request_of, "d")
    assert ready(core) == ["d"]


@pytest.mark.usefixtures("models", "clock")
def test_a_model_without_requests_goes_and_comes_back(new_core: CoreMaker, request_of: RequestMaker) -> None:
    core = new_core(on_demand=True, unload_idle_seconds=1_000_000, startup_models=("c",))
    for name in "aba":
        use(core, request_of, name)
    core._demand.unload_idle(1_000)
    assert ready(core) == ["a", "b", "c"]
    core._demand.unload_idle(0)
    assert ready(core) == ["c"], "a model that was loaded by name stays"
    assert use(core, request_of, "a") == 1
    with core.lease("b"):
        core._demand.unload_idle(0)
        assert ready(core) == ["b", "c"]


@pytest.mark.usefixtures("models")
def test_idle_models_are_looked_for_while_the_server_runs(
    new_core: CoreMaker, request_of: RequestMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, look = threading.Event(), OnDemand.unload_idle

    def looked(demand: OnDemand, seconds: float) -> None:
        look(demand, seconds)
        if used.is_set() and not ready(core):
            gone.set()

    used = threading.Event()
    monkeypatch.setattr(OnDemand, "unload_idle", looked)
    core = new_core(on_demand=True, unload_idle_seconds=0.01)
    assert use(core, request_of, "a") == 1
    used.set()
    assert gone.wait(60)


def test_idle_models_go_only_where_requests_bring_them_back(new_core: CoreMaker) -> None:
    with pytest.raises(InvalidArgumentError, match="only if models are loaded on demand"):
        new_core(unload_idle_seconds=1)
