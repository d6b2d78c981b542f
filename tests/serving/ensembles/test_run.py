"""Requests through ensembles: the flow of tensors, errors, cancellation, streams, statistics."""

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.errors import CancelledError, InvalidArgumentError, UnavailableError
from repoagent.serving.assembly import ControlMode
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor

CoreMaker = Callable[..., ServingCore]
ModelWriter = Callable[..., Path]
Text = Callable[..., str]
RequestMaker = Callable[..., InferRequest]

PYTHON = 'backend: "python" input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] }'
OUTPUT = ' output { name: "%s" data_type: TYPE_FP32 dims: [-1, 4] }'

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x")
        y = pb_utils.get_input_tensor_by_name(request, "y")
        {body}
"""

STREAM = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            sender = request.get_response_sender()
            for number in range(int(x[0, 0])):
                tensor = pb_utils.Tensor("y", x + np.float32(number))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture
def write_python(repository: Path) -> Callable[..., None]:
    def write(name: str, body: str, *, outputs: tuple[str, ...] = ("y",), extra: str = "", code: str = MODEL) -> None:
        directory = repository / name / "1"
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(code.replace("{body}", body))
        text = PYTHON + "".join(OUTPUT % output for output in outputs) + extra
        (directory.parent / "config.pbtxt").write_text(text)

    return write


@pytest.fixture
def diamond(write_model: ModelWriter, write_python: Callable[..., None], ensemble_config: Text) -> None:
    """x -> a (+1) -> left, x -> b (+10) -> right, left + right -> y; left is an output too."""
    write_model("a", {1: "1"})
    write_model("b", {1: "10"})
    add = 'return pb_utils.InferenceResponse([pb_utils.Tensor("z", x.as_numpy() + y.as_numpy())])'
    second = ' input { name: "y" data_type: TYPE_FP32 dims: [-1, 4] }'
    write_python("add", add, outputs=("z",), extra=second)
    steps = (
        ("add", {"x": "left", "y": "right"}, {"z": "sum"}),
        ("a", {"x": "x"}, {"y": "left"}),
        ("b", {"x": "x"}, {"y": "right"}),
    )
    write_model("e", {}, ensemble_config(*steps, outputs=("sum", "left")))


def values(response: InferResponse) -> dict[str, float]:
    return {name: float(tensor.array[0, 0]) for name, tensor in response.outputs.items()}


@pytest.mark.usefixtures("diamond")
def test_a_step_runs_when_its_inputs_are_there_whatever_the_order_of_the_steps(
    new_core: CoreMaker, request_of: RequestMaker, new_sender: Any
) -> None:
    core = new_core()
    core.load("e")
    response = core.infer(request_of("e", id="r1"))
    assert values(response) == {"left": 2, "sum": 13}
    assert (response.model_name, response.model_version, response.id) == ("e", "1", "r1")
    request, sender = request_of("e"), new_sender()
    request.redirect(sender)
    core.submit(request)
    assert values(sender.final()) == {"left": 2, "sum": 13}
    assert request.redirect(sender) is sender


@pytest.mark.usefixtures("diamond")
def test_steps_that_no_wanted_output_needs_are_left_out(
    new_core: CoreMaker, request_of: RequestMaker, scripted: Any
) -> None:
    core = new_core()
    core.load("e")
    assert values(core.infer(request_of("e", requested_outputs=("left",)))) == {"left": 2}
    counts = {entry["name"]: entry["inference_count"] for entry in core.statistics()["model_stats"]}
    assert counts == {"a": 1, "add": 0, "b": 0, "e": 1}


@pytest.mark.usefixtures("diamond")
def test_steps_without_a_common_input_run_at_the_same_time(
    new_core: CoreMaker, request_of: RequestMaker, scripted: Any, new_sender: Any
) -> None:
    core = new_core()
    core.load("e")
    hold = threading.Event()
    for runner in scripted.runners:
        runner.hold = hold
    request, sender = request_of("e"), new_sender()
    request.redirect(sender)
    core.submit(request)
    for runner in scripted.runners:
        assert runner.running.acquire(timeout=60)
    hold.set()
    assert values(sender.final()) == {"left": 2, "sum": 13}


@pytest.mark.usefixtures("diamond")
def test_submitting_ties_up_no_thread_while_a_step_runs(
    new_core: CoreMaker, request_of: RequestMaker, scripted: Any, new_sender: Any
) -> None:
    core = new_core()
    core.load("e")
    hold = threading.Event()
    for runner in scripted.runners:
        runner.hold = hold
    before = threading.active_count()
    senders = [new_sender() for _ in range(50)]
    for sender in senders:
        core.submit(request_of("e", sender=sender))
    assert threading.active_count() <= before + 2, "one worker for each of the two members that run"
    hold.set()
    assert all(values(sender.final()) == {"left": 2, "sum": 13} for sender in senders)


def test_tensors_go_from_step_to_step_without_a_copy(
    new_core: CoreMaker, write_python: Callable[..., None], write_model: ModelWriter, ensemble_config: Text
) -> None:
    same = 'return pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())])'
    write_python("p", same)
    write_python("q", same)
    write_model("e", {}, ensemble_config(("p", {"x": "x"}, {"y": "t"}), ("q", {"x": "t"}, {"y": "y"})))
    core = new_core()
    core.load("e")
    array = np.ones((1, 4), np.float32)
    response = core.infer(InferRequest(Asked("e", {"x": Tensor.of(array)})))
    assert np.shares_memory(response.outputs["y"].array, array)


@pytest.mark.usefixtures("diamond")
def test_an_error_of_a_step_is_the_answer_and_names_the_ensemble(
    new_core: CoreMaker, request_of: RequestMaker, scripted: Any
) -> None:
    core = new_core()
    core.load("e")
    for runner in scripted.runners:
        if runner.offset == 10:
            runner.error = InvalidArgumentError("the right side is wrong")
    with pytest.raises(InvalidArgumentError) as caught:
        core.infer(request_of("e"))
    assert str(caught.value) == "in ensemble 'e', the right side is wrong"
    stats = {entry["name"]: entry["inference_stats"] for entry in core.statistics()["model_stats"]}
    assert stats["e"]["fail"]["count"] == 1
    assert stats["add"]["success"]["count"] == 0


@pytest.mark.usefixtures("diamond")
def test_cancelling_the_request_cancels_what_its_steps_still_wait_for(
    new_core: CoreMaker, request_of: RequestMaker, scripted: Any, new_sender: Any
) -> None:
    core = new_core()
    core.load("e")
    hold = threading.Event()
    for runner in scripted.runners:
        runner.hold = hold
    blocker, sender = new_sender(), new_sender()
    core.submit(request_of("e", sender=blocker))
    for runner in scripted.runners:
        assert runner.running.acquire(timeout=60)
    request = request_of("e", sender=sender)
    core.submit(request)
    request.cancel()
    error = sender.final().error  # At once: the members still run.
    assert isinstance(error, CancelledError)
    assert request.on_cancel is None
    hold.set()
    assert values(blocker.final()) == {"left": 2, "sum": 13}
    assert str(error) == "in ensemble 'e', request cancelled"
    assert [runner.calls for runner in scripted.runners] == [1, 1]


@pytest.mark.usefixtures("diamond")
def test_a_timeout_holds_for_the_whole_ensemble(
    new_core: CoreMaker, request_of: RequestMaker, scripted: Any, new_sender: Any
) -> None:
    core = new_core()
    core.load("e")
    hold = threading.Event()
    for runner in scripted.runners:
        runner.hold = hold
    blocker, sender = new_sender(), new_sender()
    core.submit(request_of("e", sender=blocker))
    for runner in scripted.runners:
        assert runner.running.acquire(timeout=60)
    core.submit(request_of("e", sender=sender, timeout_us=1))
    hold.set()
    error = sender.final().error
    assert isinstance(error, UnavailableError)
    assert str(error) == "in ensemble 'e', Request timeout expired"


def test_an_optional_input_may_be_left_out(
    new_core: CoreMaker,
    write_python: Callable[..., None],
    write_model: ModelWriter,
    ensemble_config: Text,
    request_of: RequestMaker,
) -> None:
    body = 'return pb_utils.InferenceResponse([pb_utils.Tensor("z", x.as_numpy() if y is None else y.as_numpy())])'
    write_python(
        "p", body, outputs=("z",), extra=' input { name: "y" data_type: TYPE_FP32 dims: [-1, 4] optional: true }'
    )
    step = ("p", {"x": "x", "y": "o"}, {"z": "y"})
    write_model("e", {}, ensemble_config(step, inputs=("x", "o"), optional=("o",)))
    core = new_core()
    core.load("e")
    request = request_of("e")
    assert values(core.infer(request)) == {"y": 1}
    request.inputs = {**request.inputs, "o": Tensor.of(np.full((1, 4), 9, np.float32))}
    assert values(core.infer(request)) == {"y": 9}


@pytest.mark.usefixtures("diamond")
def test_statistics_add_up_and_members_count_their_own(new_core: CoreMaker, request_of: RequestMaker) -> None:
    core = new_core()
    core.load("e")
    for _ in range(5):
        core.infer(request_of("e"))
    stats = {entry["name"]: entry for entry in core.statistics()["model_stats"]}
    assert {name: entry["inference_stats"]["success"]["count"] for name, entry in stats.items()} == dict.fromkeys(
        ("a", "b", "add", "e"), 5
    )
    for part in ("queue", "compute_input", "compute_infer", "compute_output"):
        members = sum(stats[name]["inference_stats"][part]["ns"] for name in ("a", "b", "add"))
        assert stats["e"]["inference_stats"][part]["ns"] == members


@pytest.mark.slow
def test_long_ensembles_of_quick_models_do_not_nest(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text, request_of: RequestMaker
) -> None:
    write_model("a", {1: "1"})
    names = ["x", *(f"t{number}" for number in range(499)), "y"]
    steps = [("a", {"x": one}, {"y": other}) for one, other in itertools.pairwise(names)]
    write_model("e", {}, ensemble_config(*steps))
    core = new_core()
    core.load("e")
    for _ in range(3):
        assert values(core.infer(request_of("e"))) == {"y": 501}


def test_a_member_that_is_reloaded_is_used_in_its_new_form(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text, request_of: RequestMaker
) -> None:
    write_model("a", {1: "1"})
    write_model("e", {}, ensemble_config(("a", {"x": "x"}, {"y": "y"})))
    core = new_core()
    core.load("e")
    write_model("a", {1: "100"})
    core.load("a")
    assert values(core.infer(request_of("e"))) == {"y": 101}


@pytest.mark.usefixtures("diamond")
def test_a_server_that_stops_lets_ensembles_finish(
    new_core: CoreMaker, request_of: RequestMaker, scripted: Any, new_sender: Any
) -> None:
    core = new_core(control_mode=ControlMode.NONE)
    hold = threading.Event()
    for runner in scripted.runners:
        runner.hold = hold
    sender = new_sender()
    core.submit(request_of("e", sender=sender))
    for runner in scripted.runners:
        assert runner.running.acquire(timeout=60)
    stopper = threading.Thread(target=core.stop)
    stopper.start()
    while core.live():
        pass
    hold.set()
    stopper.join(60)
    assert values(sender.final()) == {"left": 2, "sum": 13}


# -- decoupled members -------------------------------------------------------------------------------------------------


@pytest.fixture
def stream(write_python: Callable[..., None]) -> None:
    write_python("stream", "", code=STREAM, extra=" model_transaction_policy { decoupled: true }")


def collect(sender: Any) -> list[float]:
    found = []
    while True:
        response, final = sender.sent.get(timeout=60)
        if response is not None:
            assert response.error is None, response.error
            found.append(float(response.outputs["y"].array[0, 0]))
        if final:
            return found


@pytest.mark.usefixtures("stream")
@pytest.mark.parametrize("count", [0, 1, 3])
def test_every_answer_of_a_decoupled_member_goes_on_by_itself(
    new_core: CoreMaker,
    write_model: ModelWriter,
    ensemble_config: Text,
    request_of: RequestMaker,
    new_sender: Any,
    count: int,
) -> None:
    write_model("a", {1: "100"})
    write_model("e", {}, ensemble_config(("stream", {"x": "x"}, {"y": "t"}), ("a", {"x": "t"}, {"y": "y"})))
    core = new_core()
    core.load("e")
    assert core.model_config("e")["model_transaction_policy"] == {"decoupled": True}
    sender = new_sender()
    core.submit(request_of("e", [[count, 0, 0, 0]], sender=sender))
    assert sorted(collect(sender)) == [100 + count + number for number in range(count)]


@pytest.mark.parametrize("together", [True, False], ids=["with its last tensors", "by itself"])
def test_the_last_answer_has_the_final_flag_if_no_step_is_left(
    new_core: CoreMaker,
    write_python: Callable[..., None],
    write_model: ModelWriter,
    ensemble_config: Text,
    request_of: RequestMaker,
    new_sender: Any,
    together: bool,
) -> None:
    """P18: as under Triton: clients get empty answers only if they ask for them."""
    code = STREAM.replace("send(flags=", "send(pb_utils.InferenceResponse([tensor]), ") if together else STREAM
    write_python("stream", "", code=code, extra=" model_transaction_policy { decoupled: true }")
    write_model("e", {}, ensemble_config(("stream", {"x": "x"}, {"y": "y"})))
    core = new_core()
    core.load("e")
    sender = new_sender()
    core.submit(request_of("e", [[2, 0, 0, 0]], sender=sender))
    sent = [sender.sent.get(timeout=60) for _ in range(3)]
    assert [(response is not None, final) for response, final in sent] == [(True, False)] * 2 + [(together, True)]


@pytest.mark.usefixtures("stream")
def test_a_decoupled_ensemble_within_another_streams_through(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text, request_of: RequestMaker, new_sender: Any
) -> None:
    write_model("inner", {}, ensemble_config(("stream", {"x": "x"}, {"y": "y"})))
    write_model("e", {}, ensemble_config(("inner", {"x": "x"}, {"y": "t"}), ("stream", {"x": "t"}, {"y": "y"})))
    core = new_core()
    core.load("e")
    sender = new_sender()
    core.submit(request_of("e", [[2, 0, 0, 0]], sender=sender))
    assert sorted(collect(sender)) == [2, 3, 3, 4, 5]


@pytest.mark.usefixtures("stream")
def test_tensors_of_two_streams_do_not_meet_in_one_step(
    new_core: CoreMaker, write_python: Callable[..., None], write_model: ModelWriter, ensemble_config: Text
) -> None:
    second = ' input { name: "y" data_type: TYPE_FP32 dims: [-1, 4] }'
    write_python("add", "pass", outputs=("z",), extra=second)
    steps = (("stream", {"x": "x"}, {"y": "t"}), ("add", {"x": "x", "y": "t"}, {"z": "y"}))
    write_model("e", {}, ensemble_config(*steps))
    with pytest.raises(InvalidArgumentError) as caught:
        new_core().load("e")
    assert ("in ensemble e, step of model 'add' receives inputs originated from different decoupled models") in str(
        caught.value
    )
