"""A model's process answers requests before it gets them, and reads none: what it is sent piles up.

Its requests may fail. The event loop that sends them, which serves everybody, must not wait for it.
"""

import asyncio
import gc
import os
import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
import uvloop

from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.scheduling.ahead import AheadScheduler
from tests.hostile.conftest import NewCore

CONFIG = """
backend: "python" parameters { key: "EXECUTION" value { string_value: "process" } }
input { name: "x" data_type: TYPE_FP32 dims: [-1] } output { name: "y" data_type: TYPE_FP32 dims: [-1] }
"""
# The work socket is the first argument of the process.
MODEL = """
import gc, json, os, socket, struct, sys, threading, time
from repoagent.serving.backends.python.process.remote import RemoteRequest
import triton_python_backend_utils as pb_utils
def lie(number):
    work = socket.socket(fileno=os.dup(int(sys.orig_argv[4])))
    for number in range(number, number + REQUESTS):
        body = [0, [[number, True, [None, "m", "1", {}, []]]], [[number, 1, 2]], True]
        text = json.dumps([body, None, [], [], []]).encode()
        work.send(struct.pack("<BBI", 5, 0, len(text)) + text)
class TritonPythonModel:
    def execute(self, requests):
        (number,) = {entry.number for entry in gc.get_objects() if type(entry) is RemoteRequest}
        threading.Thread(target=lie, args=(number,), daemon=True).start()
        time.sleep(10**6)
"""
REQUESTS = 500


class Answers:
    def __init__(self) -> None:
        self.finals = 0
        self.errors: list[str] = []
        self.complete = threading.Event()

    def send(self, response: InferResponse | None, final: bool) -> None:
        if response is not None and response.error is not None:
            self.errors.append(str(response.error))
        self.finals += final
        if final:
            self.complete.set()


@pytest.mark.slow
def test_the_loop_that_sends_waits_for_nothing_and_every_request_is_answered_once(
    new_core: NewCore, repository: Path
) -> None:
    directory = repository / "m" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(MODEL.replace("REQUESTS", str(REQUESTS)))
    (directory.parent / "config.pbtxt").write_text(CONFIG)
    gc.collect()
    core = new_core()
    core.load("m")
    (scheduler,) = [entry for entry in gc.get_objects() if type(entry) is AheadScheduler and not entry._closed]
    child = scheduler._instances[0]._inner.child  # type: ignore[attr-defined]
    loop, stop, turns = uvloop.new_event_loop(), asyncio.Event(), 0

    async def serve() -> None:
        with LoopReader(loop):
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    senders = [Answers() for _ in range(REQUESTS)]
    array = np.zeros(2000, np.float32)
    for sender in senders:  # One after the other, so that each is a packet of its own.
        turn: Future[None] = Future()

        def submit(sender: Answers = sender, turn: Future[None] = turn) -> None:
            core.submit(InferRequest(Asked("m", {"x": Tensor.of(array)}), sender))
            turn.set_result(None)

        loop.call_soon_threadsafe(submit)
        turn.result(60)
        turns += 1
        while not (sender.complete.wait(0.01) or child.work.backlogged):
            pass
        if child.work.backlogged:
            break
    assert 10 < turns < REQUESTS
    answered: Future[str] = Future()
    loop.call_soon_threadsafe(answered.set_result, "the loop goes on")
    assert answered.result(60) == "the loop goes on"
    os.kill(child.pid, 9)
    for sender in senders[:turns]:
        assert sender.complete.wait(60)
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)
    assert [sender.finals for sender in senders[:turns]] == [1] * turns
    assert all("is not healthy" in error for sender in senders for error in sender.errors)
