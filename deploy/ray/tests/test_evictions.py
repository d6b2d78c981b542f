"""Twenty models over two replicas with room for three each: evictions, no wrong answer, nothing left behind."""

import random
import threading
from collections import Counter
from pathlib import Path

import pytest
import tritonclient.grpc
import tritonclient.http

from deploy.ray.tests.kit import App, World, await_true, tensor

_MODELS = 20
_ROOM = 3
_ROUNDS = 60


@pytest.fixture(scope="module")
def app(world: World) -> App:
    for number in range(_MODELS):
        world.model(f"m{number}", 100.0 * number, {"copies": "yes"})
    return world.run(min_replicas=2, ingress_replicas=2, models_per_replica=_ROOM)


def _ask_all(app: App, seed: int, wrong: list[str]) -> None:
    """Ask models in a random order, over one protocol."""
    order = random.Random(seed)
    kind = (tritonclient.http, tritonclient.grpc)[seed % 2]
    with app.http() if kind is tritonclient.http else app.grpc() as client:
        for turn in range(_ROUNDS):
            number = order.randrange(_MODELS)
            try:
                found = client.infer(f"m{number}", [tensor(kind, turn)]).as_numpy("Y").tolist()
            except Exception as error:
                wrong.append(f"m{number}: {error!r}")
                continue
            if found != [[turn + 100.0 * number, turn + 1 + 100.0 * number]]:
                wrong.append(f"m{number}: {found}")


def _balance(world: World) -> Counter[str]:
    """By process and model: how often it was loaded and has not been unloaded."""
    found: Counter[str] = Counter()
    for pid, model, action in world.calls():
        found[f"{pid} {model}"] += {"LOAD_COMPLETE": 1, "UNLOAD": -1}.get(action, 0)
    return +found


def _memory(pids: list[int]) -> int:
    """Bytes that the processes have in memory."""
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 for pid in pids)


def _threads(pids: list[int]) -> int:
    return sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids)


def test_no_answer_is_wrong_and_no_replica_has_more_than_its_room(app: App, world: World) -> None:
    wrong: list[str] = []
    clients = [threading.Thread(target=_ask_all, args=(app, seed, wrong)) for seed in range(4)]
    for client in clients:
        client.start()
    most = 0
    while any(client.is_alive() for client in clients):
        most = max(most, *(len(loaded) for loaded in app.loaded()))
    assert wrong == []
    assert most == _ROOM, "never more than there is room for"
    unloads = sum(action == "UNLOAD" for _, _, action in world.calls())
    assert unloads > _MODELS, "models made room for each other"
    assert sum(_balance(world).values()) == sum(len(loaded) for loaded in app.loaded())


def test_nothing_stays_behind(app: App, world: World) -> None:
    wrong: list[str] = []
    pids = app.processes()
    _ask_all(app, 10, wrong)  # what is made once is there now
    _ask_all(app, 11, wrong)
    memory, threads = _memory(pids), _threads(pids)
    for seed in range(12, 18):
        _ask_all(app, seed, wrong)
    assert wrong == []
    assert app.processes() == pids
    assert len(world.left_in_workspaces()) == sum(len(loaded) for loaded in app.loaded())
    assert _threads(pids) <= threads + 4
    grown = (_memory(pids) - memory) / 2**20
    print(f"memory of two replicas: {memory / 2**20:.0f} MiB, {grown:+.1f} MiB after {6 * _ROUNDS} more requests")
    assert grown < 60


def test_the_end_unloads_everything_through_the_agents(app: App, world: World) -> None:
    pids = app.processes()
    world.delete()
    await_true(lambda: not set(app.processes()) & set(pids), "the end of the replicas")
    assert not _balance(world)
    assert world.left_in_workspaces() == []
