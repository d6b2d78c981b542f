"""What a model in a process of its own gets from the server, and what the server gets from it."""

import logging
import resource
import signal
import threading
from typing import Any

import numpy as np
import pytest

from repoagent.serving.measuring.custom_metrics import REGISTRY
from repoagent.serving.requests.request import DISCARD, Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from tests.serving.core_kit import Answers

DECOUPLED = """
name: "m" backend: "python" model_transaction_policy { decoupled: true }
input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]
"""


@pytest.mark.slow
def test_log_lines_and_output_reach_the_servers_log(
    run_in_process_of_its_own: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    body = """
import logging, os, warnings
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_warn("by the logger")
        pb_utils.Logger.log_verbose("nobody wants this")
        logging.getLogger("some.library").error("by %s", "a library")
        print("by print")
        os.write(2, b"half a line")
        return [pb_utils.InferenceResponse([])]
"""
    model = run_in_process_of_its_own(body)
    model.ask([1.0])
    by_logger = next(record for record in caplog.records if record.getMessage() == "by the logger")
    assert (by_logger.name, by_logger.levelname) == ("repoagent.models", "WARNING")
    assert by_logger.pathname.endswith("/m/1/model.py")
    assert by_logger.lineno == 6
    library = ("repoagent.models.some.library", logging.ERROR, "model 'm', some.library: by a library")
    assert library in caplog.record_tuples
    model.close()
    assert "model 'm', process of 'm_0_0', stdout: by print" in caplog.messages
    assert "model 'm', process of 'm_0_0', stderr: half a line" in caplog.messages
    assert "nobody wants this" not in caplog.text


@pytest.mark.slow
def test_the_level_of_the_log_may_change_while_the_model_runs(
    run_in_process_of_its_own: Any, caplog: pytest.LogCaptureFixture
) -> None:
    body = """
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_verbose("in detail")
        return [pb_utils.InferenceResponse([])]
"""
    model = run_in_process_of_its_own(body)
    with caplog.at_level(logging.INFO, "repoagent.models"):
        model.ask([1.0])
    assert "in detail" not in caplog.text
    with caplog.at_level(logging.DEBUG, "repoagent.models"):
        model.ask([1.0])
    assert caplog.text.count("in detail") == 1


@pytest.mark.slow
def test_metrics_are_the_servers_and_up_to_date_when_the_answer_comes(run_anywhere: Any) -> None:
    body = """
class TritonPythonModel:
    def initialize(self, args):
        kinds = pb_utils.MetricFamily
        family = kinds("pyproc_requests", "Requests", kinds.COUNTER)
        levels = kinds("pyproc_level", "Level", kinds.GAUGE)
        sizes = kinds("pyproc_sizes", "Sizes", kinds.HISTOGRAM)
        self.families = family, levels, sizes
        self.requests = family.Metric(labels={"model": "m"})
        self.level = levels.Metric()
        self.sizes = sizes.Metric(buckets=[1, 10])
    def execute(self, requests):
        self.requests.increment(len(requests))
        self.level.set(2.5)
        self.sizes.observe(4)
        refused = []
        for wrong in (lambda: self.requests.increment(-1), lambda: self.sizes.value(), lambda: self.requests.set(1)):
            try:
                wrong()
            except Exception as error:
                refused.append(type(error).__name__)
        seen = {"value": str(self.requests.value()), "refused": " ".join(refused)}
        return [pb_utils.InferenceResponse([], parameters=seen)]
"""
    model = run_anywhere(body)
    before = series()
    for count in (1, 2):
        (answers,) = model.ask([1.0])
        assert answers.responses[0].parameters == {
            "value": str(before["pyproc_requests"] + count),
            "refused": "TritonModelException TritonModelException TritonModelException",
        }
        assert series()["pyproc_requests"] == before["pyproc_requests"] + count
    assert series()["pyproc_level"] == 2.5
    assert series()["pyproc_sizes_count"] == before["pyproc_sizes_count"] + 2


def series() -> dict[str, float]:
    lines = [line for line in REGISTRY.text().splitlines() if line.startswith("pyproc_")]
    return {line.split("{")[0].split(" ")[0]: float(line.split(" ")[-1]) for line in lines}


@pytest.mark.slow
def test_a_model_learns_that_its_request_was_cancelled(run_anywhere: Any) -> None:
    body = """
import threading
class TritonPythonModel:
    def execute(self, requests):
        threading.Thread(target=self.answer, args=(requests[0], requests[0].get_response_sender())).start()
    def answer(self, request, sender):
        sender.send(pb_utils.InferenceResponse([], parameters={"before": request.is_cancelled()}))
        while not sender.is_cancelled():
            pass
        error = pb_utils.TritonError("given up", pb_utils.TritonError.CANCELLED)
        sender.send(pb_utils.InferenceResponse(error=error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    model = run_anywhere(body, DECOUPLED)
    first, last = threading.Event(), threading.Event()
    seen: list[Any] = []

    class Sender:
        def send(self, response: Any, final: bool) -> None:
            seen.append(response)
            (last if final else first).set()

    request = InferRequest(Asked("m", {"x": Tensor.of(np.zeros(1, np.float32))}), Sender())
    model.instance.execute((request,))
    assert first.wait(60)
    assert seen[0].parameters == {"before": False}
    request.cancel()
    assert last.wait(60)
    assert seen[1].error.code.name == "CANCELLED"


@pytest.mark.slow
def test_text_and_large_tensors_go_both_ways(run_in_process_of_its_own: Any) -> None:
    body = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor(t.name(), t.as_numpy()[::-1]) for t in r.inputs()])
                for r in requests]
"""
    model = run_in_process_of_its_own(body, 'name: "m" backend: "python"')
    words = np.array([["ü".encode() * 3000, b""], [b"\x00\xff", b"d"]], object)
    given = {"words": words, "numbers": np.arange(600_000).reshape(2, -1), "flags": np.array([True, False])}
    sender = Answers()
    model.instance.execute((InferRequest(Asked("m", {k: Tensor.of(v) for k, v in given.items()}), sender),))
    for name, array in given.items():
        np.testing.assert_array_equal(sender.response.outputs[name].array, array[::-1])


@pytest.mark.slow
def test_inputs_are_the_models_own_and_outputs_the_clients_for_as_long_as_they_like(
    run_in_process_of_its_own: Any,
) -> None:
    body = """
import numpy as np
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
        x += 1                                          # As under Triton: nobody else sees it.
        self.kept.append(x)
        good = all((array == number + 1).all() for number, array in enumerate(self.kept))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)], parameters={"good": good})]
"""
    model = run_in_process_of_its_own(body)
    outputs = []
    for number in range(20):
        given = np.full(10_000, number, np.float32)
        (answers,) = model.ask(given)
        assert answers.responses[0].parameters == {"good": True}
        assert (given == number).all()
        outputs.append(answers.responses[0].outputs["y"].array)
    assert all((array == number + 1).all() for number, array in enumerate(outputs))
    assert model.instance.supervisor.child.arena.used_blocks == 20  # What the model keeps, it has.


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_requests_or_of_responses(run_in_process_of_its_own: Any) -> None:
    body = """
import numpy as np
class TritonPythonModel:
    def execute(self, requests):
        sender = requests[0].get_response_sender()
        for _ in range(100):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.zeros(250_000, np.float32))]))
        sender.send(flags=1)
"""
    model = run_in_process_of_its_own(body, DECOUPLED)
    mapping = model.instance.supervisor.child.mapping
    for _ in range(2):
        model.instance.execute((InferRequest(Asked("m", {"x": Tensor.of(np.zeros(9000, np.float32))}), DISCARD),))
    # 200 responses of a megabyte each went through this.
    assert sum(len(memory) for memory in mapping._maps.values()) < 32 << 20
    assert model.instance.supervisor.child.arena.total_bytes <= 1 << 20


def test_a_response_that_cannot_be_sent_is_an_error_of_its_request_only(run_in_process_of_its_own: Any) -> None:
    body = """
class TritonPythonModel:
    def execute(self, requests):
        bad = pb_utils.InferenceResponse([])
        bad._parameters["p"] = [1]
        return [bad, pb_utils.InferenceResponse([])]
"""
    first, second = run_in_process_of_its_own(body).ask([1.0], [1.0])
    assert "parameter 'p' has a value of type list" in str(first.responses[0].error)
    assert second.responses[0].error is None


@pytest.mark.slow
def test_a_call_of_another_model_carries_large_tensors(run_in_process_of_its_own: Any) -> None:
    body = """
class TritonPythonModel:
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
        for _ in range(3):
            request = pb_utils.InferenceRequest(model_name="double", inputs=[pb_utils.Tensor("x", x)],
                requested_output_names=["y"])
            x = pb_utils.get_output_tensor_by_name(request.exec(), "y").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])]
"""
    value = run_in_process_of_its_own(body).value(np.arange(100_000))
    np.testing.assert_array_equal(value, np.arange(100_000, dtype=np.float32) * 8)


@pytest.mark.slow
def test_a_child_that_breaks_the_protocol_is_ended(
    run_in_process_of_its_own: Any, caplog: pytest.LogCaptureFixture
) -> None:
    body = """
import os, struct, sys
class TritonPythonModel:
    def execute(self, requests):
        if pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()[0]:
            text = b'[[1, "rm"], null, [], [], []]'
            os.write(int(sys.orig_argv[5]), struct.pack("<BBI", 10, 0, len(text)) + text)
            requests[0].is_cancelled()
        return [pb_utils.InferenceResponse([])]
"""
    model = run_in_process_of_its_own(body)
    assert "is not healthy" in model.error([1.0])
    assert "breaks the protocol" in caplog.text
    assert model.ask([0.0])[0].responses[0].error is None


def test_outputs_that_there_is_no_memory_for_are_an_error_of_their_batch(run_in_process_of_its_own: Any) -> None:
    body = """
import resource
import numpy as np
class TritonPythonModel:
    def initialize(self, args):
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
    def execute(self, requests):
        count = int(pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()[0])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.zeros(count, np.float32))])]
"""
    model = run_in_process_of_its_own(body)
    assert "the outputs cannot be handed over: [Errno 27] File too large" in model.error([1_000_000.0])
    assert model.value([5000.0]).shape == (5000,)
    assert model.value([100.0]).shape == (100,)


def test_inputs_that_there_is_no_memory_for_are_an_error_of_their_batch(run_in_process_of_its_own: Any) -> None:
    body = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", requests[0].inputs()[0].as_numpy())])]
"""
    model = run_in_process_of_its_own(body)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, limits[1]))
    try:
        text = model.error(np.zeros(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert text == "the inputs of 'm_0_0' cannot be handed over: [Errno 27] File too large"
    assert model.value(np.zeros(1_000_000)).shape == (1_000_000,)


def test_a_line_that_cannot_be_logged_costs_no_request(
    run_in_process_of_its_own: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As in any other program: logging says so on standard error, and goes on."""
    model = run_in_process_of_its_own(
        """
import logging
class TritonPythonModel:
    def execute(self, requests):
        logging.getLogger("m").warning("%d", "not a number")
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
    )
    with caplog.at_level(logging.INFO, "repoagent.models"):
        (answers,) = model.ask([0.0])
        model.close()
    assert answers.responses[0].error is None
    assert "--- Logging error ---" in caplog.text


def test_a_process_that_the_model_forks_cannot_call_the_server_and_does_no_harm(
    run_in_process_of_its_own: Any,
) -> None:
    """P23: the model's process was killed for it."""
    model = run_in_process_of_its_own(
        """
import multiprocessing
CALLS = {
    "exec": lambda x: pb_utils.InferenceRequest("", 0, [pb_utils.Tensor("x", x)], ["y"], "double").exec(),
    "load": lambda x: pb_utils.load_model("other"),
    "ready": lambda x: pb_utils.is_model_ready("double"),
    "metric": lambda x: pb_utils.MetricFamily("forked", "text", pb_utils.MetricFamily.COUNTER),
    "log": lambda x: pb_utils.Logger.log_error("from a fork"),
}
def call(arguments):
    name, x = arguments
    try:
        return repr(CALLS[name](x))
    except pb_utils.TritonModelException as error:
        return str(error)
class TritonPythonModel:
    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            said = dict(zip(CALLS, pool.map(call, [(name, x) for name in CALLS])))
        said["own"] = call(("ready", x))
        return [pb_utils.InferenceResponse([], parameters=said)]
"""
    )
    for _ in range(2):
        (answers,) = model.ask([1.0])
        assert answers.responses[0].error is None, answers.responses[0].error
        said = answers.responses[0].parameters
        assert (said.pop("own"), said.pop("log")) == ("True", "None")
        refused = "a process that the model has forked cannot call the server: call it in the model's own process"
        assert said == dict.fromkeys(("exec", "load", "ready", "metric"), refused)


def test_a_process_that_the_model_forks_can_be_terminated(run_in_process_of_its_own: Any) -> None:
    model = run_in_process_of_its_own(
        """
import multiprocessing
class TritonPythonModel:
    def execute(self, requests):
        fork = multiprocessing.get_context("fork")
        ready, release = fork.Event(), fork.Event()
        worker = fork.Process(target=lambda: (ready.set(), release.wait()), daemon=True)
        worker.start()
        ready.wait()
        worker.terminate()
        worker.join(10)
        ended = str(worker.exitcode)
        worker.kill()
        return [pb_utils.InferenceResponse([], parameters={"ended": ended})]
"""
    )
    (answers,) = model.ask([1.0])
    assert answers.responses[0].error is None, answers.responses[0].error
    assert answers.responses[0].parameters == {"ended": str(-signal.SIGTERM)}
