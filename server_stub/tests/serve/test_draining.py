"""A server behind a balancer that goes on sending for a while after SIGTERM: nothing is lost."""

import signal
import threading
from collections import Counter
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from .conftest import Server, World

DELAY = 6
STILL_COME = 30
"""Requests, after the server is not ready any more. They take a small part of the delay, on a slow machine too."""


def test_while_it_drains_the_server_is_not_ready_and_loses_no_request(world: "World") -> None:
    server: Server = world.serve("--load-model=plain", f"--drain-delay={DELAY}")
    stop, outcomes = threading.Event(), Counter[int]()

    def ask() -> None:
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        while not stop.is_set():
            # A connection of its own for each request, as the first one after a failover has.
            with httpx.Client(base_url=server.http.base_url, timeout=60) as client:
                response = client.post("/v2/models/plain/infer", json={"inputs": [tensor]})
            outcomes[response.status_code] += 1

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    assert server.http.get("/v2/health/ready").status_code == 200
    server.process.send_signal(signal.SIGTERM)
    server.until(lambda: server.http.get("/v2/health/ready").status_code == 400, "not ready")
    enough = outcomes.total() + STILL_COME
    server.until(lambda: outcomes.total() >= enough, "the balancer to notice")
    stop.set()
    for client in clients:
        client.join()
    assert set(outcomes) == {200}
    assert server.http.get("/v2/health/live").status_code == 200
    assert server.process.wait(60) == 0


def test_a_second_signal_ends_the_delay_and_a_third_one_the_process(world: "World") -> None:
    """L19: a second signal skipped the last calls of agents; difference 47."""
    gate = world.gate()
    world.agent("agent")
    world.model("kept", [("agent", {"block": f"UNLOAD {gate.port}"})])
    server: Server = world.serve("--drain-delay=3600", "--load-model=kept")
    server.process.send_signal(signal.SIGTERM)
    server.until(lambda: server.http.get("/v2/health/ready").status_code == 400, "not ready")
    server.process.send_signal(signal.SIGTERM)
    gate.reached()
    assert "a third signal ends the server without" in server.log
    gate.open()
    assert server.ended() == 0
    assert world.calls("kept")[-3:] == ["agent UNLOAD", "agent UNLOAD_COMPLETE", "agent model_finalize"]
    server = world.serve("--load-model=kept")
    server.process.send_signal(signal.SIGTERM)
    gate.reached()
    for _ in range(2):
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: server.process.poll() is not None or server.log.count("Signal (15)") > 1, "the second")
    assert server.ended() == 1


def test_variables_and_ready_models_from_the_command_line(world: "World") -> None:
    model = world.model("first", operation="Neg")
    config = model / "config.pbtxt"
    config.write_text(config.read_text() + '\nparameters { key: "stage" value { string_value: "${HOME}" } }\n')
    flags = ("--model-load-on-demand", "--ready-models=plain", "--allow-config-variables=HOME")
    server: Server = world.serve(*flags)
    assert server.http.get("/v2/health/ready").status_code == 400
    assert server.answer("plain") == [1, -2, 3, -4]
    assert server.http.get("/v2/health/ready").status_code == 200
    assert server.answer("first") == [1, -2, 3, -4]
    assert server.http.get("/v2/models/first/config").json()["parameters"]["stage"]["string_value"].startswith("/")
    assert server.stop() == 0


def test_idle_models_are_unloaded(world: "World") -> None:
    server: Server = world.serve("--model-load-on-demand", "--unload-idle-after=1")
    assert server.answer("plain") == [1, -2, 3, -4]
    server.until(lambda: "READY" not in {entry.get("state") for entry in server.index().values()}, "all are idle")
    assert server.stop() == 0
