"""``--processes``: a model takes over the worker that it runs in. What that reports and sends harms no other worker."""

from typing import TYPE_CHECKING, Final

import httpx

from server_stub.tests.serve.test_processes import ask, connections, in_process, processes

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
