"""A Python model in a process of its own whose code misbehaves, and who waits for its answers."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import uvloop

from repoagent.serving.core import ServingCore
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import DISCARD, Asked, InferRequest, ResponseSender
from repoagent.serving.requests.tensor import Tensor
from tests.serving import core_kit

CONFIG: Final = """
backend: "python" parameters { key: "EXECUTION" value { string_value: "process" } }
input { name: "x" data_type: TYPE_FP32 dims: [-1] } output { name: "y" data_type: TYPE_FP32 dims: [-1] }
"""

# The work socket, the side socket and the file of what was begun are the first three arguments of the process. Its
# code writes there past the API that models have.
PRELUDE: Final = """
import fcntl, gc, itertools, json, os, queue, socket, struct, subprocess, sys, threading, time
import numpy as np
from repoagent.serving.backends.python.process.memory import sealed_file, _SEALS
from repoagent.serving.backends.python.process.remote import RemoteCore, RemoteRequest
import triton_python_backend_utils as pb_utils
WORK, SIDE, PROGRESS = (int(word) for word in sys.orig_argv[4:7])
def packet(fd, kind, body, opened=(), fds=(), dropped=(), place=None):
    "A body that is a text goes out as it is."
    text = body if isinstance(body, str) else json.dumps(body)
    text = f"[{text},{json.dumps(place)},[],{json.dumps(list(dropped))},{json.dumps(opened)}]".encode()
    with socket.socket(fileno=os.dup(fd)) as way:
        socket.send_fds(way, [struct.pack("<BBI", kind, 0, len(text)) + text], list(fds))
def those_of(kind):
    return [entry for entry in gc.get_objects() if type(entry) is kind]
def newest():
    "The number of the request that came last."
    return max(entry.number for entry in those_of(RemoteRequest))
"""
# A model that gives its input back, and does BEHAVIOUR where that begins with 1.
ECHO: Final = """
class TritonPythonModel:
    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        x, parameters = values[0], {}
        if x.ravel()[0] == 1:
            BEHAVIOUR
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", value)], parameters=parameters) for value in values]
"""


def write_child(repository: Path, model: str, more: str = "") -> None:
    """The model ``m``: its code behind the prelude; ``more`` of its configuration."""
    directory = repository / "m" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(PRELUDE + model)
    (directory.parent / "config.pbtxt").write_text(CONFIG + more)


def write_echo(repository: Path, behaviour: str, more: str = "") -> None:
    """The model ``m`` that does ``behaviour`` when it gets a 1, and else gives its input back."""
    write_child(repository, ECHO.replace("BEHAVIOUR", behaviour), more)


def request(*values: float, sender: ResponseSender = DISCARD) -> InferRequest:
    return InferRequest(Asked("m", {"x": Tensor.of(np.array(values, np.float32))}), sender)


def output(core: ServingCore, *values: float) -> list[float]:
    """What the model answers."""
    found: list[float] = core.infer(request(*values)).outputs["y"].array.tolist()
    return found


class Answers(core_kit.Answers):
    """What came back for one request, with the texts of its errors."""

    @property
    def errors(self) -> list[str]:
        return [str(response.error) for response in self.responses if response.error is not None]


class Loop:
    """An event loop that takes the answers of processes, and serves everybody."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def submit(self, core: ServingCore, asked: InferRequest) -> None:
        """Submit on the loop; returns when that is done."""
        turn = Future[None]()

        def on_loop() -> None:
            core.submit(asked)
            turn.set_result(None)

        self._loop.call_soon_threadsafe(on_loop)
        turn.result(60)

    def assert_goes_on(self) -> None:
        turn = Future[str]()
        self._loop.call_soon_threadsafe(turn.set_result, "the loop goes on")
        assert turn.result(60) == "the loop goes on"


@contextmanager
def answering_loop() -> Iterator[Loop]:
    loop, stop = uvloop.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        with LoopReader(loop):
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    yield Loop(loop)
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)
    loop.close()
