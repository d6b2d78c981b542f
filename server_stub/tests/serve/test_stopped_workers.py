"""``--processes``: a worker that is stopped (SIGSTOP) while something is to be done in all of them.

It is given up after the silence that the flag allows. The others answer meanwhile, and nothing that it has served comes
back with it.
"""

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from server_stub.tests.serve.test_certificates_handed_out import Files
from server_stub.tests.serve.test_processes import IN_PROCESS, ask, connections, in_process, processes
from tests.extent import in_full

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World

SILENCE: Final = f"--limit-worker-silence-seconds={in_full(0, otherwise=4)}"
"""Without that bound, those of the single steps hold: 30 seconds for most."""
MODELS: Final = ("--load-model=plain", "--load-model=other")

SLOW: Final = """
import time
class TritonPythonModel:
    def initialize(self, args):
        time.sleep(3600)
"""

Operation = Callable[["Server"], int]
OPERATIONS: Final[dict[str, Operation]] = {
    "load": lambda server: server.load("third").status_code,
    "unload": lambda server: server.unload("other").status_code,
    "settings": lambda server: server.http.post("/v2/logging", json={"log_verbose_level": 1}).status_code,
}
"""What is done, and succeeds without the worker."""


def stopped(server: "Server") -> int:
    """Stop one of the workers; it is not the one that ``server.http`` is connected to."""
    of_client: set[int] = set()
    for pid in 4 * list(processes(server)):  # a client that was kept waiting connects again, to any of them
        os.kill(pid, signal.SIGSTOP)
        try:
            server.http.get("/v2/health/live", timeout=2)
        except httpx.TimeoutException:
            of_client.add(pid)
            os.kill(pid, signal.SIGCONT)
            server.http.get("/v2/health/live")
        else:
            return pid
    raise AssertionError(f"each of {of_client} keeps the client from its answer")


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_stopped_worker_is_given_up_and_what_it_had_does_not_come_back(world: "World", name: str) -> None:
    world.model("other")
    world.model("third")
    server = world.serve("--processes=3", SILENCE, *MODELS)
    with connections(server) as clients, ThreadPoolExecutor(1) as pool:
        assert {ask(one, "plain") for one in clients} == {200}
        pid = stopped(server)
        done: Future[int] = pool.submit(OPERATIONS[name], server)
        answered = _answered(clients)
        assert answered, "the others serve"
        assert {one.post("/v2/repository/index").status_code for one in answered} == {200}
        assert not done.done(), "the index waits for no worker that is silent"
        assert done.result(120) == 200
    server.until(lambda: "serves again" in server.log, "another worker")
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    assert pid not in processes(server)
    has = {"load": {"plain", "other", "third"}, "unload": {"plain"}, "settings": {"plain", "other"}}[name]
    with connections(server) as clients:
        for model in ("plain", "other", "third"):
            assert {ask(one, model) for one in clients} == {200 if model in has else 404}
    assert server.stop() == 0


def test_loads_side_by_side_go_on_without_a_worker_that_is_stopped(world: "World") -> None:
    """Each of them failed, one after the other, for as long as it was not given up."""
    world.model("third")
    world.model("homed", config='parameters { key: "home" value { string_value: "one" } }')
    in_process(world, "calls", IN_PROCESS.format(trap=str(world.root / "no trap")))
    names = ("third", "homed", "calls")
    server = world.serve("--processes=3", "--limit-worker-silence-seconds=12", *MODELS[:1])
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(base_url=server.http.base_url, timeout=120)) for _ in range(24)]
        assert {ask(one, "plain") for one in clients} == {200}
        pid = stopped(server)
        others = [one for one in clients if _answers(one)][: len(names)]
        with ThreadPoolExecutor(len(names)) as pool:
            loads = [
                pool.submit(client.post, f"/v2/repository/models/{name}/load")
                for name, client in zip(names, others, strict=True)
            ]
            answers = [one.result(120) for one in loads]
            assert [one.status_code for one in answers] == [200] * len(names), [one.text for one in answers]
    assert server.log.count("another one is started") == 1
    server.until(lambda: "serves again" in server.log, "another worker")
    assert pid not in processes(server)
    with connections(server) as clients:
        for model in names:
            assert {ask(one, model) for one in clients} == {200}
    assert server.stop() == 0


def _answers(client: httpx.Client) -> bool:
    with suppress(httpx.TimeoutException):
        client.get("/v2/health/live", timeout=0.5)
        return True
    return False


def _answered(clients: list[httpx.Client]) -> list[httpx.Client]:
    """Those that are not connected to a worker that is stopped."""
    return list(islice(filter(_answers, clients), 2))


def test_a_worker_that_goes_on_in_time_takes_up_what_it_has_missed(world: "World") -> None:
    world.model("other")
    server = world.serve("--processes=3", "--limit-worker-silence-seconds=60", *MODELS)
    before = processes(server)
    with ThreadPoolExecutor(1) as pool:
        pid = stopped(server)
        done = pool.submit(server.unload, "other")
        server.until(lambda: "successfully unloaded" in server.log or done.running(), "the unload")
        os.kill(pid, signal.SIGCONT)
        assert done.result(120).status_code == 200
    with connections(server) as clients:
        assert {ask(one, "plain") for one in clients} == {200}
        assert {ask(one, "other") for one in clients} == {404}
    assert processes(server) == before
    assert server.stop() == 0


def test_a_load_ends_if_all_workers_are_stopped_before_one_has_built_its_model(world: "World") -> None:
    """Nothing shows how long it may take: the bound is that of a worker which does nothing."""
    in_process(world, "slow", SLOW)
    server = world.serve("--processes=2", "--limit-worker-silence-seconds=2", *MODELS[:1])
    before = processes(server)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.load, "slow")
        with httpx.Client(base_url=server.http.base_url, timeout=60) as other:
            server.until(lambda: _state(other, "slow") == "LOADING", "the load")
        for pid in before:
            os.kill(pid, signal.SIGSTOP)
        assert isinstance(asked.exception(120), httpx.TransportError), "who asked was connected to one of them"
    server.until(lambda: server.log.count("serves again") == len(before), "other workers")
    with httpx.Client(base_url=server.http.base_url, timeout=60) as other:
        server.until(lambda: _state(other, "slow") == "UNAVAILABLE", "the end of the load")
        assert ask(other, "plain") == 200
    assert not set(before) & set(processes(server))
    assert server.stop() == 0


WAITS: Final = """
import os, time
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        open(f"{root}/builds-{os.getpid()}", "w").close()
        while not os.path.exists(f"{root}/go on"):
            time.sleep(0.01)
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(r, "X")]) for r in requests]
"""


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_load_goes_on_without_a_worker_that_ends_in_the_middle_of_it(world: "World", number: int) -> None:
    """The others show that the model can be built. Its agents are not called again for who replaces that worker."""
    for one in world.root.glob("builds-*"):
        one.unlink()
    (world.root / "go on").unlink(missing_ok=True)
    name = f"waits{number}"
    world.agent("agent")
    in_process(world, name, f"root = {str(world.root)!r}" + WAITS)
    with (world.models / name / "config.pbtxt").open("a") as config:
        config.write('model_repository_agents { agents [ { name: "agent" } ] }')
    server = world.serve("--processes=3", "--limit-worker-silence-seconds=4", *MODELS[:1])
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(server.load, name)
        server.until(lambda: len(list(world.root.glob("builds-*"))) == 3, "that all build")
        pid = processes(server)[0]
        os.kill(pid, number)
        server.until(lambda: "another one is started" in server.log, "its end")
        (world.root / "go on").touch()
        failed = load.exception(120)
    assert isinstance(failed, httpx.TransportError) or load.result().status_code == 200
    server.until(lambda: "serves again" in server.log, "another worker")
    with httpx.Client(base_url=server.http.base_url, timeout=60) as other:
        server.until(lambda: _state(other, name) == "READY", "the load")
    assert pid not in processes(server)
    with connections(server) as clients:
        assert {ask(one, name) for one in clients} == {200}
    assert world.calls(name).count("agent LOAD") == 1
    assert server.stop() == 0


def _state(client: httpx.Client, model: str) -> str:
    entries = client.post("/v2/repository/index").json()
    return next((str(entry.get("state")) for entry in entries if entry["name"] == model), "")


def test_who_replaces_a_stopped_worker_has_the_certificate_that_came_meanwhile(world: "World", tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.install(files.authority.issue("first"))
    server = world.serve("--processes=3", SILENCE, *MODELS[:1], *files.flags)
    pid = processes(server)[0]
    os.kill(pid, signal.SIGSTOP)
    files.install(files.authority.issue("second"))
    server.until(lambda: "HTTP uses the TLS certificate that is now in" in server.log, "the new certificate")
    server.until(lambda: "serves again" in server.log or "has been replaced" in server.log, "another worker")
    server.until(lambda: pid not in processes(server) and len(processes(server)) == 3, "the end of the other")
    assert files.all_names(server) == {"second"}
    assert server.stop() == 0
