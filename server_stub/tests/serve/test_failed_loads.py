"""Loads and reloads that fail in an agent, in the backend, or for lack of room."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from server_stub.tests.serve.conftest import PROCESSES

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World
MODEL_LOADS = ["agent model_initialize", "agent LOAD"]
HEARS_FAIL = ["agent LOAD_FAIL", "agent model_finalize"]


@pytest.fixture(scope="module")
def server(world: "World") -> "Server":
    world.agent("agent")
    return world.serve("--load-model=plain")


@contextmanager
def traffic(server: "Server", model: str) -> Iterator[list[httpx.Response]]:
    """Ask ``model`` again and again, on threads, from before the block until after it."""
    answers: list[httpx.Response] = []
    done = threading.Event()
    flowing = threading.Barrier(3)

    def ask() -> None:
        answers.append(server.ask(model))
        flowing.wait(60)
        while not done.is_set():
            answers.append(server.ask(model))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        flowing.wait(60)
        yield answers
    finally:
        done.set()
        for thread in threads:
            thread.join(60)


def test_a_file_that_is_no_model_is_a_400_with_the_reason_in_the_index_and_load_fail(
    world: "World", server: "Server"
) -> None:
    (world.model("broken", [("agent", {"copy": "LOAD disk"})]) / "1" / "model.onnx").write_bytes(b"no ONNX at all")
    reply = server.load("broken")
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert error.startswith("load failed for model 'broken': version 1 is at UNAVAILABLE state: ")
    assert error.endswith(";\n")
    entry = server.index()["broken"]
    assert (entry["version"], entry["state"]) == ("1", "UNAVAILABLE")
    assert entry["reason"] in error
    assert world.calls("broken") == MODEL_LOADS + HEARS_FAIL
    assert world.leftovers(server) == []
    assert server.answer("plain") == [1, -2, 3, -4]


def test_a_model_that_is_repaired_can_be_loaded(world: "World", server: "Server") -> None:
    (world.model("repaired") / "1" / "model.onnx").write_bytes(b"no ONNX at all")
    assert server.load("repaired").status_code == 400
    world.model("repaired")
    assert server.load("repaired").status_code == 200
    assert server.answer("repaired") == [1, -2, 3, -4]


@pytest.mark.parametrize("fault", ["agent", "backend", "config", "gone"])
def test_a_reload_that_fails_leaves_the_old_one_answering_under_traffic(
    world: "World", server: "Server", fault: str
) -> None:
    model = f"reload-{fault}"
    directory = world.model(model, [("agent", {"copy": "LOAD disk"})])
    assert server.load(model).status_code == 200
    with traffic(server, model) as answers:
        if fault == "agent":
            world.configure(model, [("agent", {"raise": "LOAD"})])
        elif fault == "backend":
            (directory / "1" / "model.onnx").write_bytes(b"no ONNX at all")
        elif fault == "config":
            (directory / "config.pbtxt").write_text('backend: "onnxruntime" max_batch_size: }')
        else:
            shutil.rmtree(directory)
        for _ in range(3):
            reply = server.load(model)
            assert reply.status_code == (400 if fault == "backend" else 500), reply.text
            assert server.index()[model]["state"] == "READY"
    assert {response.status_code for response in answers} == {200}
    assert server.answer(model) == [1, -2, 3, -4]
    assert server.unload(model).status_code == 200
    assert world.calls(model)[-3:] == ["agent UNLOAD", "agent UNLOAD_COMPLETE", "agent model_finalize"]
    assert world.calls(model).count("agent LOAD_FAIL") == (3 if fault in ("agent", "backend") else 0)
    assert world.leftovers(server) == []


def test_a_reload_under_traffic_loses_no_request(world: "World", server: "Server") -> None:
    world.model("replaced", [("agent", {"copy": "LOAD disk"})])
    assert server.load("replaced").status_code == 200
    with traffic(server, "replaced") as answers:
        for operation in ("Abs", "Neg", "Abs"):
            world.model("replaced", [("agent", {"copy": "LOAD disk"})], operation=operation)
            assert server.load("replaced").status_code == 200
            assert server.answer("replaced") == ([1, 2, 3, 4] if operation == "Abs" else [1, -2, 3, -4])
    assert {response.status_code for response in answers} == {200}
    assert world.calls("replaced").count("agent UNLOAD") == 3
    assert server.unload("replaced").status_code == 200
    assert world.leftovers(server) == []


def test_a_size_that_no_tmpfs_has_is_refused_and_nothing_is_left(world: "World", server: "Server") -> None:
    world.model("huge", [("agent", {"reserve": f"LOAD {1 << 60}"})])
    reply = server.load("huge")
    assert reply.status_code == 500
    assert "agent 'agent': " in reply.json()["error"]
    assert str(1 << 60) in reply.json()["error"]
    assert server.index()["huge"]["reason"] in reply.json()["error"]
    assert world.calls("huge") == MODEL_LOADS + HEARS_FAIL
    assert world.leftovers(server) == []


def _may_mount() -> bool:
    unshare = shutil.which("unshare")
    probe = [unshare or "", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"]
    return unshare is not None and subprocess.run(probe, capture_output=True).returncode == 0


def test_a_tmpfs_that_fills_up_refuses_the_load_and_the_next_one_has_the_room(world: "World") -> None:
    if not _may_mount():
        pytest.skip("a mount namespace of its own is needed (root, unshare)")
    world.agent("agent")
    world.model("fills", [("agent", {"fill": f"LOAD {2 << 20}"})])
    world.model("fits", [("agent", {"copy": "LOAD confidential"})])
    small = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    # Over the one that hides the directory of this world.
    flags = ("--load-model=plain", "--confidential-directory=/dev/shm")
    server = world.serve(*flags, before=["unshare", "-m", "sh", "-c", small, "sh"])
    for _ in range(2):
        reply = server.load("fills")
        assert reply.status_code == 500
        assert "No space left on device" in reply.json()["error"]
        memory = Path(f"/proc/{server.process.pid}/root/dev/shm")
        assert [path.name for path in memory.rglob("large")] == []
        assert server.load("fits").status_code == 200
        assert server.answer("fits") == [1, -2, 3, -4]
        assert server.unload("fits").status_code == 200
        assert [path.name for path in memory.rglob("planted")] == []
    assert server.answer("plain") == [1, -2, 3, -4]
    assert server.stop() == 0


@pytest.mark.skipif(bool(PROCESSES), reason="metrics have the label process")
def test_a_workspace_that_is_removed_under_the_server_is_made_again_and_the_metric_tells_if_it_cannot(
    world: "World",
) -> None:
    """L17: a cleaner of /tmp must not end all later loads."""
    world.agent("agent")
    for name in ("first", "second"):
        world.model(name, [("agent", {"copy": "LOAD disk"})])
    server = world.serve("--allow-metrics=true", "--metrics-port=0")

    def usable() -> bool:
        page = httpx.get(f"http://127.0.0.1:{server.port('metrics')}/metrics").text
        return "\nrepoagent_workspace_usable 1\n" in page

    assert server.load("first").status_code == 200
    assert usable()
    shutil.rmtree(world.work)
    assert server.load("second").status_code == 200, server.log
    assert server.log.count("removed the workspace directory") == 1
    assert server.answer("first") == server.answer("second") == [1, -2, 3, -4]
    shutil.rmtree(world.work)
    world.work.symlink_to("/tmp")
    assert not usable()
    assert server.unload("first").status_code == 200
    refused = server.load("first")
    assert (refused.status_code, "cannot be made again" in refused.text) == (500, True)
    assert server.http.get("/v2/health/ready").status_code == 200
    world.work.unlink()
    assert server.load("first").status_code == 200
    assert usable()
    assert server.stop() == 0
    assert list(world.work.glob("[0-9]*")) == []


# Agents that raise at every call there is: who hears what, what the client reads, and what is left.

REFUSED: Final = {
    "initialize": (
        ["a model_initialize", "a LOAD", "a LOAD_FAIL", "a model_finalize"],
        "told to raise at initialize",
    ),
    "model_initialize": (
        ["a model_initialize", "a LOAD", "b model_initialize", "a LOAD_FAIL", "a model_finalize", "b model_finalize"],
        "told to raise at model_initialize",
    ),
    "LOAD": (
        [
            "a model_initialize",
            "a LOAD",
            "b model_initialize",
            "b LOAD",
            "b LOAD_FAIL",
            "a LOAD_FAIL",
            "a model_finalize",
            "b model_finalize",
        ],
        "told to raise at LOAD",
    ),
    "LOAD_FAIL": (  # c refuses, and b raises when it is told
        [f"{agent} {call}" for agent in "abc" for call in ("model_initialize", "LOAD")]
        + ["c LOAD_FAIL", "b LOAD_FAIL", "a LOAD_FAIL", "a model_finalize", "b model_finalize", "c model_finalize"],
        "told to raise at LOAD",
    ),
}
"""Where b raises -> the whole life of a model that is refused, and the reason that the client reads."""
ACCEPTED: Final = ("LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE", "model_finalize", "finalize")
LOADED: Final = [f"{agent} {call}" for agent in "abc" for call in ("model_initialize", "LOAD")] + [
    f"{agent} LOAD_COMPLETE" for agent in "cba"
]
UNLOADED: Final = (
    [f"{agent} UNLOAD" for agent in "abc"]
    + [f"{agent} UNLOAD_COMPLETE" for agent in "cba"]
    + [f"{agent} model_finalize" for agent in "abc"]
)


def _write(world: "World", model: str, where: str) -> None:
    """A model with three agents of its own, of which the second raises ``where``; the first makes a copy."""
    names = [f"{agent}.{model}" for agent in "abc"]
    if where in ("initialize", "finalize"):
        names[1] = f"{where}_raises.{model}"
    for name in names:
        world.agent(name)
    second = {} if where in ("initialize", "finalize") else {"raise": where}
    third = {"raise": "LOAD"} if where == "LOAD_FAIL" else {}
    world.model(model, [(names[0], {"copy": "LOAD disk"}), (names[1], second), (names[2], third)])


@dataclass
class Story:
    """What happened to all of them in one server, which has stopped."""

    world: "World"
    status: int = -1
    left: list[str] = field(default_factory=list)
    replies: dict[str, Any] = field(default_factory=dict)
    index: dict[str, Any] = field(default_factory=dict)
    answers: list[list[float]] = field(default_factory=list)
    log: str = ""

    def calls(self, model: str) -> list[str]:
        """The calls for ``model``, its agents as a, b and c."""
        lines = [
            line.replace("finalize_raises", "b").replace("initialize_raises", "b") for line in self.world.calls(model)
        ]
        return [line.replace(f".{model} ", " ") for line in lines]

    def lives(self, model: str) -> list[str]:
        """What the agents of ``model`` were called with besides, in order."""
        return [line[2:] for line in self.world.calls() if line.startswith("- ") and f".{model} " in line]


@pytest.fixture(scope="module")
def story(world: "World") -> Story:
    for where in REFUSED:
        _write(world, f"refused-{where}", where)
    for where in ACCEPTED:
        _write(world, f"unloaded-{where}", where)
        _write(world, f"stopped-{where}", where)
    server = world.serve("--load-model=plain")
    story = Story(world)
    for model in sorted(path.name for path in world.models.iterdir() if path.name != "plain"):
        story.replies[model] = server.load(model)
        if model.startswith("unloaded"):
            story.answers.append(server.answer(model))
            assert server.unload(model).status_code == 200
        story.answers.append(server.answer("plain"))
    story.index = server.index()
    story.status = server.stop()
    story.left = world.leftovers(server)
    story.log = server.log
    return story


@pytest.mark.parametrize("where", REFUSED)
def test_before_the_model_is_loaded_it_refuses_it(story: Story, where: str) -> None:
    model = f"refused-{where}"
    calls, reason = REFUSED[where]
    assert story.calls(model) == calls
    reply = story.replies[model]
    assert reply.status_code == 500
    assert reply.json()["error"].startswith(f"failed to load '{model}', failed to poll from model repository: agent '")
    assert reply.json()["error"].endswith(f": {reason}")
    assert story.index[model]["reason"].endswith(f": {reason}")
    assert reply.json()["error"] in story.log


@pytest.mark.parametrize("where", ACCEPTED)
@pytest.mark.parametrize("end", ["unloaded", "stopped"])
def test_afterwards_it_stops_nothing_and_everyone_hears_everything(story: Story, where: str, end: str) -> None:
    model = f"{end}-{where}"
    assert story.replies[model].status_code == 200
    assert story.calls(model) == LOADED + UNLOADED
    assert f"told to raise at {where}" in story.log


@pytest.mark.parametrize("where", [*REFUSED, *ACCEPTED])
def test_every_agent_that_was_initialised_is_finalised_once(story: Story, where: str) -> None:
    model = f"refused-{where}" if where in REFUSED else f"unloaded-{where}"
    lives = [line.split() for line in story.lives(model)]
    begun = [name for name, call in lives if call == "initialize"]
    ended = [name for name, call in lives if call == "finalize"]
    assert len(begun) == len(set(begun)) == (2 if where in ("initialize", "model_initialize", "LOAD") else 3)
    assert sorted(ended) == sorted(begun)


def test_the_others_are_served_meanwhile_and_the_server_stops_cleanly_with_nothing_left(story: Story) -> None:
    assert story.answers == [[1, -2, 3, -4]] * len(story.answers)
    assert story.status == 0
    assert story.left == []
