"""Universal Binary JSON: what XGBoost writes is read, and a count never allocates what is not there."""

from typing import Any

import numpy as np
import pytest
from repoagent_convert.trees.ubj import read_ubj

from repoagent.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"Z", None),
        (b"T", True),
        (b"i\xff", -1),
        (b"U\xff", 255),
        (b"I\x01\x00", 256),
        (b"l\x00\x01\x00\x00", 65536),
        (b"L\x00\x00\x00\x01\x00\x00\x00\x00", 1 << 32),
        (b"d\x3f\x80\x00\x00", 1.0),
        (b"D\x3f\xf0\x00\x00\x00\x00\x00\x00", 1.0),
        (b"SU\x02ab", "ab"),
        (b"[i\x01T]", [1, True]),
        (b"[#U\x02i\x01Z", [1, None]),
        (b"{U\x01a{}U\x01b[]}", {"a": {}, "b": []}),
    ],
)
def test_values_are_read(data: bytes, value: Any) -> None:
    assert read_ubj(data) == value


def test_lists_of_one_kind_are_arrays() -> None:
    assert np.array_equal(read_ubj(b"[$d#U\x02\x3f\x80\x00\x00\x40\x00\x00\x00"), [1.0, 2.0])


HUGE = b"L\x7f\xff\xff\xff\xff\xff\xff\xff"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[",
        b"{U\x01a",
        b"S" + HUGE,
        b"[#" + HUGE,
        b"[$d#" + HUGE,
        b"[$Z#" + HUGE,
        b"[$d#i\xff",
        b"[#i\xff",
        b"Si\xff",
        b"Sd\x00\x00\x00\x00",
        b"[$d",
        b"q",
        b"ZZ",
        b"{U\x01aZU\x01aZ}",
        b"[" * 100 + b"]" * 100,
    ],
)
def test_what_is_damaged_or_larger_than_the_file_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        read_ubj(data)
