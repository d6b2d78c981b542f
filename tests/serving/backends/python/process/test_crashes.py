"""Real processes that really die. Nothing else may."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.errors import ErrorCode, InternalError, UnavailableError
from repoagent.serving.backends.python.process import supervisor

pytestmark = pytest.mark.slow

UNHEALTHY = "Failed to process the request(s) for model instance 'm_0_0', message: Stub process 'm_0_0' is not healthy."

# Does what the numbers that it gets say.
MODEL = """
import ctypes, os, signal, sys, threading
class TritonPythonModel:
    def initialize(self, args):
        self.count = 0
    def execute(self, requests):
        self.count += 1
        what = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()[0]
        if what == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == 2:
            ctypes.string_at(0)
        if what == 3:
            os._exit(3)
        if what == 4:
            os.abort()
        if what == 5:
            pb_utils.is_model_ready("I am here")
            threading.Event().wait()
        return [pb_utils.InferenceResponse([], parameters={"pid": os.getpid(), "count": self.count}) for _ in requests]
"""


def pid(running: Any) -> int:
    return int(running.ask([0.0])[0].responses[0].parameters["pid"])


def gone(pidfd: int) -> bool:
    """Wait for a process that need not be ours."""
    return bool(select.select([pidfd], [], [], 60)[0])


NothingLeft = Callable[[], AbstractContextManager[None]]


def test_whatever_kills_the_process_its_requests_fail_and_the_next_ones_do_not(
    run_in_process_of_its_own: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = run_in_process_of_its_own(MODEL)
    first = pid(model)
    assert first != os.getpid()
    for kind, said in ((1, "SIGKILL"), (2, "SIGSEGV"), (3, "exit status 3"), (4, "SIGABRT")):
        caplog.clear()
        answers = model.ask([float(kind)], [0.0])
        assert [str(answer.responses[0].error) for answer in answers] == [UNHEALTHY, UNHEALTHY]
        assert answers[0].responses[0].error.code is ErrorCode.INTERNAL
        assert [answer.finals for answer in answers] == [1, 1]
        seen = model.ask([0.0])[0].responses[0].parameters
        assert seen["count"] == 1
        assert seen["pid"] not in (first, os.getpid())
        assert "Stub process 'm_0_0' is unhealthy and it will be restarted: it " in caplog.text
        assert said in caplog.text
    assert "Fatal Python error" in caplog.text  # What it wrote at its end is in the log.


def test_a_process_that_dies_while_it_has_nothing_to_do_costs_no_request(run_in_process_of_its_own: Any) -> None:
    model = run_in_process_of_its_own(MODEL)
    child = model.instance.supervisor.child
    first = pid(model)
    os.kill(first, signal.SIGKILL)
    assert child.exited.wait(60)
    assert pid(model) != first


def test_other_instances_go_on(run_in_process_of_its_own: Any) -> None:
    one, other = run_in_process_of_its_own(MODEL), run_in_process_of_its_own(MODEL)
    before = pid(other)
    assert one.error([1.0]) == UNHEALTHY
    assert other.ask([0.0])[0].responses[0].parameters == {"pid": before, "count": 2}


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        (
            "import sys\nprint('no licence', file=sys.stderr)\nimport os\nos._exit(7)",
            ["Stub process 'm_0_0' is not healthy: in initialize, it ended with exit status 7", "no licence"],
        ),
        (
            "class TritonPythonModel:\n  def initialize(self, args):\n    import os\n    os.kill(os.getpid(), 9)",
            ["it was killed by signal 9 (SIGKILL)"],
        ),
        (
            "class TritonPythonModel:\n  def initialize(self, args):\n    raise RuntimeError('no such luck')",
            ["RuntimeError: no such luck"],
        ),
    ],
    ids=["exit", "kill", "raise"],
)
def test_a_process_that_dies_in_initialize_fails_the_load_and_says_how(
    run_in_process_of_its_own: Any, body: str, texts: list[str], nothing_left: NothingLeft
) -> None:
    with nothing_left():
        with pytest.raises(InternalError) as raised:
            run_in_process_of_its_own(body)
        for text in texts:
            assert text in str(raised.value)
        del raised


def test_a_process_that_dies_in_auto_complete_config_fails_only_the_load(complete_in_process_of_its_own: Any) -> None:
    with pytest.raises(InternalError, match=r"is not healthy: in auto_complete_config, it ended with exit status 4"):
        complete_in_process_of_its_own(
            "class TritonPythonModel:\n  @staticmethod\n  def auto_complete_config(config):\n"
            "    import os\n    os._exit(4)\n"
        )


def test_the_shared_memory_has_no_name_that_could_be_left_behind(run_in_process_of_its_own: Any) -> None:
    body = """
class TritonPythonModel:
    def execute(self, requests):
        with open("/proc/self/maps") as maps:
            shared = {line.split(maxsplit=5)[5].strip() for line in maps if line.split()[1] == "rw-s"}
        return [pb_utils.InferenceResponse([], parameters={"shared": ", ".join(shared)})]
"""
    (answers,) = run_in_process_of_its_own(body).ask(np.zeros(100_000))
    assert answers.responses[0].parameters["shared"] == "/memfd:repoagent-python (deleted)"


def test_nothing_is_left_however_often_a_process_dies(
    run_in_process_of_its_own: Any, nothing_left: NothingLeft
) -> None:
    with nothing_left():
        model = run_in_process_of_its_own(MODEL)
        for _ in range(2):
            model.ask(np.zeros(100_000))
            assert model.error([1.0]) == UNHEALTHY
        number = pid(model)
        model.close()
        del model.instance
        with pytest.raises(ChildProcessError):  # Not even as a zombie.
            os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def test_an_instance_that_does_not_start_again_is_given_up_after_a_while(
    run_in_process_of_its_own: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(supervisor, "_ATTEMPTS", 2)
    marker = tmp_path / "broken"
    model = run_in_process_of_its_own(
        MODEL.replace("self.count = 0", f"self.count = 0\n        assert not os.path.exists({str(marker)!r}), 'broken'")
    )
    marker.touch()
    assert model.error([1.0]) == UNHEALTHY
    with pytest.raises(UnavailableError) as raised:
        model.ask([0.0])
    assert "Stub process 'm_0_0' is not healthy: it could not be started again, 2 times in a row" in str(raised.value)
    assert "load the model again" in str(raised.value)
    assert "AssertionError: broken" in str(raised.value)
    assert caplog.text.count("did not start again: AssertionError: broken") == 2


def test_a_model_that_does_not_let_go_is_killed(
    run_in_process_of_its_own: Any, caplog: pytest.LogCaptureFixture
) -> None:
    body = MODEL + "    def finalize(self):\n        threading.Event().wait()\n"
    model = run_in_process_of_its_own(body, stub_timeout_seconds="0.1")
    pidfd = os.pidfd_open(pid(model))
    model.close()
    assert gone(pidfd)
    os.close(pidfd)
    assert "did not end within 0.1 s and is killed" in caplog.text


def test_a_request_that_never_ends_does_not_outlive_the_model(run_in_process_of_its_own: Any) -> None:
    model = run_in_process_of_its_own(MODEL, stub_timeout_seconds="0.1")
    asked: list[Any] = []
    thread = threading.Thread(target=lambda: asked.extend(model.ask([5.0])))
    thread.start()
    assert model.core.asked.wait(60)
    model.close()
    thread.join(60)
    assert str(asked[0].responses[0].error) == UNHEALTHY
    assert asked[0].finals == 1


def test_what_the_process_started_ends_with_it(run_in_process_of_its_own: Any) -> None:
    body = """
import os, subprocess
class TritonPythonModel:
    def execute(self, requests):
        helper = subprocess.Popen(["sleep", "600"])
        return [pb_utils.InferenceResponse([], parameters={"pid": os.getpid(), "helper": helper.pid})]
"""
    model = run_in_process_of_its_own(body)
    seen = model.ask([0.0])[0].responses[0].parameters
    pidfd = os.pidfd_open(seen["helper"])
    os.kill(seen["pid"], signal.SIGKILL)
    assert gone(pidfd)
    os.close(pidfd)


# Both wait for good, the second one without letting go of Python's lock.
WAITING = """
import ctypes, os, sys
class TritonPythonModel:
    def execute(self, requests):
        with open({pipe!r}, "w") as pipe:
            pipe.write(str(os.getpid()))
        ctypes.{library}(None).pause()
"""

SERVER = """
import sys
from threading import Thread
import numpy as np
from repoagent.serving.core import CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
with ServingCore(CoreOptions(repositories=(sys.argv[1],), repoagent_directory=None)) as core:
    for name in sys.argv[2:]:
        request = InferRequest(Asked(name, {"x": Tensor.of(np.zeros(1, np.float32))}))
        Thread(target=core.infer, args=(request,)).start()
"""

SERVED = """
backend: "python" parameters { key: "EXECUTION" value { string_value: "process" } }
input { name: "x" data_type: TYPE_FP32 dims: [1] } output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""


def test_the_processes_end_with_a_server_that_is_killed(write_model: Any, tmp_path: Path) -> None:
    libraries = ("CDLL", "PyDLL")
    for library in libraries:
        os.mkfifo(tmp_path / library)
        directory = write_model(WAITING.format(pipe=str(tmp_path / library), library=library), f"models/{library}")
        (directory / "config.pbtxt").write_text(SERVED)
    command = [sys.executable, "-c", SERVER, str(tmp_path / "models"), *libraries]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        pidfds = [os.pidfd_open(int((tmp_path / library).read_text())) for library in libraries]
        server.kill()
        for pidfd in pidfds:
            assert gone(pidfd)
            os.close(pidfd)
