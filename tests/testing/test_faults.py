"""The names of moments."""

import importlib

import pytest

from repoagent.testing import STORAGE_POINTS, Point


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("mine LOAD", Point("mine LOAD")),
        ("after mine LOAD", Point("mine LOAD", after=True)),
        ("mine key #3", Point("mine key", count=3)),
        ("after storage cache publish #2", Point("storage cache publish", after=True, count=2)),
    ],
)
def test_a_point_is_read_and_written(text: str, point: Point) -> None:
    assert Point.parse(text) == point
    assert str(point) == text


@pytest.mark.parametrize("text", ["", "LOAD", "mine LOAD #0", "mine LOAD #x", "after", " LOAD"])
def test_what_is_no_point_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a point; expected"):
        Point.parse(text)


def test_a_misspelt_storage_point_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no storage point 'cache pubish'; there are: .*cache publish"):
        Point.parse("storage cache pubish")


def test_a_misspelt_call_of_an_agent_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no call 'LAOD'; there are: LOAD, .*, acquire_location, .*, cancelled, "):
        Point.parse("after mine LAOD #2")


@pytest.mark.parametrize("target", STORAGE_POINTS.values())
def test_every_storage_point_is_a_function_that_exists(target: str) -> None:
    module, _, path = target.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    assert callable(found)
