from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from repoagent.config import ModelConfig, read_text
from repoagent.errors import InvalidArgumentError
from repoagent.serving.core import ServingCore
from repoagent.serving.ensembles.plan import Dependencies, EnsemblePlan, Fit, is_ensemble, member_names
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor

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


Maker = Callable[..., ServingCore]
Writer = Callable[..., Any]

ADD_ONE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x + 1)]))
        return responses
"""


def tensors(dims: str, batch: int, names: str = "xy") -> str:
    text = f"max_batch_size: {batch}\n"
    for kind, name in zip(("input", "output"), names, strict=True):
        text += f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: {dims} }}\n'
    return text


def step(model: str, given: str, made: str) -> str:
    return (
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "x" value: "{given}" }} '
        f'output_map {{ key: "y" value: "{made}" }} }}\n'
    )


def scheduling(*steps: str) -> str:
    return f"ensemble_scheduling {{ {''.join(steps)} }}"


def ask(core: ServingCore, shape: tuple[int, ...], model: str = "e") -> Any:
    response = core.infer(InferRequest(Asked(model, {"x": Tensor.of(np.zeros(shape, np.float32))})))
    (tensor,) = response.outputs.values()
    return tensor.array


@pytest.mark.parametrize(
    ("ensemble", "members", "shape"),
    [
        (0, (4,), (1,)),  # Added before the member, taken off at the output.
        (4, (0,), (1, 1)),  # The reverse.
        (0, (4, 0), (1,)),
        (4, (0, 4), (1, 1)),
        (0, (4, 8, 0, 4), (1,)),
        (4, (4, 0, 0, 8), (1, 1)),
    ],
)
def test_a_batch_dimension_of_one_comes_and_goes_between_the_steps(
    new_core: Maker,
    write_member: Writer,
    write_ensemble: Writer,
    ensemble: int,
    members: tuple[int, ...],
    shape: tuple[int, ...],
) -> None:
    for index, batch in enumerate(members):
        write_member(f"m{index}", tensors("[1]", batch), ADD_ONE)
    names = ["x", *(f"t{index}" for index in range(1, len(members))), "y"]
    steps = [step(f"m{index}", names[index], names[index + 1]) for index in range(len(members))]
    write_ensemble("e", tensors("[1]", ensemble) + scheduling(*steps))
    core = new_core()
    core.load("e")
    result = ask(core, shape)
    assert result.shape == shape
    assert result.ravel().tolist() == [float(len(members))]


def test_it_comes_and_goes_through_ensembles_in_ensembles(
    new_core: Maker, write_anywhere: Writer, write_ensemble: Writer
) -> None:
    write_anywhere("m", tensors("[3]", 4), ADD_ONE)
    write_ensemble("inner", tensors("[3]", 0) + scheduling(step("m", "x", "y")))
    write_ensemble("e", tensors("[3]", 2) + scheduling(step("inner", "x", "t"), step("m", "t", "y")))
    core = new_core()
    core.load("e")
    assert ask(core, (1, 3)).tolist() == [[2, 2, 2]]
    assert ask(core, (3,), "inner").tolist() == [1, 1, 1]


def test_shapes_that_are_the_same_with_the_batch_dimension_go_as_they_are(
    new_core: Maker, write_member: Writer, write_ensemble: Writer
) -> None:
    """An ensemble without a batch dimension over [-1,3] feeds a member with one over [3], whatever the batch."""
    write_member("m", tensors("[3]", 4), ADD_ONE)
    write_ensemble("e", tensors("[-1, 3]", 0) + scheduling(step("m", "x", "y")))
    core = new_core()
    core.load("e")
    assert ask(core, (2, 3)).shape == (2, 3)
    assert ask(core, (1, 3)).shape == (1, 3)


def test_a_real_batch_is_not_cut_down(new_core: Maker, write_member: Writer, write_ensemble: Writer) -> None:
    write_member("m", tensors("[1]", 0), ADD_ONE)
    write_ensemble("e", tensors("[1]", 4) + scheduling(step("m", "x", "y")))
    core = new_core()
    core.load("e")
    with pytest.raises(InvalidArgumentError, match=r"in ensemble 'e'.*Expected \[1\], got \[2,1\]"):
        ask(core, (2, 1))


def test_the_reshapes_of_an_ensemble_hold(new_core: Maker, write_member: Writer, write_ensemble: Writer) -> None:
    """Clients see ``dims``, the steps see ``reshape``."""
    write_member("m", tensors("[4]", 8), ADD_ONE)
    config = "max_batch_size: 8\n" + "".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [2, 2] reshape {{ shape: [4] }} }}\n'
        for kind, name in (("input", "x"), ("output", "y"))
    )
    write_ensemble("e", config + scheduling(step("m", "x", "y")))
    core = new_core()
    core.load("e")
    assert ask(core, (3, 2, 2)).shape == (3, 2, 2)


def test_text_and_empty_tensors_fit_without_a_copy() -> None:
    values = np.array([b"a", b"b"], np.object_)
    fitted = Fit((2,), adds=True).apply(Tensor.of(values))
    assert fitted.array.shape == (1, 2)
    assert np.shares_memory(fitted.array, values)
    back = Fit((2,), adds=False).apply(fitted)
    assert back.array.tolist() == [b"a", b"b"]
    empty = Tensor.of(np.zeros((0, 2), np.float32))
    assert Fit((2,), adds=False).apply(empty).array.shape == (0, 2)
    scalar = Tensor.of(np.float32(3))
    assert Fit((), adds=True).apply(scalar).array.shape == (1,)


LOADED = {
    "outer": frozenset({"middle", "leaf"}),
    "middle": frozenset({"inner"}),
    "inner": frozenset({"leaf"}),
    "other": frozenset({"alone"}),
}


def over_loaded() -> Dependencies:
    dependencies = Dependencies(lambda name: LOADED.get(name, frozenset()))
    for name, members in LOADED.items():
        dependencies.declare(name, members)
        dependencies.forget(name)
    return dependencies


def test_users_come_in_the_order_in_which_they_can_be_unloaded() -> None:
    assert over_loaded().all_users("leaf") == ["outer", "middle", "inner"]
    assert over_loaded().all_users("outer") == []


def test_a_load_that_is_declared_counts_as_a_user_until_it_is_forgotten() -> None:
    dependencies = over_loaded()
    dependencies.declare("new", frozenset({"leaf"}))
    assert dependencies.users("leaf") == ["inner", "new", "outer"]
    assert dependencies.users("leaf", pending=False) == ["inner", "outer"]
    dependencies.forget("new")
    assert dependencies.users("leaf") == ["inner", "outer"]


def test_circles_are_found_through_loaded_and_declared_ensembles() -> None:
    dependencies = over_loaded()
    dependencies.declare("alone", frozenset({"outer"}))
    with pytest.raises(InvalidArgumentError, match=r"leaf -> \.\.\. -> inner -> leaf|leaf -> ... -> outer -> leaf"):
        dependencies.declare("leaf", frozenset({"other"}))
    with pytest.raises(InvalidArgumentError, match=r"same -> ... -> same -> same"):
        dependencies.declare("same", frozenset({"same"}))
    dependencies.declare("leaf", frozenset({"free"}))


def test_what_is_being_loaded_anew_counts_with_its_new_members() -> None:
    dependencies = over_loaded()
    dependencies.declare("other", frozenset({"free"}))
    dependencies.declare("alone", frozenset({"other"}))
