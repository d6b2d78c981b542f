"""A model's own ``is_ready``: asked with a time limit, whatever it does."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.errors import InvalidArgumentError
from repoagent.serving.backends.python.backend import PythonBackend, Readiness
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor

pytestmark = pytest.mark.slow

CONFIG = """
name: "m" backend: "python"
input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]
"""

SERVES = """
class TritonPythonModel:
    def initialize(self, args):
        self.connected = True

    def is_ready(self):
        {statement}

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            self.connected = bool(x[0])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return responses
"""


def ask(core: Any, value: float) -> None:
    core.infer(InferRequest(Asked("m", {"x": Tensor.of(np.array([value], np.float32))})))


def test_a_model_says_whether_it_is_ready_and_serves_all_the_same(core_of: Any) -> None:
    core = core_of(SERVES.replace("{statement}", "return self.connected"), CONFIG)
    assert core.asks_model("m")
    assert core.model_ready("m")
    ask(core, 0.0)
    assert not core.model_ready("m")
    assert core.ready(), "the server itself is ready"
    ask(core, 1.0)
    assert core.model_ready("m")


def test_a_model_without_such_a_function_is_ready_and_not_asked(core_of: Any) -> None:
    core = core_of(SERVES.replace("def is_ready", "def is_steady").replace("{statement}", "return False"), CONFIG)
    assert not core.asks_model("m")
    assert core.model_ready("m")
    assert not core.asks_model("nosuch")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("return False", "is_ready returned False"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("return None", "is_ready must return a bool, not NoneType"),
    ],
)
def test_whatever_is_not_true_is_not_ready_and_logged_once(
    core_of: Any, caplog: pytest.LogCaptureFixture, statement: str, reason: str
) -> None:
    core = core_of(SERVES.replace("{statement}", statement), CONFIG)
    assert [core.model_ready("m") for _ in range(3)] == [False] * 3
    (line,) = [record.getMessage() for record in caplog.records if "is not ready" in record.getMessage()]
    assert reason in line
    assert line.startswith("model instance 'm_0' is not ready: ")


def test_a_coroutine_is_awaited(core_of: Any) -> None:
    body = SERVES.replace("def is_ready", "async def is_ready")
    assert core_of(body.replace("{statement}", "return self.connected"), CONFIG).model_ready("m")


HANGS = """
import os

class TritonPythonModel:
    def is_ready(self):
        with open("CALLS", "a") as calls:
            calls.write(".")
        os.read(os.open("PIPE", os.O_RDONLY), 1)
        return True

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
"""


def test_a_model_that_does_not_answer_in_time_is_not_ready_and_is_called_once(core_of: Any, tmp_path: Path) -> None:
    import os

    pipe, calls = tmp_path / "pipe", tmp_path / "calls"
    os.mkfifo(pipe)
    body = HANGS.replace("PIPE", str(pipe)).replace("CALLS", str(calls))
    core = core_of(body, CONFIG, ready_seconds="0.2")
    assert [core.model_ready("m") for _ in range(3)] == [False] * 3
    ask(core, 1.0)  # Meanwhile it serves.
    assert calls.read_text() == ".", "the call that hangs is shared"
    with pipe.open("w") as writer:
        writer.write("..")
        end = time.monotonic() + 60
        while not core.model_ready("m"):
            assert time.monotonic() < end
            writer.write(".")
            writer.flush()


def test_all_instances_are_asked_at_once_and_all_must_be_ready() -> None:
    meeting = threading.Barrier(3, timeout=60)
    answers = {"a": True, "b": True, "c": True}

    def one(name: str) -> Any:
        def is_ready() -> bool:
            meeting.wait()
            return answers[name]

        return is_ready

    readiness = Readiness({name: one(name) for name in answers}, 60.0)
    assert readiness.ready()
    answers["b"] = False
    assert not readiness.ready()


def test_a_process_that_ends_while_it_is_asked_is_not_ready(run_in_process_of_its_own: Any, tmp_path: Path) -> None:
    body = """
import os
class TritonPythonModel:
    def is_ready(self):
        os._exit(3)
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
    model = run_in_process_of_its_own(body)
    readiness = Readiness({"m_0_0": model.instance.is_ready}, 60.0)
    assert not readiness.ready()


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan"])
def test_the_time_limit_is_a_positive_number(value: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is-ready-timeout-seconds must be a positive number"):
        PythonBackend({"is-ready-timeout-seconds": value})


def test_a_machine_without_a_thread_costs_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    readiness = Readiness({"m_0_0": lambda: True}, 60)
    with monkeypatch.context() as machine:
        machine.setattr(threading.Thread, "start", full)
        assert not readiness.ready()
    assert readiness.ready()
