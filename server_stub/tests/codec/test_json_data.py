"""The ``data`` of a tensor in JSON."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from repoagent_server.codec.binary import BY_NAME, RequestLabel
from repoagent_server.codec.json_data import array_from_json

from repoagent.errors import InternalError, InvalidArgumentError
from repoagent.serving.requests.tensor import Array

Reader = Callable[[str, list[Any], list[int]], Array]


@pytest.fixture(params=[True, False], ids=["looked through", "packed at once"])
def read(request: pytest.FixtureRequest) -> Reader:
    """Both ways to read: the quick one may only be asked for where no value is a boolean."""

    def call(datatype: str, data: list[Any], shape: list[int]) -> Array:
        thorough = request.param or any(isinstance(value, bool) for value in data)
        return array_from_json(BY_NAME[datatype], data, shape, int(np.prod(shape)), "X", RequestLabel("m"), thorough)

    return call


@pytest.mark.parametrize("datatype", [name for name in BY_NAME if name not in ("FP16", "BF16", "BYTES", "BOOL")])
def test_numbers_keep_type_and_shape(read: Reader, datatype: str) -> None:
    array = read(datatype, [1, 2, 3, 4, 5, 6], [2, 3])
    assert array.dtype == BY_NAME[datatype].dtype
    assert array.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT32", "UINT8", "INT64"])
def test_few_values_and_many_are_read_alike(read: Reader, datatype: str) -> None:
    values = [number % 200 for number in range(70_000)]
    assert read(datatype, values[:100], [100]).tolist() == values[:100]
    assert read(datatype, values, [70_000]).tolist() == values


def test_floats_may_be_written_as_integers_and_overflow_to_infinity(read: Reader) -> None:
    assert read("FP32", [1, 2.5, -1e39, 2**70], [4]).tolist() == [1, 2.5, -np.inf, 2**70]


def test_booleans_and_strings_have_types_of_their_own(read: Reader) -> None:
    assert read("BOOL", [True, False], [2]).tolist() == [True, False]
    assert read("BYTES", ["a\0", "é"], [2]).tolist() == [b"a\0", "é".encode()]


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [[[1]], [[2]], [[3]], [[4]]], [1, [2, [3]], [[4]]]])
def test_nesting_does_not_matter(read: Reader, data: list[Any]) -> None:
    assert read("FP32", data, [4]).tolist() == [1, 2, 3, 4]


def test_deep_nesting_beside_many_values_takes_no_time(read: Reader) -> None:
    deep: list[Any] = [1]
    for _ in range(98):
        deep = [deep]
    assert read("INT64", [*range(200_000), deep], [200_001])[-1] == 1
    for data in ([*range(200_000), [deep]], [[deep]]):
        with pytest.raises(InvalidArgumentError, match=r"JSON nesting depth exceeds maximum allowed limit \(100\)"):
            read("INT64", data, [200_001])


@pytest.mark.parametrize(
    ("datatype", "low", "high"),
    [("INT8", -128, 127), ("UINT8", 0, 255), ("INT32", -(2**31), 2**31 - 1), ("UINT64", 0, 2**64 - 1)],
)
def test_integers_may_use_their_whole_range_and_no_more(read: Reader, datatype: str, low: int, high: int) -> None:
    assert read(datatype, [low, high], [2]).tolist() == [low, high]
    with pytest.raises(InvalidArgumentError, match=f"{high + 1} is out of range for {datatype}"):
        read(datatype, [low, high + 1], [2])


@pytest.mark.parametrize(
    ("datatype", "value", "reason"),
    [
        ("FP32", True, "attempt to access JSON non-number as double"),
        ("FP32", "1", "attempt to access JSON non-number as double"),
        ("FP64", None, "attempt to access JSON non-number as double"),
        ("INT32", 1.0, "attempt to access JSON non-signed-integer as signed-integer"),
        ("INT32", True, "attempt to access JSON non-signed-integer as signed-integer"),
        ("UINT16", -1, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ("BOOL", 0, "attempt to access JSON non-boolean as boolean"),
    ],
)
def test_a_value_of_another_type_is_never_converted(read: Reader, datatype: str, value: Any, reason: str) -> None:
    with pytest.raises(InternalError, match=f"Unable to parse 'data': {reason}"):
        read(datatype, [value], [1])


def test_types_without_json_form_are_refused(read: Reader) -> None:
    with pytest.raises(InvalidArgumentError, match="receiving BF16 data via JSON is not supported"):
        read("BF16", [1], [1])
