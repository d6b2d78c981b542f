"""The base class of agents and the values that authors use."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

import repoagent.api
from repoagent.api import Action, Agent, ArtifactType, InvalidArgumentError, Parameters


class Recording(Agent):
    api_version = 1

    def __init__(self) -> None:
        self.calls: list[str] = []

    def load(self, model: Any) -> None:
        self.calls.append("load")

    def load_complete(self, model: Any) -> None:
        self.calls.append("load_complete")

    def load_fail(self, model: Any) -> None:
        self.calls.append("load_fail")

    def unload(self, model: Any) -> None:
        self.calls.append("unload")

    def unload_complete(self, model: Any) -> None:
        self.calls.append("unload_complete")


@pytest.mark.parametrize("action", list(Action))
def test_each_action_goes_to_the_method_of_its_name(action: Action) -> None:
    agent = Recording()
    model: Any = object()
    agent.model_action(model, action)
    assert agent.calls == [action.name.lower()]


def test_every_method_does_nothing_by_default() -> None:
    agent = Agent()
    model: Any = object()
    for action in Action:
        agent.model_action(model, action)
    agent.initialize()
    agent.model_initialize(model)
    agent.model_finalize(model)
    agent.finalize()
    assert agent.guard is False


def test_numbers_are_those_of_the_c_interface() -> None:
    assert [action.value for action in Action] == [0, 1, 2, 3, 4]
    assert [kind.value for kind in ArtifactType] == [0, 1]


def test_parameters_are_a_mapping_that_keeps_order_and_repeats() -> None:
    parameters = Parameters([("b", "1"), ("a", "2"), ("b", "3")])
    assert isinstance(parameters, Mapping)
    assert "b" in parameters
    assert "c" not in parameters
    assert (parameters["b"], parameters.get("b"), parameters.get("c"), parameters.get("c", "d")) == (
        "3",
        "3",
        None,
        "d",
    )
    assert parameters.get_all("b") == ["1", "3"]
    assert parameters.get_all("c") == []
    assert list(parameters) == list(parameters.keys()) == ["b", "a"]
    assert list(parameters.values()) == ["3", "2"]
    assert len(parameters) == 2
    with pytest.raises(KeyError, match="'c'"):
        parameters["c"]


def test_the_items_of_parameters_have_every_pair() -> None:
    pairs = [("b", "1"), ("a", "2"), ("b", "3")]
    items = Parameters(pairs).items()
    assert list(items) == pairs
    assert len(items) == 3
    assert ("b", "1") in items
    assert ("b", "2") not in items
    assert dict(items) == dict(Parameters(pairs)) == {**Parameters(pairs)} == {"b": "3", "a": "2"}
    assert "1" not in repr(items)


def test_parameters_are_equal_by_content_and_never_show_their_values() -> None:
    assert Parameters([("a", "1")]) == Parameters([("a", "1")])
    assert Parameters([("a", "1")]) != Parameters([("a", "2")])
    assert Parameters([("a", "1"), ("a", "2")]) != Parameters([("a", "2")])
    assert Parameters([("a", "1")]) == {"a": "1"}
    assert Parameters() != ()
    assert repr(Parameters([("key", "secret")])) == "Parameters(['key'])"
    assert hash(Parameters([("a", "1")])) == hash(Parameters([("a", "1")]))


def test_everything_that_is_promised_can_be_imported() -> None:
    assert all(hasattr(repoagent.api, name) for name in repoagent.api.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        repoagent.api.Nonsense  # noqa: B018


@pytest.mark.slow
def test_importing_it_brings_nothing_heavy() -> None:
    heavy = "('google.protobuf', 'fsspec', 'numpy', 'onnxruntime', 'pluggy')"
    code = f"import sys, repoagent.api; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([("modes", "x")], "unknown parameter 'modes'; did you mean 'mode'?"),
        ([("colour", "x")], "unknown parameter 'colour'; known: mode, file"),
        ([("mode", "a"), ("file", "b"), ("mode", "c")], "parameter 'mode' is given 2 times, expected once"),
    ],
)
def test_parameters_that_an_agent_does_not_have_are_refused(pairs: list[tuple[str, str]], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        Parameters(pairs).check(("mode", "file"), once=("mode",))
    assert str(refusal.value) == text


def test_parameters_that_it_has_are_not() -> None:
    Parameters([("file", "a"), ("mode", "b"), ("file", "c")]).check(("mode", "file"), once=("mode",))
