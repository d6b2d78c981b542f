"""A model's process writes garbage to the socket whose answers an event loop takes, which serves everybody.

Its own request may fail. The loop goes on, the request is answered once, and the next one is executed.
"""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
import uvloop

from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor
from tests.hostile.conftest import NewCore

CONFIG = """
backend: "python" parameters { key: "EXECUTION" value { string_value: "process" } }
input { name: "x" data_type: TYPE_FP32 dims: [-1] } output { name: "y" data_type: TYPE_FP32 dims: [-1] }
"""
# The work socket is the first argument of the process.
MODEL = """
import gc, json, os, socket, struct, sys, threading
from repoagent.serving.backends.python.process.memory import sealed_file
from repoagent.serving.backends.python.process.remote import RemoteRequest
import triton_python_backend_utils as pb_utils
WORK = socket.socket(fileno=os.dup(int(sys.orig_argv[4])))
def packet(body, opened=(), fds=(), place=None):
    text = body if isinstance(body, str) else json.dumps(body)
    text = f"[{text},{json.dumps(place)},[],[],{json.dumps(opened)}]".encode()
    socket.send_fds(WORK, [struct.pack("<BBI", 5, 0, len(text)) + text], list(fds))
def outputs(*entries):
    packet([0, [[NUMBER, True, [None, "m", "1", {}, entries]]], [[NUMBER, 1, 2]], True])
class TritonPythonModel:
    def execute(self, requests):
        global NUMBER
        NUMBER = max(entry.number for entry in gc.get_objects() if type(entry) is RemoteRequest)
        x = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
        if x[0] == 1:
            GARBAGE
            threading.Event().wait()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])]
"""
GARBAGE = {
    "a part of a head": 'WORK.send(b"\\x05")',
    "a head without a body": 'WORK.send(struct.pack("<BBI", 5, 0, 100))',
    "a count that is too large and not whole": "packet([1e9, [], [[NUMBER, 1, 2]], True])",
    "a count that is not a number": 'packet("[NaN,[],[],true]")',
    "a count that is true": "packet([True, [], [], True])",
    "a count without end": 'packet("[" + "9" * 5000 + ",[],[],true]")',
    "a segment of a negative size": "packet([0, [], [], True], [[1, -5]], [sealed_file(4096)])",
    "a segment of a size without end": "packet([0, [], [], True], [[1, 10**30]], [sealed_file(4096)])",
    "a segment without a descriptor": "packet([0, [], [], True], [[1, 4096]])",
    "descriptors without a segment": "packet([0, [], [], True], [], [sealed_file(4096) for _ in range(8)])",
    "an offset without end": "packet([0, [], [], True], [[1, 4096]], [sealed_file(4096)], [1, 10**30, 5])",
    "a shape without end": 'outputs(["y", "FP32", [10**30], 0, 4])',
    "a shape without end and without elements": 'outputs(["y", "FP32", [0, 10**30], 0, 0])',
    "strings of a shape without end": 'outputs(["y", "BYTES", [10**30], 0, 0])',
    "an offset that is not a number": 'outputs(["y", "FP32", [1], float("nan"), 4])',
    "a name that is a number": 'outputs([5, "FP32", [0], 0, 0])',
    "a name that is nothing": 'outputs([None, "FP32", [0], 0, 0])',
    "a type that is a list": 'outputs(["y", [], [0], 0, 0])',
    "lists in lists": 'packet("[" * 20000 + "]" * 20000)',
    "a text in lists in lists": 'packet([0, [[NUMBER, True, [[13, eval("[" * 99 + "]" * 99)], 0, 0, {}, []]]], [], 1])',
    "a number that is a list": "packet([0, [[[], True, None]], [[NUMBER, 1, 2]], True])",
    "the end of it": "WORK.shutdown(socket.SHUT_RDWR)",
}


class Answers:
    def __init__(self) -> None:
        self.responses: list[InferResponse] = []
        self.finals = 0
        self.complete = threading.Event()

    def send(self, response: InferResponse | None, final: bool) -> None:
        self.responses += [] if response is None else [response]
        self.finals += final
        if final:
            self.complete.set()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop, stop = uvloop.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        with LoopReader(loop):
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)
    loop.close()


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_the_loop_goes_on_the_request_is_answered_once_and_the_next_one_is_executed(
    new_core: NewCore, repository: Path, loop: asyncio.AbstractEventLoop, garbage: str
) -> None:
    directory = repository / "m" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(MODEL.replace("GARBAGE", GARBAGE[garbage]))
    (directory.parent / "config.pbtxt").write_text(CONFIG)
    core = new_core()
    core.load("m")

    def submit(value: float) -> Answers:
        answers, turn = Answers(), Future[None]()

        def on_loop() -> None:
            core.submit(InferRequest(Asked("m", {"x": Tensor.of(np.array([value], np.float32))}), answers))
            turn.set_result(None)

        loop.call_soon_threadsafe(on_loop)
        turn.result(60)
        return answers

    for value in (0.0, 1.0, 2.0):
        last = submit(value)
        assert last.complete.wait(60), f"{value} is not answered"
        assert last.finals == 1
    (response,) = last.responses
    assert response.error is None
    assert response.outputs["y"].array.tolist() == [2.0]
    turn: Future[str] = Future()
    loop.call_soon_threadsafe(turn.set_result, "the loop goes on")
    assert turn.result(60) == "the loop goes on"
