"""``--processes``: a model takes over the worker that it runs in. What that reports and sends harms no other worker."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx

from server_stub.tests.serve.test_processes import ask, connections, in_process, processes
from tests.extent import in_full

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World

TAKEN: Final = """
import gc, sys
from repoagent_server.processes.calls import Calls
from repoagent_server.processes.worker import WorkerCore
from repoagent_server.program.worker import Worker
def only(kind):
    return next(one for one in gc.get_objects() if type(one) is kind)
class TritonPythonModel:
    def initialize(self, args):
        core, calls, worker = map(only, (WorkerCore, Calls, Worker))
        LIE
    def execute(self, requests):
        return []
"""
HOME: Final = '\nparameters { key: "home" value { string_value: "one" } }\n'
"""A worker has it alone, so the others are honest."""

STATISTICS: Final = """
        honest = core.own_statistics
        def lie(name, version):
            (entry, *_) = honest("plain", "")["model_stats"]
            names = ["plain", "of another", *(f"name{n}" for n in range(1000))]
            entries = [{**entry, "name": name, "batch_stats": [], "mine": ["x"]} for name in names]
            return {"model_stats": entries}
        core.own_statistics = lie
"""
METRICS: Final = """
        page = "# HELP mine x\\n# TYPE mine gauge\\nmine 1.2.3\\nmine{a=\\"1\\",a=\\"2\\"} 1\\n"
        worker._calls._answers["page"] = lambda: page
"""

FLOOD: Final = """
        import os, threading, time
        def without_end(work):
            while True:
                work()
        def note():
            core.audit.note("denied", "denied", {"reason": "x" * 4000, "model": "m"})
            core.audit.record("load", "refused", {"model": "m", "error": "x" * 4000})
            calls.begin("audit", "load", "loaded", {"model": "forged"}, {})
            calls.begin("load", [1, {}, False], "none", None, None, None)
            calls.begin("audit")
            time.sleep(0.002)
        chatter = b"x" * (64 << 10)
        for work in (note, lambda: os.write(2, chatter) and time.sleep(0.01), lambda: calls.begin("metrics").result()):
            threading.Thread(target=without_end, args=(work,), daemon=True).start()
"""


def taken(world: "World", lie: str, *flags: str) -> "Server":
    """A server of three workers, of which one does what ``lie`` has it do."""
    if not (world.models / "taken").exists():
        in_process(world, "taken", "")
        with (world.models / "taken" / "config.pbtxt").open("a") as file:
            file.write(HOME)
    (world.models / "taken" / "1" / "model.py").write_text(TAKEN.replace("LIE", lie.strip()))
    return world.serve("--processes=3", "--load-model=plain", "--load-model=taken", *flags)


def test_statistics_of_all_workers_have_no_model_that_one_makes_up(world: "World") -> None:
    server = taken(world, STATISTICS, "--allow-grpc=false")
    with connections(server) as clients:
        assert {ask(one, "plain") for one in clients} == {200}
        for client in clients:
            found = client.get("/v2/models/stats").json()["model_stats"]
            assert {entry["name"] for entry in found} <= {"plain", "taken"}
            assert not any("mine" in entry for entry in found)
            assert found[0]["inference_count"] == len(clients)
    assert len(processes(server)) == 3
    assert server.stop() == 0


def test_a_page_of_metrics_has_no_line_that_collectors_refuse(world: "World") -> None:
    server = taken(world, METRICS, "--allow-metrics=true", "--metrics-port=0", "--allow-grpc=false")
    page = httpx.get(f"http://127.0.0.1:{server.port('metrics')}/metrics").text
    assert "# TYPE mine gauge" in page
    assert "nv_inference_count" in page
    assert "mine{" not in page
    assert server.stop() == 0


def test_floods_of_one_worker_take_neither_disk_nor_memory_of_the_keeper_without_end(
    world: "World", tmp_path: Path
) -> None:
    """Lines of the audit log, of the log, of its standard error, and pages of metrics, for some seconds."""
    audit, log = tmp_path / "audit", tmp_path / "log"
    flags = (f"--audit-log={audit}", f"--log-file={log}", "--allow-metrics=true", "--metrics-port=0")
    started = time.monotonic()
    server = taken(world, FLOOD, "--allow-grpc=false", *flags)
    began = time.monotonic()
    memory = [resident(server.process.pid)]
    with connections(server) as clients:
        while time.monotonic() < began + in_full(60, otherwise=3):
            assert {ask(one, "plain") for one in clients} == {200}
            assert clients[0].post("/v2/repository/index").status_code == 200
            memory.append(resident(server.process.pid))
        assert clients[0].post("/v2/repository/models/plain/load").status_code == 200
    assert server.stop() == 0, "the flood does not keep it from its end"
    seconds = time.monotonic() - started
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert len(lines) < 1000 + 300 * seconds, "a hundred notes, and a hundred loads, a second"
    assert not any(line["what"].get("model") == "forged" for line in lines)
    assert any(line["event"] == "load" and line["what"]["model"] == "plain" for line in lines)
    assert log.read_text().count("'audit' failed") == 1
    assert max(memory) - memory[0] < 100 << 20, memory


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
