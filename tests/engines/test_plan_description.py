"""What a statement has of a plan's tensors and profiles."""

import hashlib
import json
from typing import Any

import pytest

from repoagent.engines.plan_description import MOST_BYTES, PlanDescription, check_digest
from repoagent.engines.protocol import ElementType, Profile, ShapeRange, TensorSpec
from repoagent.errors import InvalidArgumentError

X = {"name": "x", "is_input": True, "element": "FLOAT", "shape": [-1, 4], "on_host": False}
Y = {"name": "y", "is_input": False, "element": "HALF", "shape": [-1, 3], "on_host": False, "alias_of": "x"}
PROFILE = {"shapes": {"x": [[1, 4], [2, 4], [8, 4]]}, "values": {}}


def described(**annotations: Any) -> PlanDescription:
    subject = {"name": "model.plan", "digest": {"sha256": "00"}, "annotations": annotations}
    return PlanDescription.of(json.dumps({"subject": [subject]}).encode(), "model.plan")


def test_tensors_and_profiles_come_back_as_an_engine_has_them() -> None:
    found = described(tensors=[X, Y], profiles=[PROFILE])
    assert found.tensors == [
        TensorSpec("x", True, ElementType.FLOAT, (-1, 4)),
        TensorSpec("y", False, ElementType.HALF, (-1, 3), alias_of="x"),
    ]
    assert found.profiles == [Profile({"x": ShapeRange((1, 4), (2, 4), (8, 4))}, {})]


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({}, "'tensors' is missing"),
        ({"tensors": [X, Y]}, "'profiles' is missing"),
        ({"tensors": [], "profiles": []}, "inputs or outputs are missing"),
        ({"tensors": [X], "profiles": []}, "inputs or outputs are missing"),
        ({"tensors": [X, Y, Y], "profiles": []}, "two tensors have one name"),
        ({"tensors": "xy", "profiles": []}, "expected a list"),
        ({"tensors": [X] * 10_001, "profiles": []}, "expected a list of at most 10000 entries"),
        ({"tensors": [1], "profiles": []}, ""),
        ({"tensors": [X | {"name": 1}, Y], "profiles": []}, "no name"),
        ({"tensors": [X | {"name": "a\ud800"}, Y], "profiles": []}, "no name that can be printed"),
        ({"tensors": [X | {"element": "COMPLEX"}, Y], "profiles": []}, "elements of an unknown type"),
        ({"tensors": [X | {"element": []}, Y], "profiles": []}, ""),
        ({"tensors": [X | {"is_input": 1}, Y], "profiles": []}, "must be true or false"),
        ({"tensors": [X, Y | {"alias_of": 3}], "profiles": []}, "is not a name"),
        ({"tensors": [X | {"shape": [-2]}, Y], "profiles": []}, "sizes that no tensor can have"),
        ({"tensors": [X | {"shape": [1 << 31]}, Y], "profiles": []}, "sizes that no tensor can have"),
        ({"tensors": [X | {"shape": [True]}, Y], "profiles": []}, "sizes that no tensor can have"),
        ({"tensors": [X | {"shape": [1] * 17}, Y], "profiles": []}, "at most 16 entries"),
        ({"tensors": [X, Y], "profiles": [{"shapes": [], "values": {}}]}, ""),
        (
            {"tensors": [X, Y], "profiles": [{"shapes": {"y": [[1, 3]] * 3}, "values": {}}]},
            "'y', which is not an input",
        ),
        ({"tensors": [X, Y], "profiles": [{"shapes": {"x": [[1]] * 3}, "values": {}}]}, "another number of dimensions"),
        ({"tensors": [X, Y], "profiles": [{"shapes": {"x": [[1, 4]] * 2}, "values": {}}]}, ""),
        ({"tensors": [X, Y], "profiles": [{"shapes": {"x": [[1], [1, 4], [1]]}, "values": {}}]}, "differ in their"),
        ({"tensors": [X, Y], "profiles": [{"shapes": {"x": [[-1, 4]] * 3}, "values": {}}]}, "sizes that no tensor"),
    ],
)
def test_what_makes_no_sense_is_refused(annotations: dict[str, Any], text: str) -> None:
    start = "model.plan.intoto.json does not describe the inputs and outputs of model.plan: "
    with pytest.raises(InvalidArgumentError) as caught:
        described(**annotations)
    assert str(caught.value).startswith(start)
    assert text in str(caught.value)


PLAN = b"vtrt" + bytes(100)
DIGEST = hashlib.sha256(PLAN).hexdigest()


def _statement(*subjects: tuple[str, str]) -> bytes:
    return json.dumps({"subject": [{"name": name, "digest": {"sha256": one}} for name, one in subjects]}).encode()


def test_the_plan_that_was_built_passes() -> None:
    check_digest(PLAN, "model.plan", _statement(("other", "00"), ("model.plan", DIGEST.upper())))


def test_a_flipped_byte_is_refused_with_both_digests() -> None:
    changed = PLAN[:-1] + b"\x01"
    with pytest.raises(InvalidArgumentError, match=rf"model\.plan has changed since .*states sha256:{DIGEST}; copy"):
        check_digest(changed, "model.plan", _statement(("model.plan", DIGEST)))


@pytest.mark.parametrize(
    "statement",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"subject": 1}',
        b'{"subject": [1]}',
        b'{"subject": [{"name": "model.plan"}]}',
        b"[" * 100_000,
        b"\xff\xfe",
        bytes(MOST_BYTES + 1),
    ],
    ids=range(10),
)
def test_a_statement_that_is_none_is_refused(statement: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match=r"model\.plan\.intoto\.json is not a valid statement: "):
        check_digest(PLAN, "model.plan", statement)


@pytest.mark.parametrize("count", [0, 2])
def test_a_statement_of_other_plans_or_of_two_is_refused(count: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"states {count} digests of model.plan, expected one"):
        check_digest(PLAN, "model.plan", _statement(*[("model.plan", DIGEST)] * count))
