from collections.abc import Callable

import pytest

from repoagent.config import ModelConfig, read_text
from repoagent.errors import InvalidArgumentError
from repoagent.serving.ensembles.plan import EnsemblePlan, is_ensemble, member_names

Text = Callable[..., str]
CHAIN = (("a", {"x": "x"}, {"y": "t"}), ("b:3", {"x": "t"}, {"y": "u"}), ("c", {"x": "u", "z": "t"}, {"y": "y"}))


def test_members_are_known_without_a_plan(ensemble_config: Text) -> None:
    config = read_text(ensemble_config(*CHAIN))
    assert is_ensemble(config)
    assert member_names(config) == {"a", "b", "c"}
    assert not is_ensemble(ModelConfig(backend="python"))
    assert member_names(ModelConfig()) == frozenset()


def test_a_step_knows_what_it_waits_for_and_which_version_it_calls(ensemble_config: Text) -> None:
    plan = EnsemblePlan.of(read_text(ensemble_config(*CHAIN)), [False, False, False])
    assert [step.model_version for step in plan.steps] == ["", "3", ""]
    assert [sorted(step.waits_for) for step in plan.steps] == [["x"], ["t"], ["t", "u"]]
    assert [step.index for step in plan.users("t")] == [1, 2]
    assert plan.users("y") == ()
    assert not plan.decoupled


def test_what_a_decoupled_step_makes_is_a_stream_of_its_own(ensemble_config: Text) -> None:
    plan = EnsemblePlan.of(read_text(ensemble_config(*CHAIN)), [True, False, False])
    assert [(step.label, step.output_label) for step in plan.steps] == [(0, 1), (1, 1), (1, 1)]
    assert plan.output_label == 1
    assert plan.decoupled


def test_a_step_takes_tensors_of_one_stream_only(ensemble_config: Text) -> None:
    with pytest.raises(InvalidArgumentError, match="step of model 'c' receives inputs originated from different"):
        EnsemblePlan.of(read_text(ensemble_config(*CHAIN)), [False, True, False])


def test_the_outputs_are_of_one_stream_too(ensemble_config: Text) -> None:
    config = read_text(ensemble_config(*CHAIN[:2], outputs=("t", "u")))
    with pytest.raises(InvalidArgumentError, match="receives inputs originated from different decoupled models"):
        EnsemblePlan.of(config, [False, True])


def test_only_the_steps_behind_an_output_are_needed_for_it(ensemble_config: Text) -> None:
    config = read_text(ensemble_config(*CHAIN, outputs=("t", "u", "y")))
    plan = EnsemblePlan.of(config, [False, False, False])
    assert plan.needed(["t"]) == {0}
    assert plan.needed(["u"]) == {0, 1}
    assert plan.needed(["y", "t"]) == {0, 1, 2}
