"""The flow of tensors through an ensemble."""

import pytest

from repoagent.config import problems, read_text

HEAD = 'name: "e" platform: "ensemble" input { name: "IN" data_type: TYPE_FP32 dims: 1 } '
OUT = 'output { name: "OUT" data_type: TYPE_FP32 dims: 1 } '


def _step(model: str, inputs: str, outputs: str) -> str:
    def maps(kind: str, tensors: str) -> str:
        return " ".join(f'{kind} {{ key: "k{i}" value: "{tensor}" }}' for i, tensor in enumerate(tensors.split()))

    return f'step {{ model_name: "{model}" {maps("input_map", inputs)} {maps("output_map", outputs)} }}'


def _found(*steps: str) -> list[str]:
    return list(problems(read_text(f"{HEAD}{OUT}ensemble_scheduling {{ {' '.join(steps)} }}")))


@pytest.mark.parametrize(
    "steps",
    [
        [("a", "IN", "OUT")],
        [("a", "IN", "mid"), ("b", "mid", "OUT")],
        [("b", "mid", "OUT"), ("a", "IN", "mid")],
        [("a", "IN", "left right"), ("b", "left", "l2"), ("c", "right", "r2"), ("d", "l2 r2 IN", "OUT")],
        [("a", "IN", "mid OUT"), ("b", "mid", "OUT2"), ("c", "OUT2 OUT", "end"), ("d", "end", "OUT3")],
    ],
    ids=["one", "chain", "any_order", "diamond", "output_used_again"],
)
def test_a_flow_from_inputs_to_outputs_is_fine(steps: list[tuple[str, str, str]]) -> None:
    found = _found(*(_step(*step) for step in steps))
    assert found == [problem for problem in found if "OUT3" in problem]


def test_a_cycle_leaves_its_outputs_unwritten() -> None:
    assert _found(_step("a", "IN back", "mid"), _step("b", "mid", "OUT back")) == [
        "output 'OUT' for ensemble 'e' is not written: at least one of its depending tensors, 'back', is not connected"
    ]


def test_a_tensor_that_feeds_itself_is_a_gap() -> None:
    assert _found(_step("a", "IN OUT", "OUT")) == ["output 'OUT' for ensemble 'e' is not written"]


def test_the_origin_of_a_gap_is_named_not_the_last_tensor_before_the_output() -> None:
    (found,) = _found(_step("a", "IN lost", "mid"), _step("b", "mid", "mid2"), _step("c", "mid2", "OUT"))
    assert "'lost', is not connected" in found


def test_a_tensor_nobody_reads_is_refused() -> None:
    assert _found(_step("a", "IN", "OUT spare")) == ["ensemble tensor 'spare' is unused in ensemble 'e'"]
