"""A model in a process of its own is given several requests at once, and its code lies about what became of them.

A process may fail its own requests. It must not make another one execute a request again and again, answer twice, or
keep the server from answering.
"""

import gc
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from repoagent.serving.requests.request import DISCARD, Asked, InferRequest, InferResponse, ResponseSender
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.scheduling.ahead import AheadScheduler
from tests.hostile.conftest import NewCore

CONFIG = """
backend: "python" parameters { key: "EXECUTION" value { string_value: "process" } }
input { name: "x" data_type: TYPE_FP32 dims: [-1] } output { name: "y" data_type: TYPE_FP32 dims: [-1] }
"""
# The work socket, the side socket and the file of what was begun are the first three arguments of the process.
MODEL = """
import gc, json, os, socket, struct, sys
from repoagent.serving.backends.python.process.remote import RemoteRequest
import triton_python_backend_utils as pb_utils
WORK, SIDE, PROGRESS = (int(word) for word in sys.orig_argv[4:7])
def packet(fd, kind, body):
    text = json.dumps([body, None, [], [], []]).encode()
    socket.socket(fileno=os.dup(fd)).send(struct.pack("<BBI", kind, 0, len(text)) + text)
class TritonPythonModel:
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "x")
        if x.as_numpy()[0] == 1:
            with open(SEEN, "a") as seen:
                seen.write("x")
            NEXT = 1 + max(entry.number for entry in gc.get_objects() if type(entry) is RemoteRequest)
            LIE
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())])]
"""
LIES = {
    "it has begun nothing": "os.pwrite(PROGRESS, bytes(8), 0); os._exit(1)",
    "it has begun everything": "os.pwrite(PROGRESS, b'\\xff' * 8, 0); os._exit(1)",
    "what it was begun with comes back": "packet(SIDE, 17, list(range(1, 1000)))",
    "nothing that it was given comes back": "packet(SIDE, 17, [10**9])",
    "what comes back is no list": "packet(SIDE, 17, 5)",
    "what comes back is no number": "packet(SIDE, 17, [[]])",
    "what is answered comes back": "packet(SIDE, 7, ANSWER); packet(SIDE, 17, [NEXT])",
    "what is answered with others comes back": (
        "packet(WORK, 5, [0, [ANSWER], [[NEXT - 1, 1, 2]], False]); os.sched_yield(); packet(SIDE, 17, [NEXT])"
    ),
    "what is answered has not been begun": "packet(SIDE, 7, ANSWER); os._exit(1)",
    "it is over": "packet(WORK, 5, [0, [], [], True])",
    "an execution that there was not": "packet(WORK, 5, [0, [], [[10**9, 1, 2]], False])",
    "executed at no time": "packet(WORK, 5, [0, [], [[1, None, 'x']], False])",
    "answers without end, and nothing in them": "while True: packet(WORK, 5, [0, [], [], False])",
    "answers to nobody without end": "while True: packet(WORK, 5, [0, [[10**9, True, None]], [], False])",
    "an execution without an end": "packet(WORK, 5, [0, [], [[1]], False])",
}
ANSWER = '[NEXT, True, [[1, "it is not healthy"], "m", "1", {}, []]]'
OTHERS = 6


class Answers:
    def __init__(self) -> None:
        self.responses: list[InferResponse] = []
        self.finals = 0

    def send(self, response: InferResponse | None, final: bool) -> None:
        self.responses += [] if response is None else [response]
        self.finals += final


def ask(value: float, sender: ResponseSender = DISCARD) -> InferRequest:
    return InferRequest(Asked("m", {"x": Tensor.of(np.array([value], np.float32))}), sender)


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_every_request_is_answered_once_and_none_is_executed_again_and_again(
    new_core: NewCore, repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, lie: str
) -> None:
    directory = repository / "m" / "1"
    directory.mkdir(parents=True)
    text = MODEL.replace("SEEN", repr(str(tmp_path / "seen"))).replace("LIE", LIES[lie].replace("ANSWER", ANSWER))
    (directory / "model.py").write_text(text)
    (directory.parent / "config.pbtxt").write_text(CONFIG)
    gc.collect()
    core = new_core()
    core.load("m")
    (scheduler,) = [entry for entry in gc.get_objects() if type(entry) is AheadScheduler and not entry._closed]
    (instance,) = scheduler._instances
    while instance.ahead < OTHERS + 1:
        instance.call(ask(0.0))
    senders = [Answers() for _ in range(OTHERS + 1)]
    with ExitStack() as held:
        assert scheduler._pool.take(60) is instance
        held.callback(scheduler._pool.give, instance)
        for value, sender in zip([1.0, *[0.0] * OTHERS], senders, strict=True):
            core.submit(ask(value, sender))
    core.unload("m")  # It waits for every answer.
    assert [sender.finals for sender in senders] == [1] * len(senders)
    for sender in senders:
        (response,) = sender.responses
        assert response.error is None or "is not healthy" in str(response.error), response.error
    assert "after its final response" not in caplog.text, "what was answered was executed again"
    assert len((tmp_path / "seen").read_text()) <= 2
