"""Models of one name in several repositories, each of which is a namespace."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.serving.core import ControlMode, ServingCore
from repoagent.serving.requests.request import InferRequest, ModelId

CoreMaker = Callable[..., ServingCore]
RequestMaker = Callable[..., InferRequest]

_AMBIGUOUS = (
    "There are 2 identifiers of model 'a' in global map, model namespace must be provided to resolve ambiguity."
)


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in ("one", "two", "three")]


@pytest.fixture
def write(places: list[Path]) -> Callable[..., None]:
    """``write(0, "a", "1")``: a scripted model that adds 1, in the first repository; or a configuration."""
    for place in places:
        place.mkdir()

    def write(place: int, name: str, content: str) -> None:
        directory = places[place] / name
        (directory / "1").mkdir(parents=True, exist_ok=True)
        ensemble = "ensemble_scheduling" in content
        (directory / "config.pbtxt").write_text(content if ensemble else 'backend: "scripted"')
        if not ensemble:
            (directory / "1" / "model.txt").write_text(content)

    return write


@pytest.fixture
def new_namespaced(new_core: CoreMaker, places: list[Path], write: Any) -> CoreMaker:
    def make(**options: Any) -> ServingCore:
        return new_core(repositories=tuple(map(str, places)), model_namespacing=True, **options)

    return make


def answer(core: ServingCore, request: InferRequest, output: str = "y") -> float:
    return float(core.infer(request).outputs[output].array[0, 0])


def test_an_identity_is_a_text_that_knows_its_parts() -> None:
    model = ModelId("m", "/models")
    assert (model, model.name, model.namespace) == ("/models::m", "m", "/models")
    assert ModelId("m") == "m" == ModelId.of("m").name
    assert ModelId.of(model) is model
    assert {str(model): 1}[model] == 1


def test_namesakes_are_loaded_and_unloaded_together(
    new_namespaced: CoreMaker, write: Any, places: list[Path], request_of: RequestMaker
) -> None:
    write(0, "a", "1")
    write(1, "a", "2")
    write(1, "b", "3")
    core = new_namespaced()
    core.load("a")
    ready = [{"name": "a", "namespace": str(place), "version": "1", "state": "READY"} for place in places[:2]]
    assert core.index(ready_only=True) == ready
    assert {"name": "b", "namespace": str(places[1])} in core.index()
    assert [entry["name"] for entry in core.statistics()["model_stats"]] == ["a", "a"]
    assert [(entry.name, entry.namespace) for entry in core.metrics()] == [("a", str(place)) for place in places[:2]]
    core.unload("a")
    assert core.index(ready_only=True) == []


def test_a_name_in_one_namespace_needs_none(new_namespaced: CoreMaker, write: Any, request_of: RequestMaker) -> None:
    write(0, "a", "1")
    write(1, "b", "2")
    core = new_namespaced(startup_models=("*",))
    assert [answer(core, request_of(name)) for name in "ab"] == [2, 3]
    assert core.model_metadata("b")["name"] == "b"
    assert core.model_config("b")["name"] == "b"


@pytest.mark.parametrize(
    "ask",
    [
        lambda core, request: core.infer(request("a")),
        lambda core, request: core.find(request("a")),
        lambda core, _: core.model_metadata("a"),
        lambda core, _: core.model_config("a"),
        lambda core, _: core.statistics("a"),
        lambda core, _: core.report("a"),
    ],
)
def test_an_ambiguous_name_is_refused_as_triton_does(
    new_namespaced: CoreMaker, write: Any, request_of: RequestMaker, ask: Any
) -> None:
    write(0, "a", "1")
    write(1, "a", "2")
    core = new_namespaced(startup_models=("a",))
    with pytest.raises(InvalidArgumentError) as caught:
        ask(core, request_of)
    assert str(caught.value) == _AMBIGUOUS
    assert not core.model_ready("a")


def test_a_namespace_says_which_one_is_meant_in_process(
    new_namespaced: CoreMaker, write: Any, places: list[Path], request_of: RequestMaker
) -> None:
    write(0, "a", "1")
    write(1, "a", "10")
    core = new_namespaced(startup_models=("a",))
    response = core.infer(request_of(f"{places[1]}::a"))
    assert (response.model_name, float(response.outputs["y"].array[0, 0])) == ("a", 11)


def test_an_ensemble_prefers_the_members_beside_it(
    new_namespaced: CoreMaker, write: Any, places: list[Path], request_of: RequestMaker, ensemble_config: Any
) -> None:
    for place, content in enumerate(("1", "10")):
        write(place, "a", content)
        write(place, f"e{place}", ensemble_config(("a", {"x": "x"}, {"y": "y"})))
    core = new_namespaced()
    core.load("e0")
    assert answer(core, request_of("e0")) == 2
    assert answer(core, request_of("a")) == 2  # Only the member that is needed has been loaded.
    core.load("e1")
    assert [answer(core, request_of(name)) for name in ("e0", "e1")] == [2, 11]
    with pytest.raises(InvalidArgumentError, match="model namespace must be provided"):
        core.infer(request_of("a"))
    (step,) = core.model_config("e1")["ensemble_scheduling"]["step"]
    assert (step["model_name"], step["model_namespace"]) == ("a", str(places[1]))
    core.unload("e1", unload_dependents=True)
    assert answer(core, request_of("a")) == 2


def test_an_ensemble_takes_a_member_from_elsewhere_if_there_is_only_one(
    new_namespaced: CoreMaker, write: Any, request_of: RequestMaker, ensemble_config: Any
) -> None:
    write(1, "a", "10")
    write(0, "e", ensemble_config(("a", {"x": "x"}, {"y": "y"})))
    core = new_namespaced()
    core.load("e")
    assert answer(core, request_of("e")) == 11
    write(2, "a", "100")
    write(0, "f", ensemble_config(("a", {"x": "x"}, {"y": "y"})))
    with pytest.raises(InvalidArgumentError, match=r"contains models that are not available or ambiguous: a"):
        core.load("f")


def test_an_ensemble_follows_a_member_that_comes_to_stand_beside_it(
    new_namespaced: CoreMaker, write: Any, places: list[Path], request_of: RequestMaker, ensemble_config: Any
) -> None:
    write(1, "a", "10")
    write(0, "e", ensemble_config(("a", {"x": "x"}, {"y": "y"})))
    core = new_namespaced()
    core.load("e")
    assert answer(core, request_of("e")) == 11
    write(0, "a", "1")
    core.load("a")
    assert answer(core, request_of("e")) == 2
    (step,) = core.model_config("e")["ensemble_scheduling"]["step"]
    assert step["model_namespace"] == str(places[0])


def test_an_ensemble_follows_a_member_that_goes_to_another_repository(
    new_namespaced: CoreMaker, write: Any, places: list[Path], request_of: RequestMaker, ensemble_config: Any
) -> None:
    write(1, "a", "10")
    write(0, "e", ensemble_config(("a", {"x": "x"}, {"y": "y"})))
    core = new_namespaced()
    core.load("e")
    assert answer(core, request_of("e")) == 11
    core.unload("a")
    assert not core.model_ready("e")
    shutil.move(places[1] / "a", places[2] / "a")
    core.load("a")
    assert answer(core, request_of("e")) == 11
    (step,) = core.model_config("e")["ensemble_scheduling"]["step"]
    assert step["model_namespace"] == str(places[2])


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("mode", [ControlMode.POLL, ControlMode.EXPLICIT])
def test_an_ensemble_is_linked_again_when_a_loaded_member_moves(
    new_namespaced: CoreMaker,
    write: Any,
    places: list[Path],
    request_of: RequestMaker,
    ensemble_config: Any,
    mode: ControlMode,
    at_once: bool,
) -> None:
    """L28: as a reload of a member does."""
    write(1, "a", "10")
    write(0, "e", ensemble_config(("a", {"x": "x"}, {"y": "y"})))
    core = new_namespaced(control_mode=mode, poll_seconds=3600, startup_models=("e",))
    follow = core.poll if mode is ControlMode.POLL else lambda: core.load("a")
    for origin, target in ((1, 2), (2, 0), (0, 1)):
        shutil.copytree(places[origin] / "a", places[target] / "a")
        (places[target] / "a" / "1" / "model.txt").write_text(str(target))
        if not at_once:
            follow()
            assert core.model_ready("e")
        shutil.rmtree(places[origin] / "a")
        follow()
        assert answer(core, request_of("e")) == 1 + target
        (step,) = core.model_config("e")["ensemble_scheduling"]["step"]
        assert step["model_namespace"] == str(places[target])
    core.unload("a") if mode is ControlMode.EXPLICIT else None
    assert core.model_ready("e") is (mode is ControlMode.POLL)


def test_an_ensemble_keeps_its_member_while_the_one_beside_it_is_not_loaded(
    new_namespaced: CoreMaker, write: Any, request_of: RequestMaker, ensemble_config: Any
) -> None:
    write(1, "a", "10")
    write(0, "e", ensemble_config(("a", {"x": "x"}, {"y": "t"}), ("b", {"x": "t"}, {"y": "z"}), outputs=("z",)))
    write(0, "b", "100")
    core = new_namespaced()
    core.load("e")
    write(0, "a", "1")
    write(0, "b", "200")
    core.load("b")  # The ensemble is made anew.
    assert answer(core, request_of("e"), "z") == 211


def test_a_load_tells_of_every_namesake_that_failed(
    new_namespaced: CoreMaker, write: Any, places: list[Path], request_of: RequestMaker
) -> None:
    write(0, "a", "fail no")
    write(1, "a", "fail never")
    core = new_namespaced()
    with pytest.raises(InvalidArgumentError) as caught:
        core.load("a")
    assert str(caught.value) == "".join(
        f"load failed for model '{place}::a': version 1 is at UNAVAILABLE state: Internal: RuntimeError: {text};\n"
        for place, text in zip(places, ("no", "never"), strict=False)
    )
    write(1, "a", "5")
    with pytest.raises(InvalidArgumentError, match=r"RuntimeError: no;\n$"):
        core.load("a")


def test_polling_follows_each_repository(
    new_namespaced: CoreMaker, write: Any, places: list[Path], request_of: RequestMaker
) -> None:
    write(0, "a", "1")
    write(1, "a", "2")
    core = new_namespaced(control_mode=ControlMode.POLL, poll_seconds=3600)
    with pytest.raises(InvalidArgumentError):
        core.infer(request_of("a"))
    shutil.rmtree(places[0] / "a")
    core.poll()
    assert answer(core, request_of("a")) == 3


def test_a_request_loads_a_name_that_is_clear_and_no_other(
    new_namespaced: CoreMaker, write: Any, request_of: RequestMaker
) -> None:
    write(0, "a", "1")
    write(1, "a", "2")
    write(2, "b", "3")
    core = new_namespaced(on_demand=True)
    assert answer(core, request_of("b")) == 4
    with pytest.raises(RepoAgentError, match="'a'"):
        core.infer(request_of("a"))
    assert [entry["name"] for entry in core.index(ready_only=True)] == ["b"]
    with core.lease("b"), pytest.raises(RepoAgentError, match="leased"):
        core.unload("b")


def test_files_of_the_callers_own_have_no_namespace(
    new_namespaced: CoreMaker, write: Any, request_of: RequestMaker
) -> None:
    write(0, "a", "1")
    core = new_namespaced()
    core.load("a", config='{"backend": "scripted"}', files={"1/model.txt": b"7"})
    assert core.index(ready_only=True) == [{"name": "a", "version": "1", "state": "READY"}]
    assert answer(core, request_of("a")) == 8


def test_a_repository_that_is_registered_brings_its_namespace(
    new_namespaced: CoreMaker, write: Any, tmp_path: Path, places: list[Path], request_of: RequestMaker
) -> None:
    write(0, "a", "1")
    core = new_namespaced()
    (tmp_path / "more" / "dir" / "1").mkdir(parents=True)
    (tmp_path / "more" / "dir" / "config.pbtxt").write_text('backend: "scripted"')
    (tmp_path / "more" / "dir" / "1" / "model.txt").write_text("4")
    core.register_repository(str(tmp_path / "more"), {"dir": "a"})
    core.load("a")
    assert [entry["namespace"] for entry in core.index(ready_only=True)] == sorted(
        [str(places[0]), str(tmp_path / "more")]
    )
