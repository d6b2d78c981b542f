"""Ensembles and their members: loaded together, checked against each other, unloaded in the right order."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.serving.assembly import ControlMode
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest

CoreMaker = Callable[..., ServingCore]
ModelWriter = Callable[..., Path]
Text = Callable[..., str]

CHAIN = (("a", {"x": "x"}, {"y": "t"}), ("b", {"x": "t"}, {"y": "y"}))


@pytest.fixture
def chain(write_model: ModelWriter, ensemble_config: Text) -> None:
    """``e`` adds 1 in ``a`` and then 10 in ``b``."""
    write_model("a", {1: "1"})
    write_model("b", {1: "10"})
    write_model("e", {}, ensemble_config(*CHAIN))


def ready(core: ServingCore) -> list[str]:
    return [entry["name"] for entry in core.index(ready_only=True)]


def reason_of(core: ServingCore, name: str) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        core.load(name)
    text = str(caught.value)
    assert text.startswith(f"load failed for model '{name}': ")
    return text.removeprefix(f"load failed for model '{name}': ").rstrip("\n")


@pytest.mark.usefixtures("chain")
def test_an_ensemble_loads_the_members_that_are_missing_through_their_own_agents(
    new_core: CoreMaker, loader: Any
) -> None:
    core = new_core()
    core.load("e")
    assert ready(core) == ["a", "b", "e"]
    assert sorted(loader.trace) == sorted(
        ["e1 LOAD", "a1 LOAD", "a1 LOAD_COMPLETE", "b1 LOAD", "b1 LOAD_COMPLETE", "e1 LOAD_COMPLETE"]
    )
    assert loader.trace[0] == "e1 LOAD"
    assert loader.trace[-1] == "e1 LOAD_COMPLETE"


@pytest.mark.usefixtures("chain")
def test_a_member_that_is_loaded_already_is_loaded_anew_only_if_its_files_changed(
    new_core: CoreMaker, loader: Any, write_model: ModelWriter, request_of: Any
) -> None:
    core = new_core()
    core.load("a")
    core.load("b")
    write_model("a", {1: "5000"})
    core.load("e")
    assert [line for line in loader.trace if line.startswith("b")] == ["b1 LOAD", "b1 LOAD_COMPLETE"]
    assert core.infer(request_of("e")).outputs["y"].array[0, 0] == 5011


@pytest.mark.usefixtures("chain")
def test_a_member_that_somebody_loaded_with_a_configuration_of_their_own_stays_as_it_is(
    new_core: CoreMaker, request_of: Any
) -> None:
    core = new_core()
    core.load("a", config='{"backend": "scripted"}', files={"1/model.txt": b"100"})
    core.load("e")
    assert core.infer(request_of("e")).outputs["y"].array[0, 0] == 111


@pytest.mark.usefixtures("chain")
def test_ensembles_load_with_a_single_thread_for_loads(new_core: CoreMaker) -> None:
    core = new_core(control_mode=ControlMode.NONE, load_threads=1)
    assert ready(core) == ["a", "b", "e"]


@pytest.mark.usefixtures("chain")
def test_nested_ensembles_load_with_a_single_thread(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text, request_of: Any
) -> None:
    write_model("outer", {}, ensemble_config(("e", {"x": "x"}, {"y": "t"}), ("a", {"x": "t"}, {"y": "y"})))
    core = new_core(load_threads=1)
    core.load("outer")
    assert core.infer(request_of("outer")).outputs["y"].array[0, 0] == 13


def test_a_member_that_does_not_exist_is_named(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text
) -> None:
    write_model("a", {1: "1"})
    write_model("e", {}, ensemble_config(*CHAIN))
    core = new_core()
    assert reason_of(core, "e") == "ensemble e contains models that are not available or ambiguous: b"
    assert {entry["name"]: entry.get("state") for entry in core.index()} == {"a": "READY", "e": "UNAVAILABLE"}


def test_a_member_that_fails_fails_the_ensemble_with_its_reason(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text
) -> None:
    write_model("a", {1: "1"})
    write_model("b", {1: "fail no such luck"})
    write_model("e", {}, ensemble_config(*CHAIN))
    assert reason_of(new_core(), "e").startswith(
        "ensemble 'e' depends on 'b' which has no loaded version. Model 'b' loading failed with error: load failed for "
        "model 'b': version 1 is at UNAVAILABLE state: Internal: RuntimeError: no such luck"
    )


@pytest.mark.usefixtures("chain")
def test_a_required_version_that_is_not_loaded_is_named(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text
) -> None:
    write_model("e", {}, ensemble_config(("a:7", {"x": "x"}, {"y": "y"})))
    assert reason_of(new_core(), "e").endswith("ensemble 'e' depends on 'a' whose required version 7 is not loaded.;")


def test_a_required_version_is_the_one_that_is_called(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text, request_of: Any
) -> None:
    policy = 'backend: "scripted" version_policy { all { } }'
    write_model("a", {1: "1", 2: "2"}, policy)
    write_model("e", {}, ensemble_config(("a:1", {"x": "x"}, {"y": "y"})))
    write_model("newest", {}, ensemble_config(("a", {"x": "x"}, {"y": "y"})))
    core = new_core(control_mode=ControlMode.NONE)
    assert [core.infer(request_of(name)).outputs["y"].array[0, 0] for name in ("e", "newest")] == [2, 3]


def test_two_ensembles_that_need_each_other_are_refused_whichever_comes_first(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text
) -> None:
    write_model("p", {}, ensemble_config(("q", {"x": "x"}, {"y": "y"})))
    write_model("q", {}, ensemble_config(("p", {"x": "x"}, {"y": "y"})))
    write_model("self", {}, ensemble_config(("self", {"x": "x"}, {"y": "y"})))
    core = new_core()
    assert "circular dependency between ensembles: q -> ... -> p -> q" in reason_of(core, "p")
    assert "circular dependency between ensembles: p -> ... -> q -> p" in reason_of(core, "q")
    assert reason_of(core, "self") == "circular dependency between ensembles: self -> ... -> self -> self"


@pytest.mark.usefixtures("chain")
def test_a_reload_that_would_close_a_circle_is_refused_and_the_old_one_serves_on(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text, request_of: Any
) -> None:
    write_model("outer", {}, ensemble_config(("e", {"x": "x"}, {"y": "y"})))
    core = new_core()
    core.load("outer")
    write_model("e", {}, ensemble_config(("outer", {"x": "x"}, {"y": "y"})))
    assert reason_of(core, "e") == "circular dependency between ensembles: e -> ... -> outer -> e"
    assert core.infer(request_of("outer")).outputs["y"].array[0, 0] == 12


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (
            [("a", {"x": "x", "z": "x"}, {"y": "y"})],
            "in ensemble e, ensemble tensor x is mapping to non-existing input z in model a",
        ),
        (
            [("a", {"x": "x"}, {"y": "y", "z": "w"}), ("a", {"x": "w"}, {"y": "v"})],
            "in ensemble e, ensemble tensor w is mapped from non-existing output z in model a",
        ),
        (
            [("two", {"x": "x"}, {"y": "y"})],
            "in ensemble e, input x2 in model two is not mapped to any ensemble tensors",
        ),
        (
            [("ints", {"x": "x"}, {"y": "y"})],
            "ensemble tensor x: inconsistent data type: TYPE_FP32 is inferred from model e while TYPE_INT32",
        ),
        (
            [("wide", {"x": "x"}, {"y": "y"})],
            "ensemble tensor x: inconsistent shape: [-1,4] is inferred from model e while [-1,5] is inferred from",
        ),
    ],
)
def test_tensor_maps_are_checked_against_the_members(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text, steps: Any, reason: str
) -> None:
    def member(name: str, inputs: dict[str, str]) -> None:
        tensors = "".join(f'input {{ name: "{key}" {value} }} ' for key, value in inputs.items())
        write_model(name, {1: "1"}, f'backend: "scripted" {tensors} output {{ name: "y" {fp32} }}')

    fp32 = "data_type: TYPE_FP32 dims: [-1, 4]"
    member("a", {"x": fp32})
    member("two", {"x": fp32, "x2": fp32})
    member("ints", {"x": "data_type: TYPE_INT32 dims: [-1, 4]"})
    member("wide", {"x": "data_type: TYPE_FP32 dims: [-1, 5]"})
    outputs = ("y", "v") if len(steps) > 1 else ("y",)
    write_model("e", {}, ensemble_config(*steps, outputs=outputs))
    assert reason in reason_of(new_core(), "e")


def test_an_ensemble_may_not_take_larger_batches_than_a_member(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text
) -> None:
    write_model("a", {1: "1"}, 'backend: "scripted" max_batch_size: 4')
    write_model("e", {}, ensemble_config(("a", {"x": "x"}, {"y": "y"}), settings="max_batch_size: 8"))
    assert (
        "ensemble e allows maximum batch size 8, but it contains model a which only allows maximum batch size to be 4"
    ) in reason_of(new_core(), "e")


def test_ensemble_is_a_platform_and_no_backend(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text
) -> None:
    write_model("e", {}, ensemble_config(("a", {"x": "x"}, {"y": "y"})).replace("platform", "backend"))
    expected = "ensemble scheduling cannot be set for model 'e' whose platform is not ensemble"
    assert reason_of(new_core(), "e") == expected


# -- unloading -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("chain")
def test_unloading_an_ensemble_leaves_its_members(new_core: CoreMaker) -> None:
    core = new_core()
    core.load("e")
    core.unload("e")
    assert ready(core) == ["a", "b"]


@pytest.mark.usefixtures("chain")
def test_unload_dependents_takes_the_members_that_nobody_else_needs(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text
) -> None:
    write_model("c", {1: "1"})
    write_model("f", {}, ensemble_config(("b", {"x": "x"}, {"y": "t"}), ("c", {"x": "t"}, {"y": "y"})))
    core = new_core()
    core.load("c")
    core.load("e")
    core.load("f")
    core.unload("e", unload_dependents=True)
    assert ready(core) == ["b", "c", "f"], "b is called by f too"
    core.unload("f", unload_dependents=True)
    assert ready(core) == ["c"], "c was asked for by name"


@pytest.mark.usefixtures("chain")
def test_unloading_a_member_unloads_the_ensembles_that_call_it_first(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text, loader: Any
) -> None:
    write_model("outer", {}, ensemble_config(("e", {"x": "x"}, {"y": "y"})))
    core = new_core()
    core.load("outer")
    core.unload("a")
    assert ready(core) == ["b"]
    unloads = [line for line in loader.trace if line.endswith("UNLOAD")]
    assert unloads == ["outer1 UNLOAD", "e1 UNLOAD", "a1 UNLOAD"]


@pytest.mark.usefixtures("chain")
def test_the_end_of_the_server_unloads_ensembles_before_their_members(new_core: CoreMaker, loader: Any) -> None:
    core = new_core(control_mode=ControlMode.NONE)
    core.stop()
    unloads = [line for line in loader.trace if line.endswith("UNLOAD")]
    assert unloads[0] == "e1 UNLOAD"
    assert sorted(unloads) == ["a1 UNLOAD", "b1 UNLOAD", "e1 UNLOAD"]


@pytest.mark.usefixtures("chain")
def test_an_ensemble_given_by_its_configuration_alone_needs_no_repository(
    new_core: CoreMaker, request_of: Callable[..., InferRequest]
) -> None:
    core = new_core()
    tensor = {"data_type": "TYPE_FP32", "dims": [-1, 4]}
    config = {
        "platform": "ensemble",
        "input": [{"name": "x", **tensor}],
        "output": [{"name": "y", **tensor}],
        "ensemble_scheduling": {
            "step": [{"model_name": "a", "model_version": -1, "input_map": {"x": "x"}, "output_map": {"y": "y"}}]
        },
    }
    core.load("adhoc", config=json.dumps(config))
    assert core.infer(request_of("adhoc")).outputs["y"].array[0, 0] == 2


def test_polling_brings_an_ensemble_up_when_what_it_lacked_appears(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Text
) -> None:
    write_model("a", {1: "1"})
    write_model("e", {}, ensemble_config(*CHAIN))
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=3600, exit_on_error=False)
    assert ready(core) == ["a"]
    write_model("b", {1: "10"})
    core.poll()
    assert ready(core) == ["a", "b", "e"]


@pytest.mark.usefixtures("chain")
def test_polling_unloads_an_ensemble_whose_member_is_gone(new_core: CoreMaker, repository: Path) -> None:
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=3600)
    shutil.rmtree(repository / "b")
    core.poll()
    assert ready(core) == ["a"]
    with pytest.raises(RepoAgentError):
        core.find(InferRequest(Asked("e", {})))
