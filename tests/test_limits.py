"""The list of limits."""

from dataclasses import fields, replace

import pytest

from repoagent.errors import InvalidArgumentError
from repoagent.limits import DEFAULT_LIMITS, Limits


def test_every_limit_has_a_default_and_a_text() -> None:
    for one in fields(Limits):
        assert getattr(DEFAULT_LIMITS, one.name) == one.default
        assert one.metadata["help"].endswith(".")


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_a_limit_is_a_whole_number_above_0(value: object) -> None:
    with pytest.raises(InvalidArgumentError, match="--limit-config-bytes must be a whole number above 0"):
        replace(DEFAULT_LIMITS, config_bytes=value)  # type: ignore[arg-type]


def test_a_limit_that_0_turns_off_takes_0_and_nothing_below() -> None:
    assert replace(DEFAULT_LIMITS, build_seconds=0).build_seconds == 0
    with pytest.raises(InvalidArgumentError, match="--limit-build-seconds must be a whole number, or 0 for no limit"):
        replace(DEFAULT_LIMITS, build_seconds=-1)
