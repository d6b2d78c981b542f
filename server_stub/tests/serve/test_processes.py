"""``--processes``: one keeper, several workers. Real servers, real connections, real kills."""

import hashlib
import json
import os
import select
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from server_stub.tests.serve.conftest import PROGRAM
from tests.extent import in_full
from tests.processes import children, runs
from tests.warm import worker_name

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World

WORKERS = 3
CONNECTIONS = 24
SECRET = "KEY-THAT-ONLY-THE-KEEPER-HAS"
IN_PROCESS = """
import os
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        if os.path.exists({trap!r}):
            os.kill(os.getpid(), 9)
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(r, "X")]) for r in requests]
"""


DUMPABLE = """
import ctypes
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        dumpable = np.full((1, 1), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("X", dumpable)]) for _ in requests]
"""


INTERVAL = """
import sys
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        interval = np.full((1, 1), sys.getswitchinterval(), np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("X", interval)]) for _ in requests]
"""


def in_process(world: "World", name: str, code: str) -> None:
    """Write a Python model that runs in the worker itself."""
    (world.models / name / "1").mkdir(parents=True)
    (world.models / name / "1" / "model.py").write_text(code)
    tensor = '{ name: "X" data_type: TYPE_FP32 dims: [-1, -1] }'
    (world.models / name / "config.pbtxt").write_text(
        f'backend: "python"\ninput {tensor}\noutput {tensor}\n'
        'parameters { key: "EXECUTION" value { string_value: "in-process" } }\n'
    )


def processes(server: "Server") -> list[int]:
    """The workers of ``server``."""
    keeper = server.process.pid
    forked = {int(file.parent.name) for file in Path("/proc").glob("[0-9]*/comm") if _read(file) == worker_name(keeper)}
    started = {pid for pid in children(keeper) if "program.worker" in _read(Path(f"/proc/{pid}/cmdline"))}
    return sorted(filter(runs, forked | started))


def _read(file: Path) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return file.read_text().rstrip()
    return ""


@contextmanager
def connections(server: "Server") -> Iterator[list[httpx.Client]]:
    """So many connections that every worker has some: the kernel deals them out."""
    made = [httpx.Client(base_url=server.http.base_url, timeout=60) for _ in range(CONNECTIONS)]
    try:
        yield made
    finally:
        for one in made:
            one.close()


def ask(client: httpx.Client, model: str) -> int:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [-1, 2, -3, 4]}
    return client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]}).status_code


@pytest.fixture(scope="module")
def server(world: "World") -> "Server":
    world.agent("agent")
    world.model("secret", [("agent", {"copy": "LOAD confidential"})])
    world.model("refused", [("agent", {"raise": "LOAD"})])
    return world.serve(f"--processes={WORKERS}", "--load-model=plain", env={"SOME_KEY": SECRET}, program=PROGRAM)


def test_every_worker_answers_and_counts(server: "Server") -> None:
    with connections(server) as clients:
        assert {ask(client, "plain") for client in clients} == {200}
    (entry,) = server.http.get("/v2/models/plain/stats").json()["model_stats"]
    assert entry["inference_count"] == CONNECTIONS


def test_agents_run_once_and_all_workers_show_the_model_at_once(server: "Server", world: "World") -> None:
    with connections(server) as clients:
        assert {ask(client, "secret") for client in clients} == {404}
        assert server.load("secret").status_code == 200
        assert {ask(client, "secret") for client in clients} == {200}
        assert world.calls("secret") == ["agent model_initialize", "agent LOAD", "agent LOAD_COMPLETE"]
        assert server.unload("secret").status_code == 200
        assert {client.get("/v2/models/secret/ready").status_code for client in clients} == {400}
    assert world.calls("secret")[3:] == ["agent UNLOAD", "agent UNLOAD_COMPLETE", "agent model_finalize"]


def test_a_refused_load_leaves_nothing_in_any_worker(server: "Server") -> None:
    answer = server.load("refused")
    assert answer.status_code == 500
    assert "agent" in answer.text
    with connections(server) as clients:
        assert {ask(client, "refused") for client in clients} == {404}


def test_a_worker_that_hangs_is_replaced(world: "World") -> None:
    server = world.serve("--processes=2", "--limit-worker-silence-seconds=1", "--load-model=plain")
    before = processes(server)
    os.kill(before[0], signal.SIGSTOP)
    server.until(lambda: "serves again" in server.log, "another worker")
    assert "it has done nothing for 1 seconds" in server.log
    after = processes(server)
    assert len(after) == 2
    assert set(after) & set(before) == {before[1]}
    with connections(server) as clients:
        assert {ask(client, "plain") for client in clients} == {200}


def test_a_worker_has_no_key_in_its_environment(server: "Server") -> None:
    workers = processes(server)
    assert len(workers) == WORKERS
    assert SECRET.encode() in Path(f"/proc/{server.process.pid}/environ").read_bytes()
    for pid in workers:
        assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_no_socket_of_a_worker_goes_to_the_programs_that_it_starts(server: "Server") -> None:
    """A library of a model may start some without closing anything: they would take connections, or calls."""
    for worker in processes(server):
        sockets = [one for one in Path(f"/proc/{worker}/fd").iterdir() if "socket" in os.readlink(one)]
        flags = [Path(f"/proc/{worker}/fdinfo/{one.name}").read_text().split("flags:")[1].split()[0] for one in sockets]
        assert len(flags) > 3
        assert all(int(one, 8) & os.O_CLOEXEC for one in flags)


def test_the_signal_to_replace_workers_does_not_end_one_that_gets_it_itself(server: "Server") -> None:
    """As with "systemctl kill", which signals all processes of a service."""
    before = processes(server)
    for worker in before:
        os.kill(worker, signal.SIGUSR2)
    with connections(server) as clients:
        assert {ask(client, "plain") for client in clients} == {200}
    assert processes(server) == before


def test_settings_are_changed_in_all_workers_and_in_those_that_come(world: "World") -> None:
    audit, trace = world.root / "audited", world.root / "trace"
    flags = f"--audit-log={audit}", f"--trace-config=triton,file={trace}", "--trace-config=rate=1"
    server = world.serve("--processes=2", "--load-model=plain", *flags)

    def found(client: httpx.Client) -> tuple[Any, ...]:
        log, traces = client.get("/v2/logging").json(), client.get("/v2/models/plain/trace/setting").json()
        return log["log_verbose_level"], log["log_warning"], traces["trace_level"], traces["trace_file"]

    with connections(server) as clients:
        assert clients[0].post("/v2/logging", json={"log_verbose_level": 1}).status_code == 200
        assert clients[1].post("/v2/logging", json={"log_warning": False}).status_code == 200
        levels = {"trace_level": ["TIMESTAMPS"]}
        assert clients[2].post("/v2/models/plain/trace/setting", json=levels).status_code == 200
        changed = (1, False, ["TIMESTAMPS"], str(trace))
        assert [found(client) for client in clients] == [changed] * len(clients)
        assert clients[3].post("/v2/trace/setting", json={"trace_rate": "no"}).status_code == 400
        assert clients[4].post("/v2/trace/setting", json={"trace_file": "/x"}).status_code == 501
    lines = [line for line in map(json.loads, audit.read_text().splitlines()) if line["event"] == "settings"]
    assert [line["what"]["setting"] for line in lines] == ["log", "log", "trace"]
    os.kill(processes(server)[0], signal.SIGKILL)
    server.until(lambda: "serves again" in server.log, "another worker")
    with connections(server) as clients:
        assert [found(client) for client in clients] == [changed] * len(clients)
        assert {ask(client, "plain") for client in clients} == {200}
    assert server.stop() == 0
    assert all("REQUEST_START" in (world.root / f"trace-{index}").read_text() for index in range(2))


def test_a_count_of_traces_is_one_for_all_workers(world: "World") -> None:
    """Each worker had one of its own."""
    trace = world.root / "counted"
    flags = f"--trace-config=triton,file={trace}", "--trace-config=rate=1", "--trace-config=count=20"
    server = world.serve("--processes=2", "--load-model=plain", *flags, "--trace-config=level=TIMESTAMPS")
    with connections(server) as clients:
        assert [ask(client, "plain") for client in clients * 3] == [200] * 3 * CONNECTIONS
        assert clients[0].post("/v2/models/plain/trace/setting", json={"trace_count": "3"}).status_code == 200
        assert [ask(client, "plain") for client in clients * 3] == [200] * 3 * CONNECTIONS
    assert server.stop() == 0
    traced = sum(path.read_text().count("REQUEST_START") for path in world.root.glob("counted-*"))
    assert traced == 20 + 3


def test_shared_memory_is_registered_in_all_workers_or_in_none(world: "World") -> None:
    server = world.serve("--processes=2", "--load-model=plain", "--allow-client-shm=true")
    memory = SharedMemory(create=True, size=64)
    try:
        assert memory.buf is not None
        memory.buf[:16] = np.array([-1, 2, -3, 4], np.float32).tobytes()
        place = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "parameters": place}

        def asked(client: httpx.Client) -> int:
            return client.post("/v2/models/plain/infer", json={"inputs": [tensor]}).status_code

        region = {"key": memory.name, "offset": 0, "byte_size": 64}
        path = "/v2/systemsharedmemory/region/r"
        with connections(server) as clients:
            assert clients[0].post(f"{path}/register", json=region).status_code == 200
            assert {asked(client) for client in clients} == {200}
            assert {client.post(f"{path}/register", json=region).status_code for client in clients} == {400}
            assert {asked(client) for client in clients} == {200}
        os.kill(processes(server)[0], signal.SIGKILL)
        server.until(lambda: "serves again" in server.log, "another worker")
        with connections(server) as clients:
            assert {asked(client) for client in clients} == {200}
            assert clients[0].post(f"{path}/unregister").status_code == 200
            assert {client.get("/v2/systemsharedmemory/status").text for client in clients} == {"[]"}
        assert server.stop() == 0
    finally:
        memory.close()
        memory.unlink()


def test_a_worker_that_is_killed_takes_nothing_with_it(server: "Server", world: "World") -> None:
    """Also a model whose plaintext has been wiped: its agents bring it again."""
    assert server.load("secret").status_code == 200
    calls = len(world.calls("secret"))
    victim = processes(server)[0]
    os.kill(victim, signal.SIGKILL)
    server.until(lambda: "serves again" in server.log, "another worker")
    assert len(processes(server)) == WORKERS
    assert victim not in processes(server)
    with connections(server) as clients:
        assert {ask(client, model) for client in clients for model in ("plain", "secret")} == {200}
    assert world.calls("secret")[calls:].count("agent LOAD") <= 1
    assert server.unload("secret").status_code == 200


def test_what_a_new_worker_cannot_load_is_503_there_and_tried_until_it_is_back(world: "World") -> None:
    directory = world.model("gone", [("agent", {"copy": "LOAD confidential"})])
    server = world.serve("--processes=2", "--load-model=gone")
    hidden = directory.rename(world.root / "hidden")
    os.kill(processes(server)[0], signal.SIGKILL)
    server.until(lambda: "serves again" in server.log, "another worker")
    with connections(server) as clients:
        assert {ask(client, "gone") for client in clients} == {200, 503}
        assert {client.get("/v2/models/gone/stats").status_code for client in clients} == {200}
        hidden.rename(directory)
        server.until(lambda: {ask(client, "gone") for client in clients} == {200}, "the model in all workers")


def test_a_load_while_a_worker_is_started_waits_for_it(world: "World") -> None:
    world.model("other")
    server = world.serve("--processes=2", "--load-model=plain")
    os.kill(processes(server)[0], signal.SIGKILL)
    server.until(lambda: "has ended" in server.log and len(processes(server)) == 2, "another worker's start")
    with connections(server) as clients:
        assert clients[0].get("/v2/models/plain/stats").status_code == 200
        assert clients[0].post("/v2/repository/models/other/load").status_code == 200
        assert {ask(client, "other") for client in clients} == {200}


def test_a_worker_that_is_started_again_has_the_ensembles(world: "World") -> None:
    world.model("member")
    (world.models / "ensemble" / "1").mkdir(parents=True)
    (world.models / "ensemble" / "config.pbtxt").write_text(
        'platform: "ensemble"\ninput { name: "X" data_type: TYPE_FP32 dims: [-1, 4] }\n'
        'output { name: "Y" data_type: TYPE_FP32 dims: [-1, 4] }\n'
        'ensemble_scheduling { step { model_name: "member" model_version: -1\n'
        'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }\n'
    )
    server = world.serve("--processes=2", "--load-model=ensemble")
    os.kill(processes(server)[0], signal.SIGKILL)
    server.until(lambda: "serves again" in server.log, "another worker")
    with connections(server) as clients:
        assert {ask(client, "ensemble") for client in clients} == {200}


def test_sighup_has_all_workers_go_on_in_a_new_request_log(world: "World") -> None:
    log = world.root / "requests"
    server = world.serve("--processes=2", "--load-model=plain", f"--request-log={log}")
    with connections(server) as clients:
        assert {ask(client, "plain") for client in clients} == {200}
        server.until(lambda: log.read_text().count("\n") == CONNECTIONS, "a line of each connection")
        log.rename(world.root / "requests.1")
        server.process.send_signal(signal.SIGHUP)
        server.until(lambda: ask(clients[0], "plain") == 200 and log.exists(), "the new file")
    assert server.stop() == 0


def test_a_worker_that_hangs_does_not_hold_up_the_stop(world: "World") -> None:
    server = world.serve("--processes=2", "--load-model=plain", "--exit-timeout-secs=5")
    os.kill(processes(server)[0], signal.SIGSTOP)
    server.process.terminate()
    assert server.process.wait(25) == 0
    assert "does not answer 'refuse'" in server.log


def test_a_model_that_kills_workers_is_taken_out(world: "World") -> None:
    trap = world.root / "trap"
    in_process(world, "deadly", IN_PROCESS.format(trap=str(trap)))
    server = world.serve("--processes=2", "--load-model=plain", "--load-model=deadly")
    assert ask(server.http, "deadly") == 200
    trap.touch()
    os.kill(processes(server)[0], signal.SIGKILL)
    server.until(lambda: "serves again" in server.log, "a worker without the deadly model")
    entry = server.index()["deadly"]
    assert entry["state"] == "UNAVAILABLE"
    assert "3 workers in a row have died" in entry["reason"]
    with connections(server) as clients:
        assert {ask(client, "plain") for client in clients} == {200}
    assert server.stop() == 0


def test_no_worker_writes_a_core_dump(world: "World") -> None:
    """Nor may a debugger of the same user look into it: it holds the plaintext of confidential models."""
    in_process(world, "dumpable", DUMPABLE)
    for flag, expected in (("false", 0.0), ("true", 1.0)):
        server = world.serve("--processes=2", f"--allow-core-dumps={flag}", "--load-model=dumpable")
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [0]}
        with connections(server) as clients:
            answers = [client.post("/v2/models/dumpable/infer", json={"inputs": [tensor]}).json() for client in clients]
        assert {answer["outputs"][0]["data"][0] for answer in answers} == {expected}
        assert server.stop() == 0


def test_event_loops_take_turns_with_each_other_quickly(world: "World") -> None:
    in_process(world, "interval", INTERVAL)
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [0]}
    for count in (1, 2):
        server = world.serve(f"--processes={count}", "--load-model=interval")
        with connections(server) as clients:
            answers = [client.post("/v2/models/interval/infer", json={"inputs": [tensor]}).json() for client in clients]
        assert all(answer["outputs"][0]["data"][0] == pytest.approx(0.001) for answer in answers)
        assert server.stop() == 0


def test_workers_end_with_the_keeper(world: "World") -> None:
    server = world.serve("--processes=2", "--load-model=plain")
    workers = processes(server)
    server.process.kill()
    server.process.wait()
    for pid in workers:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([descriptor], [], [], 30)[0]
        finally:
            os.close(descriptor)


def test_a_port_in_use_is_one_error(world: "World", server: "Server") -> None:
    port = server.port("http")
    second = world.start("--processes=2", f"--http-port={port}")
    assert second.ended() == 1
    assert f"127.0.0.1:{port}" in second.log


def test_other_servers_share_the_port_where_the_operator_allows_it(world: "World") -> None:
    flags = "--processes=2", "--load-model=plain", "--reuse-http-port=true"
    first = world.serve(*flags)
    second = world.serve(*flags, f"--http-port={first.port('http')}")
    assert second.port("http") == first.port("http")
    assert first.stop() == 0
    with connections(second) as clients:
        assert {ask(client, "plain") for client in clients} == {200}


def test_rights_are_checked_in_workers_and_recorded_once(world: "World") -> None:
    access, audit = world.root / "access.toml", world.root / "audit"

    rights = {"manager": '["infer", "manage"]', "user": '["infer"]'}

    def write(*names: str) -> None:
        tables = [
            f'[clients.{name}]\nkeys = ["sha256:{hashlib.sha256(name.encode()).hexdigest()}"]\n'
            f'models = ["*"]\nrights = {rights[name]}\n'
            for name in names
        ]
        access.write_text("".join(tables))

    def recorded(event: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, audit.read_text().splitlines()) if line["event"] == event]

    write("manager", "user")
    server = world.serve("--processes=2", f"--access={access}", f"--audit-log={audit}", "--allow-grpc=false")
    with connections(server) as clients:
        load = "/v2/repository/models/plain/load"
        assert {client.post(load, headers={"x-api-key": "user"}).status_code for client in clients} == {403}
        assert not recorded("load")
        assert server.http.post(load, headers={"x-api-key": "manager"}).status_code == 200
        assert recorded("load")[-1]["who"]["client"] == "manager"
        server.until(lambda: bool(recorded("denied")), "what was denied")
        write("user")
        server.until(lambda: bool(recorded("settings")), "the change of the file")
        assert {c.post(load, headers={"x-api-key": "manager"}).status_code for c in clients} == {401}
    assert server.stop() == 0
    (change,) = recorded("settings")
    assert (change["what"]["setting"], change["what"]["clients"]) == ("access", 1)


def test_a_stop_under_load_loses_no_request(world: "World") -> None:
    server = world.serve("--processes=2", "--load-model=plain")
    with connections(server) as clients:
        assert {ask(client, "plain") for client in clients} == {200}
        assert server.stop() == 0
    assert "All models are unloaded" in server.log


def _restarts_or_end(server: "Server", before: int, found: Counter[str], total: int) -> bool:
    return server.log.count("serves again") > before or found.total() >= total


@pytest.mark.timeout(in_full(3600, otherwise=300))
def test_while_workers_are_killed_each_request_gets_one_right_answer_or_none(world: "World") -> None:
    """A connection that ends, or a 503, is none. Loads meanwhile are all or nothing."""
    world.model("loaded")
    server = world.serve("--processes=3", "--load-model=plain", "--allow-grpc=false")
    total, found, over = in_full(100_000, otherwise=1_000), Counter[str](), threading.Event()

    def client() -> None:
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [-1, 2, -3, 4]}
        while not over.is_set() and found.total() < total:
            with httpx.Client(base_url=server.http.base_url, timeout=60) as one:
                with suppress(httpx.HTTPError):
                    while not over.is_set() and found.total() < total:
                        answer = one.post("/v2/models/plain/infer", json={"inputs": [tensor]})
                        right = answer.status_code == 200 and answer.json()["outputs"][0]["data"] == [1, -2, 3, -4]
                        found["right" if right else str(answer.status_code)] += 1
                    continue
                found["none"] += 1

    def load() -> None:
        while not over.is_set():
            with suppress(httpx.HTTPError):
                for action in ("load", "unload"):
                    httpx.post(f"{server.http.base_url}/v2/repository/models/loaded/{action}", timeout=60)

    threads = [threading.Thread(target=work) for work in (client, client, client, client, load)]
    for thread in threads:
        thread.start()
    kills = 0
    try:
        while found.total() < total:
            workers = processes(server)
            os.kill(workers[kills % len(workers)], signal.SIGKILL)
            kills += 1
            again = partial(_restarts_or_end, server, server.log.count("serves again"), found, total)
            server.until(again, "another worker")
    finally:
        over.set()
    for thread in threads:
        thread.join(60)
    assert set(found) <= {"right", "none", "503"}, found
    assert found["right"] > total // 2
    server.until(lambda: len(processes(server)) == 3, "all workers")
    assert server.load("loaded").status_code == 200
    with connections(server) as clients:
        server.until(lambda: {ask(one, "loaded") for one in clients} == {200}, "the model in all workers")
    assert server.stop() == 0


def test_a_model_is_loaded_on_demand_once_for_all_workers_and_makes_room(world: "World") -> None:
    world.agent("agent")
    paths = [world.model("wanted", [("agent", {})]), world.model("other")]
    sizes = [sum(one.stat().st_size for one in path.rglob("*") if one.is_file()) for path in paths]
    flags = "--model-load-on-demand", f"--model-memory-budget-bytes={max(sizes) + min(sizes) // 2}"
    server = world.serve("--processes=2", *flags, "--allow-grpc=false")
    with connections(server) as clients, ThreadPoolExecutor(CONNECTIONS) as pool:
        assert {client.get("/v2/models/wanted/ready").status_code for client in clients} == {400}
        assert set(pool.map(ask, clients, ["wanted"] * CONNECTIONS)) == {200}
        assert world.calls("wanted") == ["agent model_initialize", "agent LOAD", "agent LOAD_COMPLETE"]
        assert {ask(client, "nosuch") for client in clients} == {404}
        server.until(lambda: ask(clients[0], "other") == 200, "room for the other model")
        assert {ask(client, "other") for client in clients} == {200}
        assert server.index()["wanted"]["state"] == "UNAVAILABLE"
        server.until(lambda: ask(clients[-1], "wanted") == 200, "room for the first one again")
    assert server.stop() == 0


def test_loads_on_demand_are_of_the_rights_of_the_client_whose_request_it_is(world: "World") -> None:
    """One who may not use a step of an ensemble does not have it loaded; its refusal is no one else's."""
    world.model("member")
    maps = 'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }'
    tensor = "data_type: TYPE_FP32 dims: [-1, 4]"
    (world.models / "whole" / "1").mkdir(parents=True)
    (world.models / "whole" / "config.pbtxt").write_text(
        f'platform: "ensemble"\ninput {{ name: "X" {tensor} }}\noutput {{ name: "Y" {tensor} }}\n'
        f'ensemble_scheduling {{ step {{ model_name: "member" model_version: -1 {maps} }} }}\n'
    )
    access, audit = world.root / "steps.toml", world.root / "steps-audit"
    models = {"all": '["*"]', "part": '["whole"]'}
    access.write_text(
        "".join(
            f'[clients.{name}]\nkeys = ["sha256:{hashlib.sha256(name.encode()).hexdigest()}"]\n'
            f'models = {of}\nrights = ["infer"]\n'
            for name, of in models.items()
        )
    )
    flags = "--model-load-on-demand", f"--access={access}", f"--audit-log={audit}", "--allow-grpc=false"
    server = world.serve("--processes=2", *flags)
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [-1, 2, -3, 4]}]}

    def infer(client: httpx.Client, key: str) -> httpx.Response:
        return client.post("/v2/models/whole/infer", json=body, headers={"x-api-key": key})

    with connections(server) as clients:
        for client in clients:
            refused = infer(client, "part")
            assert refused.status_code == 400
            assert "client 'part' lacks the right 'infer'" in refused.text
        assert {infer(client, "all").status_code for client in clients} == {200}
    assert server.stop() == 0
    lines = map(json.loads, audit.read_text().splitlines())
    made = [one for one in lines if one["event"] == "load" and one["what"]["model"] == "whole"]
    found = [(one["who"]["by"], one["who"]["client"], one["result"]) for one in made if one["result"] != "started"]
    *failed, loaded = found
    assert loaded == ("on-demand", "all", "loaded")
    assert set(failed) == {("on-demand", "part", "failed")}
    assert len(failed) <= 2  # Once for each worker: the chain does not run again for who may not have it loaded.
