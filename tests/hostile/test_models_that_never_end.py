"""T17: nothing that an owner or a client can cause runs without an end, or keeps others from the threads for loads."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from repoagent.errors import CancelledError, RepoAgentError, UnavailableError
from repoagent.limits import Limits
from repoagent.onnx_files import trial_opening
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.senders import CollectingSender
from repoagent.serving.requests.tensor import DataType, Tensor
from tests.hostile.conftest import NewCore
from tests.onnx_models import make_model
from tests.serving.core_kit import in_thread
from tests.waiting import until

FOR_EVER = 2**62
ROUNDS = ("rounds", TensorProto.INT64, [1])
WARM_UP = """
model_warmup { name: "w" inputs { key: "rounds" value { data_type: TYPE_INT64 dims: [1] input_data_file: "rounds" } } }
"""
PATIENCE = 60.0
UNTRIED = Limits(open_seconds=0)
"""For tests of what comes after a model was opened: no process opens it first."""


def looping(outputs: int = 1) -> Any:
    """Adds one to y as often as ``rounds`` says; ``outputs`` numbers of it."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Add", ["a", "one"], ["b"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, [outputs]),
        ],
        [
            helper.make_tensor_value_info("c2", TensorProto.BOOL, []),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, [outputs]),
        ],
    )
    weights = [
        helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
        helper.make_tensor("one", TensorProto.FLOAT, [outputs], [1.0] * outputs),
    ]
    nodes = [
        helper.make_node("Squeeze", ["rounds"], ["n"]),
        helper.make_node("Loop", ["n", "yes", "one"], ["y"], body=body),
    ]
    return make_model(nodes, [ROUNDS], [("y", TensorProto.FLOAT, [outputs])], weights)


def folding(products: int = 4000, size: int = 1500) -> Any:
    """A large product of constants, which ONNX Runtime computes when it opens the model: for hours."""
    nodes = [helper.make_node("ConstantOfShape", ["shape"], ["p0"])]
    nodes += [helper.make_node("MatMul", [f"p{i}", "p0"], [f"p{i + 1}"]) for i in range(products)]
    nodes.append(helper.make_node("ReduceMax", [f"p{products}"], ["m"], keepdims=0))
    nodes.append(helper.make_node("Cast", ["rounds"], ["r"], to=TensorProto.FLOAT))
    nodes.append(helper.make_node("Add", ["r", "m"], ["y"]))
    weights = [helper.make_tensor("shape", TensorProto.INT64, [2], [size, size])]
    return make_model(nodes, [ROUNDS], [("y", TensorProto.FLOAT, [1])], weights)


@pytest.fixture
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this process may be left with what goes on opening a model, and takes memory for it; it ends soon.

    There nothing bounds what opening computes, which stands for what has no bound yet.

    Elsewhere the test is run in such a process, and has nothing more to do.
    """
    if os.environ.get("REPOAGENT_TEST_ALONE"):
        monkeypatch.setattr(trial_opening, "bound_folding", lambda options, graph, name: None)
        return True
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", request.node.nodeid],
        cwd=request.config.rootpath,
        env=environment | {"REPOAGENT_TEST_ALONE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "1 passed" in done.stdout, done.stdout
    return False


@pytest.fixture
def write(repository: Path) -> Callable[..., None]:
    def make(name: str, model: Any = None, config: str = "max_batch_size: 0", rounds: int = FOR_EVER) -> None:
        directory = repository / name / "1"
        directory.mkdir(parents=True)
        (directory / "model.onnx").write_bytes((model or looping()).SerializeToString())
        (repository / name / "warmup").mkdir()
        (repository / name / "warmup" / "rounds").write_bytes(np.array([rounds]).tobytes())
        (repository / name / "config.pbtxt").write_text('backend: "onnxruntime" ' + config)

    return make


def asking(model: str, rounds: int = FOR_EVER, **more: Any) -> InferRequest:
    tensor = Tensor(DataType.INT64, np.array([rounds]))
    return InferRequest(Asked(model, {"rounds": tensor}), **more)


@pytest.mark.parametrize("native", ["warm-up", "open"])
def test_four_endless_loads_leave_room_for_a_good_one_and_a_stop_ends_them(
    new_core: NewCore, write: Callable[..., None], native: str, request: pytest.FixtureRequest
) -> None:
    if native == "open" and not request.getfixturevalue("alone"):
        return
    core = new_core(limits=Limits(load_thread_seconds=1), load_threads=4)
    for number in range(4):
        write(f"endless-{number}", folding() if native == "open" else None, WARM_UP)
    write("good")
    threads = [in_thread(lambda name=f"endless-{number}": core.load(name))[0] for number in range(4)]  # type: ignore[misc]
    until(lambda: sum(entry["state"] == "LOADING" for entry in core.index() if "state" in entry) == 4)
    core.load("good")
    response = core.infer(asking("good", 3))
    assert response.outputs["y"].array[0] == 4.0
    core.stop()  # raises if the exit timeout was not enough
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_warm_up_that_takes_too_long_fails_the_load_and_says_which_flag(
    new_core: NewCore, write: Callable[..., None]
) -> None:
    core = new_core(limits=Limits(warmup_seconds=1))
    write("endless", config=WARM_UP)
    with pytest.raises(RepoAgentError, match=r"sample 'w': it took longer than 1 seconds \(--limit-warmup-seconds\)"):
        core.load("endless")


@pytest.mark.parametrize("native", ["warm-up", "open"])
def test_an_unload_ends_a_load_that_does_not_end(
    new_core: NewCore, write: Callable[..., None], native: str, request: pytest.FixtureRequest
) -> None:
    if native == "open" and not request.getfixturevalue("alone"):
        return
    core = new_core()
    write("endless", folding() if native == "open" else None, WARM_UP)
    thread, results = in_thread(lambda: core.load("endless"))
    until(lambda: any(entry.get("state") == "LOADING" for entry in core.index()))
    core.unload("endless")
    thread.join(PATIENCE)
    assert isinstance(results[0], CancelledError)


def test_cancelled_loads_of_a_model_do_not_pile_up(
    new_core: NewCore, write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Semaphore(0), threading.Event()
    threads: list[threading.Thread] = []

    def unhearing(*arguments: Any, **options: Any) -> Any:
        """Native code that ends when it wants to."""
        threads.append(threading.current_thread())
        begun.release()
        assert ended.wait(PATIENCE)
        return session(*arguments, **options)

    core = new_core(limits=UNTRIED)
    write("piled")
    write("good")
    session = onnxruntime.InferenceSession
    with monkeypatch.context() as patch:
        patch.setattr(onnxruntime, "InferenceSession", unhearing)
        for _ in range(2):
            loading, results = in_thread(lambda: core.load("piled"))
            assert begun.acquire(timeout=PATIENCE)
            core.unload("piled")
            loading.join(PATIENCE)
            assert isinstance(results[0], CancelledError)
        with pytest.raises(RepoAgentError, match="2 loads of model 'piled' that were cancelled have not ended"):
            core.load("piled")
    core.load("good")
    ended.set()
    for thread in threads:
        thread.join(PATIENCE)
    core.load("piled")


@pytest.mark.parametrize(
    "config",
    [
        "max_batch_size: 0",
        "instance_group { count: 2 }",
        "instance_group { rate_limiter { priority: 1 } }",
        "parameters { key: 'execution_mode' value { string_value: '1' } }",
    ],
)
@pytest.mark.parametrize("size", [1, 1 << 16])
@pytest.mark.parametrize("end", ["cancel", "unload", "stop"])
def test_a_run_without_an_end_is_ended(
    new_core: NewCore, write: Callable[..., None], config: str, size: int, end: str
) -> None:
    core = new_core(drain_timeout_seconds=0.2, exit_timeout_seconds=8, limits=UNTRIED)
    write("endless", looping(size), config)
    core.load("endless")
    for _ in range(50):  # however quick it has been
        core.infer(asking("endless", 1))
    assert core.infer_here(asking("endless", 1), False) is None, "an event loop would execute it"
    place = np.zeros(size, np.float32)
    places = {"y": _Place(place)} if size > 1 else None
    collector = CollectingSender()
    sent = asking("endless", sender=collector, output_places=places)
    core.submit(sent)
    until(lambda: sent.on_cancel is not None and core.statistics("endless")["model_stats"][0]["inference_count"] >= 50)
    if end == "cancel":
        sent.cancel()
    else:
        core.unload("endless") if end == "unload" else core.stop()
    with pytest.raises(CancelledError if end == "cancel" else UnavailableError):
        collector.result("endless")
    if end == "cancel":
        assert core.infer(asking("endless", 1)).outputs["y"].array[0] == 2.0, "the next run has an end of its own"


class _Place:
    def __init__(self, array: Any) -> None:
        self._array = array

    def room(self, byte_size: int) -> memoryview:
        return memoryview(self._array).cast("B")[:byte_size]


def test_a_batch_goes_on_for_those_that_have_not_been_cancelled(new_core: NewCore, write: Callable[..., None]) -> None:
    core = new_core(limits=UNTRIED)
    write("endless", config="max_batch_size: 0")
    core.load("endless")
    first, second = asking("endless"), asking("endless", 5)
    core.submit(first)
    collector = CollectingSender()
    second.redirect(collector)
    core.submit(second)
    until(lambda: first.on_cancel is not None)
    first.cancel()
    assert collector.result("endless").outputs["y"].array[0] == 6.0


def test_a_model_that_folds_for_hours_is_opened_at_once_and_its_runs_can_be_ended(
    new_core: NewCore, write: Callable[..., None]
) -> None:
    core = new_core(drain_timeout_seconds=0.2)
    write("folding", folding())
    core.load("folding")
    collector = CollectingSender()
    sent = asking("folding", sender=collector)
    core.submit(sent)
    until(lambda: sent.on_cancel is not None)
    sent.cancel()
    with pytest.raises(CancelledError):
        collector.result("folding")


def ranged() -> Any:
    """As many numbers as ``rounds`` says."""
    weights = [helper.make_tensor(name, TensorProto.INT64, [], [value]) for name, value in (("zero", 0), ("one", 1))]
    nodes = [helper.make_node("Squeeze", ["rounds"], ["n"]), helper.make_node("Range", ["zero", "n", "one"], ["y"])]
    return make_model(nodes, [ROUNDS], [("y", TensorProto.INT64, [-1])], weights)


def test_what_values_make_large_never_runs_on_the_thread_that_submits(
    new_core: NewCore, write: Callable[..., None]
) -> None:
    """However quick it was: the next value may take any time, and that thread may be an event loop."""
    core = new_core(limits=UNTRIED)
    write("ranged", ranged())
    core.load("ranged")
    answering = set()

    class Sender(CollectingSender):
        def send(self, response: Any, final: bool) -> None:
            answering.add(threading.get_ident())
            super().send(response, final)

    for _ in range(1000):
        sender = Sender()
        core.submit(asking("ranged", 1, sender=sender))
        assert sender.result("ranged").error is None
    assert threading.get_ident() not in answering
