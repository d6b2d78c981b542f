"""A person who watches ``repoagent serve`` start sees how far a long load is; a pipe or a file sees none of it."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import service_pb2

from server_stub.tests.serve.conftest import PROGRAM

if TYPE_CHECKING:
    from .conftest import Server, World

PATIENCE: Final = 120
_AGENT: Final = """\
import logging, socket
from repoagent.api import Agent


class Slow(Agent):
    api_version = 1

    def load(self, model):
        model.progress(1, 4, "weights")
        self.stand(model)
        logging.getLogger("repoagent.slow").info("said in between")
        self.stand(model)
        model.progress(4, 4, "weights")

    def stand(self, model):
        with socket.create_connection(("127.0.0.1", int(model.parameters["port"]))) as gate:
            gate.recv(1)
"""
_BAR: Final = "[#####---------------]  25%  slow: slow weights"
_LOG_LINE: Final = re.compile(r"[EWIV]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \S+:\d+\] .*")


class Terminal:
    """What stands on a terminal of 80 columns; nothing that is written to it may wrap."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.rows = [""]
        self._returned = True
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                text = os.read(self.master, 65536).decode()
            except OSError:  # how Linux says that nobody has the other end open
                return
            with self._changed:
                self._write(text)
                self._changed.notify_all()

    def _write(self, text: str) -> None:
        for part in re.findall(r"\x1b\[K|\r|\n|[^\x1b\r\n]+|\x1b", text):
            if part == "\n":
                self.rows.append("")
            elif part == "\r":
                self._returned = True
            elif part == "\x1b[K":
                assert self._returned, "it clears the end of a line only"
                self.rows[-1] = ""
            else:
                self._returned = False
                self.rows[-1] += part

    def until(self, text: str) -> list[str]:
        """The rows, once one of them has ``text``."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(text in row for row in self.rows), PATIENCE), self.rows
            return list(self.rows)

    def close(self) -> None:
        os.close(self.slave)
        self._reader.join(PATIENCE)
        os.close(self.master)


@contextmanager
def _watched(world: Any) -> Iterator[tuple[Any, Terminal]]:
    terminal = Terminal()
    process = subprocess.Popen([*PROGRAM, *world.flags()], stdin=subprocess.DEVNULL, stderr=terminal.slave)
    try:
        yield process, terminal
    finally:
        process.kill()
        process.wait(PATIENCE)
        terminal.close()


def test_a_terminal_shows_the_progress_below_log_lines_that_stay_whole(world: Any) -> None:
    gate = world.gate()
    world.agent("slow", _AGENT)
    world.model("slow", [("slow", {"port": str(gate.port)})])
    with _watched(world) as (process, terminal):
        gate.reached()
        assert terminal.until(_BAR)[-1] == _BAR
        gate.open()
        gate.reached()
        rows = terminal.until('"said in between"')
        assert _LOG_LINE.fullmatch(next(row for row in rows if "said in between" in row))
        gate.open()
        terminal.until("Started GRPCInferenceService")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert not any("25%" in row or "100%" in row for row in terminal.rows)
    assert terminal.rows[-1] == ""
    heads = [row for row in terminal.rows if ".py:" in row]
    assert all(_LOG_LINE.fullmatch(row) for row in heads), heads
    assert "Signal (15) received." in terminal.rows


def test_a_signal_during_the_load_leaves_no_line_behind(world: Any) -> None:
    gate = world.gate()
    world.agent("slow", _AGENT)
    world.model("slow", [("slow", {"port": str(gate.port)})])
    with _watched(world) as (process, terminal):
        gate.reached()
        terminal.until(_BAR)
        process.send_signal(signal.SIGTERM)
        terminal.until("Waiting for in-flight requests")
        gate.open()
        gate.reached()
        gate.open()
        assert process.wait(PATIENCE) == 0
    assert "Signal (15) received." in terminal.rows
    assert not any("25%" in row for row in terminal.rows)


def test_a_pipe_gets_no_control_characters(world: Any) -> None:
    gate = world.gate()
    world.agent("slow", _AGENT)
    world.model("slow", [("slow", {"port": str(gate.port)})])
    server = world.start()
    for _ in range(2):
        gate.reached()
        gate.open()
    server.wait_ready()
    assert server.stop() == 0
    assert "said in between" in server.log
    assert "\x1b" not in server.log
    assert "25%" not in server.log


# ``--model-load-on-demand`` and its budget, in a real server.


def _size(model: Path) -> int:
    return sum(file.stat().st_size for file in model.rglob("*") if file.is_file())


def _ready(server: Any) -> set[str]:
    return {name for name, entry in server.index().items() if entry.get("state") == "READY"}


@pytest.fixture
def sizes(world: Any) -> list[int]:
    """Two models of nearly the same size beside "plain"; how large the two are."""
    return [_size(world.model("first", operation="Neg")), _size(world.model("other", operation="Abs"))]


def test_a_request_loads_the_model_and_the_budget_unloads_the_one_used_least_lately(
    world: Any, sizes: list[int]
) -> None:
    budget = max(sizes) + min(sizes) // 2
    server = world.serve("--load-model=plain", "--model-load-on-demand", f"--model-memory-budget-bytes={budget}")
    assert _ready(server) == {"plain"}
    assert server.http.get("/v2/models/first").status_code != 200, "asking for metadata loads nothing"
    assert server.answer("first") == [1, -2, 3, -4]
    assert _ready(server) == {"plain", "first"}
    # The answer to "first" may be here before its request counts as over; until then there is no room, which is a 503.
    server.until(lambda: server.ask("other").status_code == 200, "room for the other model")
    assert server.answer("other") == [1, 2, 3, 4]
    assert _ready(server) == {"plain", "other"}, "what was loaded by name stays, what was loaded on demand makes room"
    assert server.ask("nosuch").status_code == 404
    assert server.stop() == 0


def test_without_the_flag_a_request_loads_nothing(world: Any, sizes: list[int]) -> None:
    server = world.serve()
    assert server.ask("first").status_code == 404
    assert _ready(server) == set()


# One version of a model is loaded and unloaded in a running server, while requests go to another one.

InBackground = Callable[[Callable[[], Any]], Callable[[], Any]]
_TENSOR = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}


def _answer(server: "Server", path: str) -> httpx.Response:
    return server.http.post(f"/v2/models/m{path}/infer", content=json.dumps({"inputs": [_TENSOR]}))


def _versions(server: "Server") -> dict[str, str]:
    index = server.http.post("/v2/repository/index").json()
    return {entry["version"]: entry["state"] for entry in index if entry["name"] == "m"}


def test_a_version_comes_and_goes_while_another_one_answers(world: "World", in_background: InBackground) -> None:
    agent = world.agent("guard")
    directory = world.model("m", [(agent, {})])
    shutil.copytree(directory / "1", directory / "2")
    server = world.serve("--load-model=m", "--allow-grpc=true")
    assert _versions(server) == {"2": "READY"}
    ended = threading.Event()

    def ask() -> set[int]:
        statuses: set[int] = set()
        while not ended.is_set():
            statuses.add(_answer(server, "/versions/2").status_code)
        return statuses

    asking = in_background(ask)
    before = len(world.calls("m"))
    assert server.http.post("/v2/repository/models/m/versions/1/load").status_code == 200
    assert _versions(server) == {"1": "READY", "2": "READY"}
    assert _answer(server, "/versions/1").json()["outputs"][0]["data"] == [-1, -2, -3, -4]
    actions = [line.partition(" ")[2] for line in world.calls("m")[before:]]
    assert [action for action in actions if action.isupper()] == ["LOAD", "UNLOAD", "LOAD_COMPLETE", "UNLOAD_COMPLETE"]
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.port('grpc')}") as client:
        unload = service_pb2.RepositoryModelUnloadRequest(model_name="m")
        unload.parameters["version"].int64_param = 1
        before = len(world.calls("m"))
        client._client_stub.RepositoryModelUnload(unload)
        assert len(world.calls("m")) == before
    assert _versions(server) == {"1": "UNAVAILABLE", "2": "READY"}
    assert _answer(server, "/versions/1").status_code == 503
    assert server.http.get("/v2/health/ready").status_code == 200
    missing = server.http.post("/v2/repository/models/m/versions/7/load")
    assert (missing.status_code, "there is no such version directory" in missing.text) == (400, True)
    ended.set()
    assert asking() == {200}
    assert server.http.post("/v2/repository/models/m/versions/2/unload").status_code == 200
    assert set(_versions(server).values()) == {"UNAVAILABLE"}
    assert [line for line in world.calls("m") if line.endswith(" UNLOAD_COMPLETE")]
    assert server.stop() == 0
