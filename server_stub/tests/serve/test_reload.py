"""``--processes`` and SIGUSR2: new processes take the workers' places, and no client notices."""

import os
import signal
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import tritonclient.grpc as triton

from server_stub.tests.serve.test_homes import ONE
from server_stub.tests.serve.test_processes import ask, connections, processes
from tests.extent import in_full
from tests.warm import Warm

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World

LOADS = in_full(20, otherwise=2)
"""How many there are at least while workers are replaced."""


class Load:
    """Clients that ask without a pause, over HTTP and gRPC, each request once; ``found`` counts what they got."""

    def __init__(self, server: "Server", models: tuple[str, ...]) -> None:
        self.found: Counter[Any] = Counter()
        self._over = threading.Event()
        asks = [(self._http, server.address), (self._grpc, f"127.0.0.1:{server.port('grpc')}")]
        self._threads = [
            threading.Thread(target=work, args=(address, model)) for work, address in asks for model in models * 2
        ]
        for thread in self._threads:
            thread.start()

    def _http(self, address: str, model: str) -> None:
        with httpx.Client(base_url=f"http://{address}", timeout=60) as client:
            while not self._over.is_set():
                try:
                    self.found[ask(client, model)] += 1
                except httpx.HTTPError as error:
                    self.found[repr(error)] += 1

    def _grpc(self, address: str, model: str) -> None:
        values = np.array([[-1, 2, -3, 4]], np.float32)
        with triton.InferenceServerClient(address) as client:
            tensor = triton.InferInput("X", [1, 4], "FP32")
            tensor.set_data_from_numpy(values)
            while not self._over.is_set():
                try:
                    self.found[bool(np.array_equal(client.infer(model, [tensor]).as_numpy("Y"), -values))] += 1
                except Exception as error:
                    self.found[repr(error)] += 1

    def end(self) -> Counter[Any]:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        return self.found


def test_workers_are_replaced_under_load_and_loads_and_no_request_is_lost(world: "World") -> None:
    world.agent("agent")
    world.model("homed", config=ONE)
    world.model("checked", [("agent", {})])
    server = world.serve("--processes=2", "--load-model=plain", "--load-model=homed", "--exit-timeout-secs=10")
    load = Load(server, ("plain", "homed"))
    loads = rounds = 0
    while rounds < 2 or loads < LOADS:
        rounds += 1
        before = processes(server)
        server.process.send_signal(signal.SIGUSR2)
        while server.log.count("all worker processes have been replaced") < rounds:
            for answer in (server.load("checked"), server.unload("checked")):
                assert answer.status_code == 200, answer.text
            loads += 1
            calls = Counter(world.calls("checked"))
            assert {calls[f"agent {name}"] for name in ("LOAD", "LOAD_COMPLETE", "UNLOAD")} == {loads}
            assert server.process.poll() is None
        assert not set(before) & set(processes(server))
        assert len(processes(server)) == 2
    found = load.end()
    assert set(found) == {200, True}, found
    with connections(server) as clients:
        assert {ask(client, model) for client in clients for model in ("plain", "homed")} == {200}
    assert server.stop() == 0


def test_where_no_new_worker_can_be_had_the_old_ones_stay(world: "World") -> None:
    directory = world.model("fragile")
    server = world.serve("--processes=2", "--load-model=fragile")
    before = processes(server)
    (directory / "1" / "model.onnx").rename(world.root / "hidden")
    server.process.send_signal(signal.SIGUSR2)
    server.until(lambda: "worker 0 is not replaced" in server.log, "the failure")
    with connections(server) as clients:
        assert {ask(client, "fragile") for client in clients} == {200}
    server.until(lambda: processes(server) == before, "the end of the new process")
    assert server.stop() == 0


def test_the_command_replaces_the_workers_of_a_ready_file(world: "World") -> None:
    server = world.serve("--processes=2", "--load-model=plain", "--exit-timeout-secs=10")
    before = processes(server)
    answer = world.warm.run(["reload", server.ready])
    assert (answer.returncode, str(server.process.pid) in answer.stdout) == (0, True), answer.stderr
    server.until(lambda: "all worker processes have been replaced" in server.log, "the new workers")
    assert not set(before) & set(processes(server))


def test_a_server_without_workers_is_not_ended_by_it(world: "World") -> None:
    server = world.serve("--processes=1")
    answer = world.warm.run(["reload", server.ready])
    assert answer.returncode == 1
    assert "--processes=N" in answer.stderr
    assert httpx.get(f"http://{server.address}/v2/health/ready").status_code == 200


def test_a_file_that_is_none_is_refused(warm: Warm, tmp_path: Path) -> None:
    assert "there is no" in warm.run(["reload", tmp_path / "none"]).stderr
    for text in ("", "[]", '{"pid": -1}', '{"pid": "1"}', '{"pid": 1}'):
        (tmp_path / "ready").write_text(text)
        answer = warm.run(["reload", tmp_path / "ready"])
        assert answer.returncode == 1
        assert "is not what --ready-file writes" in answer.stderr
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / "ready").write_text(f'{{"pid": {ended.pid}}}')
    assert "has ended" in warm.run(["reload", tmp_path / "ready"]).stderr


def test_a_model_whose_plaintext_was_wiped_is_replaced_too(world: "World") -> None:
    world.agent("agent")
    world.model("wiped", [("agent", {"copy": "LOAD confidential"})])
    server = world.serve("--processes=2", "--load-model=wiped", "--exit-timeout-secs=10")
    before = processes(server)
    server.process.send_signal(signal.SIGUSR2)
    server.until(lambda: "not replaced" in server.log or "all worker" in server.log, "the end of it")
    server.until(lambda: "all worker processes have been replaced" in server.log, "the end of it")
    assert not set(before) & set(processes(server))
    with connections(server) as clients:
        assert {ask(client, "wiped") for client in clients} == {200}
    assert world.calls("wiped").count("agent LOAD") == 3  # At the start, and for each new worker.
    assert server.stop() == 0


def test_a_unix_socket_of_grpc_is_shared_by_the_workers_and_those_that_follow_them(world: "World") -> None:
    path, one = world.root / "grpc.sock", triton.InferInput("X", [1, 4], "FP32")
    one.set_data_from_numpy(np.ones((1, 4), np.float32))

    def answered(_: int = 0) -> bool:
        with triton.InferenceServerClient(f"unix:{path}") as client:
            return bool(client.infer("plain", [one]).as_numpy("Y")[0, 0] == -1)

    server = world.serve("--processes=2", "--load-model=plain", f"--grpc-address=unix:{path}", "--exit-timeout-secs=10")
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(answered, range(16)))
    server.process.send_signal(signal.SIGUSR2)
    server.until(lambda: answered() and "all worker processes have been replaced" in server.log, "the replacement")
    os.kill(processes(server)[0], signal.SIGKILL)
    server.until(lambda: answered() and "serves again" in server.log, "another worker")
    assert server.stop() == 0
    assert not path.exists()
