"""Agents that raise at every call there is: who hears what, what the client reads, and what is left."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import World

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
