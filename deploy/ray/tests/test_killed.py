"""A replica that is killed: the rest answer, Ray starts another one, and models come there through their agents."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from deploy.ray.tests.kit import App, World, await_true

_MODELS = ("one", "two", "three")
_GONE = "the replica that had the request has ended before it answered"


@pytest.fixture
def app(world: World) -> App:
    if not world.names:
        for number, name in enumerate(_MODELS):
            world.model(name, 10.0 * number, {"copies": "yes"})
    return world.run(min_replicas=3, models_per_replica=3)


def test_the_rest_answer_and_the_models_come_back_through_their_agents(app: App, world: World) -> None:
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    over = threading.Event()

    def ask(start: int) -> None:
        turn = start
        while not over.is_set():
            model = _MODELS[turn % 3]
            answer = app.ask(model, float(turn))
            if answer.status_code == 200:
                expected = [turn + 10.0 * (turn % 3), turn + 1 + 10.0 * (turn % 3)]
                seen[model] += 1
                if answer.json()["outputs"][0]["data"] != expected:
                    wrong.append(answer.text)
            elif answer.status_code == 503 and _GONE in answer.text:
                seen["ended"] += 1
            else:
                wrong.append(f"{answer.status_code} {answer.text}")
            turn += 1

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for client in clients:
        client.start()
    try:
        await_true(lambda: all(seen[model] > 10 for model in _MODELS) or wrong, "answers of every model")
        before = app.processes()
        loading = {int(pid) for pid, _, action in world.calls() if action == "LOAD_COMPLETE"}
        victim = next(pid for pid in before if pid in loading)
        lost = {model for pid, model, action in world.calls() if int(pid) == victim and action == "LOAD_COMPLETE"}
        os.kill(victim, signal.SIGKILL)
        marks = Counter(seen)
        await_true(lambda: all(seen[model] > marks[model] + 20 for model in _MODELS) or wrong, "answers of the rest")
        await_true(lambda: len(set(app.processes()) - {victim}) == 3, "a replica in the place of the killed one")
        for model in lost:
            await_true(lambda model=model: app.ask(model).status_code == 200, "an answer")  # type: ignore[misc]
    finally:
        over.set()
        for client in clients:
            client.join()
    assert wrong == []
    alive = set(app.processes())
    again = {model for pid, model, action in world.calls() if int(pid) in alive and action == "LOAD_COMPLETE"}
    assert lost <= again, "loaded by their agents in a process that lives"
    assert seen["ended"] <= 4, "at most one request of each client was with the replica"


def test_a_load_whose_replica_is_killed_fails_and_the_next_one_succeeds(
    app: App, world: World, in_background: Callable[[Callable[[], Any]], Callable[[], Any]]
) -> None:
    gate = world.gate()
    world.model("gated", 1.0, {"gate": str(gate.port)})
    answer = in_background(lambda: app.ask("gated"))
    gate.reached()
    (victim,) = {int(pid) for pid, model, action in world.calls() if model == "gated" and action == "LOAD"}
    os.kill(victim, signal.SIGKILL)
    refused = answer()
    assert (refused.status_code, _GONE in refused.text) == (503, True), refused.text
    gate.close()
    await_true(lambda: len(set(app.processes()) - {victim}) == 3, "a replica in the place of the killed one")
    world.models.joinpath("gated/config.pbtxt").write_text('backend: "onnxruntime" max_batch_size: 4')
    assert app.ask("gated").json()["outputs"][0]["data"] == [2.0, 3.0]


def test_what_a_killed_replica_left_in_workspaces_goes_with_the_next_start(app: App, world: World) -> None:
    for name in _MODELS:
        assert app.ask(name).status_code == 200
    kept = world.owners()
    for pid in app.processes():
        os.kill(pid, signal.SIGKILL)
    await_true(lambda: len(set(app.processes()) - kept) == 3, "three replicas")
    await_true(lambda: httpx.get(f"{app.url}/v2/health/ready").status_code == 200, "a ready one")
    for name in _MODELS:
        await_true(lambda name=name: app.ask(name).status_code == 200, "an answer")  # type: ignore[misc]
    alive = set(app.processes())
    await_true(lambda: world.owners() <= alive, "only the workspaces of replicas that run")
