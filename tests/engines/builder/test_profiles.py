"""Which shapes a plan is built for: derived from the configuration, or given and checked."""

from typing import Any

import pytest

from repoagent.engines.builder.profiles import BatchRange, NetworkInput, PlanSettings, profiles_for, to_json
from repoagent.engines.protocol import Profile, ShapeRange
from repoagent.errors import InvalidArgumentError

IMAGE = NetworkInput("x", (-1, 3, -1, -1))
FIXED = NetworkInput("f", (2, 3))
SHAPE = NetworkInput("s", (2,), is_shape_tensor=True)
BATCH = BatchRange(4, 8)


def derived(*inputs: NetworkInput, **settings: Any) -> dict[str, ShapeRange]:
    (profile,) = profiles_for(inputs, PlanSettings(**settings)).profiles
    assert not profile.values
    return dict(profile.shapes)


def test_a_network_in_which_nothing_varies_needs_no_profile() -> None:
    assert profiles_for([FIXED], PlanSettings()).profiles == ()


def test_the_batch_is_the_first_dimension() -> None:
    assert derived(NetworkInput("x", (-1, 3)), batch=BATCH) == {"x": ShapeRange((1, 3), (4, 3), (8, 3))}


def test_other_dimensions_are_those_of_the_configuration() -> None:
    found = derived(IMAGE, batch=BATCH, dims={"x": [3, 32, 48]})
    assert found == {"x": ShapeRange((1, 3, 32, 48), (4, 3, 32, 48), (8, 3, 32, 48))}


def test_or_reach_from_the_smallest_to_the_largest_warm_up_sample() -> None:
    found = derived(IMAGE, batch=BATCH, dims={"x": [3, -1, 48]}, samples={"x": [[3, 64, 48], [3, 16, 48]]})
    assert found == {"x": ShapeRange((1, 3, 16, 48), (4, 3, 64, 48), (8, 3, 64, 48))}


def test_without_batches_the_first_dimension_is_like_any_other() -> None:
    assert derived(NetworkInput("x", (-1, 3)), dims={"x": [7, 3]}) == {"x": ShapeRange((7, 3), (7, 3), (7, 3))}


def test_a_configuration_that_states_nothing_gets_batches_as_in_triton_and_a_note() -> None:
    found = profiles_for([NetworkInput("x", (-1, 3)), NetworkInput("y", (-1,))], PlanSettings())
    assert found.profiles[0].shapes == {"x": ShapeRange((1, 3), (4, 3), (4, 3)), "y": ShapeRange((1,), (4,), (4,))}
    assert "batches of 1 to 4" in found.notes[0]


@pytest.mark.parametrize(
    ("inputs", "settings", "text"),
    [
        ([IMAGE], {"batch": BATCH}, "dimension 2 of input 'x' varies, and nothing states how far: give min_shapes"),
        ([IMAGE], {}, "dimension 0 of input 'x' varies"),
        ([NetworkInput("x", (-1, 3)), FIXED], {}, "dimension 0 of input 'x' varies"),
        ([FIXED], {"batch": BATCH}, "the first dimension of input 'f' is 2, but max_batch_size is 8"),
        ([NetworkInput("x", ())], {"batch": BATCH}, "input 'x' has no dimension, but max_batch_size is 8"),
        ([SHAPE], {}, "input 's' is a shape tensor, and nothing states which values it takes"),
    ],
)
def test_what_nothing_states_is_refused_by_input_and_dimension(
    inputs: list[NetworkInput], settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        profiles_for(inputs, PlanSettings(**settings))
    assert text in str(caught.value)


def test_given_profiles_are_taken_as_they_are() -> None:
    profiles = [
        {"x": ((1, 3, 8, 8), (1, 3, 8, 8), (2, 3, 8, 8)), "s": ((1, 1), (2, 2), (4, 4))},
        {"x": ((4, 3, 8, 8), (8, 3, 8, 8), (8, 3, 8, 8)), "s": ((1, 1), (2, 2), (4, 4)), "f": ((2, 3),) * 3},
    ]
    found = profiles_for([IMAGE, FIXED, SHAPE], PlanSettings(batch=BATCH, profiles=profiles)).profiles
    values = {"s": ShapeRange((1, 1), (2, 2), (4, 4))}
    assert found == (
        Profile({"x": ShapeRange((1, 3, 8, 8), (1, 3, 8, 8), (2, 3, 8, 8))}, values),
        Profile({"x": ShapeRange((4, 3, 8, 8), (8, 3, 8, 8), (8, 3, 8, 8))}, values),
    )
    assert to_json(found)[0]["values"] == {"s": [[1, 1], [2, 2], [4, 4]]}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"y": ((1,),) * 3}, "profile 0 has shapes of 'y', but the model's inputs are x, f"),
        ({}, "profile 0 lacks shapes of x, which vary"),
        ({"x": ((1, 3, 8),) * 3}, "the shapes 1x3x8, 1x3x8, 1x3x8 do not fit 'x', which is -1x3x-1x-1"),
        ({"x": ((1, 4, 8, 8),) * 3}, "do not fit 'x'"),
        ({"x": ((2, 3, 8, 8), (1, 3, 8, 8), (4, 3, 8, 8))}, "the least shape must not exceed the best"),
        ({"x": ((1, 3, 8, 8), (4, 3, 8, 8), (2, 3, 8, 8))}, "nor that the most"),
        ({"x": ((1, 3, 8, 8),) * 3, "f": ((1, 3),) * 3}, "the shape of 'f' is 2x3 and does not vary"),
    ],
)
def test_given_profiles_that_do_not_fit_are_refused(given: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        profiles_for([IMAGE, FIXED], PlanSettings(profiles=[given]))
    assert text in str(caught.value)


def test_profiles_by_the_names_of_dimensions() -> None:
    named = [NetworkInput("x", (-1, 3, -1), names=("batch", None, "tokens")), FIXED]
    symbols = [{"batch": (1, 2, 4), "tokens": (1, 1, 1)}, {"batch": (1, 1, 4), "tokens": (2, 8, 16)}]
    found = profiles_for(named, PlanSettings(symbols=symbols)).profiles
    assert [one.shapes["x"] for one in found] == [
        ShapeRange((1, 3, 1), (2, 3, 1), (4, 3, 1)),
        ShapeRange((1, 3, 2), (1, 3, 8), (4, 3, 16)),
    ]
    with pytest.raises(InvalidArgumentError, match="dimension 0 of input 'x' varies, and is none of batch"):
        profiles_for([NetworkInput("x", (-1,), names=("n",))], PlanSettings(symbols=symbols))


def test_settings_survive_json() -> None:
    import json

    profiles = [{"x": ((1, 3), (2, 3), (4, 3))}]
    symbols = [{"batch": (1, 2, 4)}]
    settings = PlanSettings(BATCH, {"x": [3]}, {"x": [[3]]}, profiles, symbols, 1000, 5, False, ["8.9"])
    assert PlanSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings
    assert PlanSettings.from_json(json.loads(json.dumps(PlanSettings().to_json()))).batch is None


@pytest.mark.parametrize("size", [2**31, 2**40, 999_999_999_999])
def test_a_size_that_the_builder_would_cut_to_32_bits_is_refused(size: int) -> None:
    """It takes 2**40 for 0, and builds."""
    with pytest.raises(InvalidArgumentError, match=r"profile 0: 'x' .* has a size beyond 2147483647, the largest"):
        derived(NetworkInput("x", (-1, 3)), profiles=[{"x": ((1, 3), (1, 3), (size, 3))}])
    with pytest.raises(InvalidArgumentError, match="has a size beyond"):
        derived(IMAGE, batch=BATCH, dims={"x": [3, size, 48]})
