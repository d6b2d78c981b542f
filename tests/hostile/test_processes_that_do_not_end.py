"""Models' processes that take their time to end, or whose end the server cannot log."""

import gc
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from repoagent.errors import CancelledError, InternalError, RepoAgentError
from repoagent.limits import Limits
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.scheduling.ahead import AheadScheduler
from tests.hostile.conftest import NewCore
from tests.hostile.fake_child import ECHO, Answers, answering_loop, output, request, write_child, write_echo

pytestmark = pytest.mark.usefixtures("forked_models")
HANGS = "print('a line that no one can log'); threading.Event().wait()"
# It ends when all of them do so, or not at all.
TOGETHER = """
    def finalize(self):
        open(os.path.join(PLACE, str(os.getpid())), "w").close()
        while len(os.listdir(PLACE)) < 3:
            time.sleep(0.01)
"""
INSTANCES = " instance_group { count: 3 kind: KIND_CPU }"
SCHEDULERS = {
    "one by one": "",
    "in batches": "max_batch_size: 4 dynamic_batching {}",
    "sequences": "max_batch_size: 4 sequence_batching { direct {} }",
}


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_all_processes_of_a_model_end_at_the_same_time(
    new_core: NewCore, repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, scheduler: str
) -> None:
    place = tmp_path / "finalized"
    place.mkdir()
    model = ECHO.replace("BEHAVIOUR", HANGS) + TOGETHER.replace("PLACE", repr(str(place)))
    write_child(repository, model, SCHEDULERS[scheduler] + INSTANCES)
    core = new_core(backend_config={"python": {"stub-timeout-seconds": "30"}})
    core.load("m")
    core.unload("m")
    assert len(list(place.iterdir())) == 3
    assert "and is killed" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("function", ["initialize", "auto_complete_config"])
def test_a_process_whose_load_is_cancelled_ends_whatever_its_model_is_at(
    new_core: NewCore, repository: Path, tmp_path: Path, function: str
) -> None:
    """The load waited for the model's code for ever, and the unload for the load."""
    place = tmp_path / "pid"
    os.mkfifo(place)
    hang = f"open({str(place)!r}, 'w').write(str(os.getpid())); threading.Event().wait()"
    decorator = "" if function == "initialize" else "    @staticmethod\n"
    write_child(
        repository, f"{ECHO.replace('BEHAVIOUR', 'pass')}\n{decorator}    def {function}(*_):\n        {hang}\n"
    )
    core = new_core()
    failures: list[RepoAgentError] = []

    def load() -> None:
        try:
            core.load("m")
        except RepoAgentError as error:
            failures.append(error)

    loading = threading.Thread(target=load, daemon=True)
    loading.start()
    pid = int(place.read_text())  # a pipe: once the model hangs
    core.unload("m")
    loading.join(60)
    assert isinstance(failures[0], CancelledError)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


class Broken(logging.Filter):
    """What an operator may have added to the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "no one can log" in record.getMessage() or "unhealthy and it will be" in record.getMessage():
            raise OSError("the disk of the log is full")
        return True


@pytest.fixture
def broken_log() -> Iterator[None]:
    logger, broken = logging.getLogger("repoagent.models"), Broken()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addFilter(broken)
    yield
    logger.removeFilter(broken)
    logger.setLevel(level)


@pytest.mark.slow
@pytest.mark.usefixtures("broken_log")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_waits_for_a_process_that_cannot_be_looked_after_hears_of_its_end(
    new_core: NewCore, repository: Path
) -> None:
    write_echo(repository, HANGS)
    core = new_core()
    core.load("m")
    before = len(os.listdir("/proc/self/fd"))
    for value in (1.0, 2.0):  # The first ends the process; no other one is started, as that cannot be logged either.
        with pytest.raises(RepoAgentError, match="is not healthy"):
            core.infer(request(value))
    assert len(os.listdir("/proc/self/fd")) <= before
    core.load("m")
    assert output(core, 2.0) == [2.0]


# A model's process, or one that it has started, writes without end to what the server reads of it.
#
# The log of the operator may grow. The requests of the model are answered, and it can be unloaded.

MODEL = """
def write(fd):
    while True:
        os.write(fd, b"\\n" * 65536)  # Lines take longer to read than to write.
def send():
    while True:
        packet(SIDE, 14, None)
class TritonPythonModel:
    def initialize(self, args):
        FLOOD
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
        if x[0] == 1:
            os.abort()
        pb_utils.Logger.log_info("hello")  # The answer waits until this has been heard.
        parameters = {"pid": os.getpid()}
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)], parameters=parameters) for _ in requests]
"""
FLOODS = {
    "its own standard output": "threading.Thread(target=write, args=(1,), daemon=True).start()",
    "its own standard error": "threading.Thread(target=write, args=(2,), daemon=True).start()",
    "messages": "threading.Thread(target=send, daemon=True).start()",
    "a process of its own": "subprocess.Popen(['yes'])",
    "a process that it has let go of": "subprocess.Popen(['yes'], start_new_session=True)",
}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("flood", FLOODS)
def test_requests_are_answered_a_process_that_ends_is_replaced_and_the_model_can_be_unloaded(
    new_core: NewCore, repository: Path, flood: str
) -> None:
    write_child(repository, MODEL.replace("FLOOD", FLOODS[flood]))
    core = new_core()
    core.load("m")
    first = pid(core.infer(request(2.0)))
    with pytest.raises(InternalError, match="is not healthy"):
        core.infer(request(1.0))
    second = pid(core.infer(request(3.0)))
    assert second not in (first, os.getpid())
    core.unload("m")
    assert not Path(f"/proc/{second}").exists()


def pid(response: InferResponse) -> int:
    return int(response.parameters["pid"])


# A model's process answers requests before it gets them, and reads none: what it is sent piles up.
#
# Its requests may fail. The event loop that sends them, which serves everybody, must not wait for it.

REQUESTS = 500
ANSWERING = f"""
def lie(number):
    for number in range(number, number + {REQUESTS}):
        packet(WORK, 5, [0, [[number, True, [None, "m", "1", {{}}, []]]], [[number, 1, 2]], True])
class TritonPythonModel:
    def execute(self, requests):
        threading.Thread(target=lie, args=(newest(),), daemon=True).start()
        time.sleep(10**6)
"""


@pytest.mark.slow
def test_the_loop_that_sends_waits_for_nothing_and_every_request_is_answered_once(
    new_core: NewCore, repository: Path
) -> None:
    write_child(repository, ANSWERING)
    gc.collect()
    core = new_core()
    core.load("m")
    (scheduler,) = [entry for entry in gc.get_objects() if type(entry) is AheadScheduler and not entry._closed]
    child = scheduler.instances[0]._inner.supervisor.child  # type: ignore[attr-defined]
    senders = [Answers() for _ in range(REQUESTS)]
    turns = 0
    with answering_loop() as loop:
        for sender in senders:  # One after the other, so that each is a packet of its own.
            loop.submit(core, request(*[0.0] * 2000, sender=sender))
            turns += 1
            while not (sender.complete.wait(0.01) or child.work.backlogged):
                pass
            if child.work.backlogged:
                break
        assert 10 < turns < REQUESTS
        loop.assert_goes_on()
        os.kill(child.pid, 9)
        for sender in senders[:turns]:
            assert sender.complete.wait(60)
    assert [sender.finals for sender in senders[:turns]] == [1] * turns
    assert all("is not healthy" in error for sender in senders for error in sender.errors)


# A process answers several requests at once, and one of the answers cannot be sent: the others are.

COUNT = 4
CONFIG = f"""
backend: "python" parameters {{ key: "EXECUTION" value {{ string_value: "process" }} }}
max_batch_size: {COUNT}
dynamic_batching {{ preferred_batch_size: [{COUNT}] max_queue_delay_microseconds: 600000000 }}
input {{ name: "x" data_type: TYPE_FP32 dims: [1] }} output {{ name: "y" data_type: TYPE_FP32 dims: [-1] }}
"""
SURROGATES = """
import numpy as np
import triton_python_backend_utils as pb_utils
BAD = {
    "text": lambda: dict(parameters={"p": "a" * 2_000_000}),
    "memory": lambda: dict(size=20 << 20),
}
def answer(size=1, **more):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.zeros((1, size), np.float32))], **more)
class TritonPythonModel:
    def execute(self, requests):
        marks = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy()[0, 0] for request in requests]
        return [answer(**(BAD["KIND"]() if mark == 1 else {})) for mark in marks]
"""


@pytest.mark.parametrize("kind", ["text", "memory"])
def test_the_answer_that_cannot_be_sent_fails_alone(new_core: NewCore, repository: Path, kind: str) -> None:
    directory = repository / "m" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(SURROGATES.replace("KIND", kind))
    (directory.parent / "config.pbtxt").write_text(CONFIG)
    core = new_core(limits=Limits(python_message_bytes=1_000_000, python_shared_bytes=64 << 20))
    core.load("m")
    found: dict[int, str] = {}

    def ask(number: int) -> None:
        x = Tensor.of(np.array([[number]], np.float32))
        try:
            core.infer(InferRequest(Asked("m", {"x": x})))
            found[number] = ""
        except RepoAgentError as error:
            found[number] = str(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found) == list(range(COUNT))
    assert "cannot be handed over" in found.pop(1)
    assert set(found.values()) == {""}
