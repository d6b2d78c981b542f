"""Ray Serve's own autoscaler adds replicas by the length of their queues, and takes them away again."""

from collections.abc import Callable
from typing import Any

import httpx

from deploy.ray.tests.kit import PATIENCE, World, await_true
from deploy.ray.tests.test_hostile import _PORTS, _WAITS


def test_replicas_come_with_the_queue_and_go_without_it(
    world: World, in_background: Callable[[Callable[[], Any]], Callable[[], Any]]
) -> None:
    world.python("waits", _WAITS, _PORTS)
    app = world.run(min_replicas=1, max_replicas=3, target_ongoing_requests=1, upscale_delay_s=0, downscale_delay_s=1)
    gate = world.gate()
    ask = {"inputs": [{"name": "PORT", "datatype": "INT32", "shape": [1], "data": [gate.port]}]}
    assert len(app.processes()) == 1
    answers = [
        in_background(lambda: httpx.post(f"{app.url}/v2/models/waits/infer", json=ask, timeout=PATIENCE))
        for _ in range(6)
    ]
    gate.reached()
    await_true(lambda: len(app.processes()) == 3, "three replicas for six requests")
    gate.close()
    assert [answer().status_code in (200, 500) for answer in answers] == [True] * 6
    await_true(lambda: len(app.processes()) == 1, "one replica without requests")
