"""Tables: each form of MLflow's protocol to tensors, answers to rows, and what is refused with which words."""

import json
import math
from typing import Any

import numpy as np
import pytest
from repoagent_server.codec.long_json import LONG_JSON
from repoagent_server.codec.table import MAX_TABLE, read_table, write_table

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.serving.requests.request import Asked, InferResponse
from repoagent.serving.requests.tensor import DataType, Tensor

_MATRIX = {"input": ("FP32", [-1, 3])}
_COLUMNS = {"age": ("FP64", [-1, 1]), "city": ("BYTES", [-1, 1]), "member": ("BOOL", [-1]), "visits": ("INT64", [-1])}
_PEOPLE: list[dict[str, Any]] = [
    {"age": 31.5, "city": "Köln", "member": True, "visits": 3},
    {"age": None, "city": "", "member": False, "visits": -1},
]


def read(
    document: Any, inputs: dict[str, tuple[str, list[int]]] = _MATRIX, limit: int = 1 << 20, **options: Any
) -> Asked:
    items = [{"name": name, "datatype": kind, "shape": shape} for name, (kind, shape) in inputs.items()]
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_table(body, {"inputs": items}, "m", "2", limit)


def split(rows: list[Any], columns: list[Any] | None = None) -> dict[str, Any]:
    return {"dataframe_split": {"columns": ["a", "b", "c"] if columns is None else columns, "data": rows}}


@pytest.mark.parametrize(
    "document",
    [
        split([[1, 2.5, 3], [4, None, True]]),
        {"dataframe_records": [{"a": 1, "b": 2.5, "c": 3}, {"c": True, "b": None, "a": 4}]},
        {"instances": [{"a": 1, "b": 2.5, "c": 3}, {"a": 4, "b": None, "c": True}]},
        {"instances": [[1, 2.5, 3], [4, None, True]]},
        {"inputs": [[1, 2.5, 3], [4, None, True]]},
        {"inputs": {"a": [1, 4], "b": [2.5, None], "c": [3, True]}},
        {"inputs": {"input": [[1, 2.5, 3], [4, None, True]]}},
    ],
)
def test_each_form_is_the_matrix_of_a_model_with_one_input(document: Any) -> None:
    asked = read(document)
    assert (asked.model_name, asked.model_version, list(asked.inputs)) == ("m", "2", ["input"])
    tensor = asked.inputs["input"]
    assert tensor.data_type is DataType.FP32
    np.testing.assert_array_equal(tensor.array, np.array([[1, 2.5, 3], [4, math.nan, 1]], np.float32))


@pytest.mark.parametrize("form", ["dataframe_records", "instances", "dataframe_split"])
def test_a_column_is_the_input_of_its_name_and_others_are_left_out(form: str) -> None:
    rows = [{"unused": [1], **person} for person in _PEOPLE]
    frame = {"index": [7, 9], "columns": list(rows[0]), "data": [list(row.values()) for row in rows]}
    inputs = read({form: frame if form == "dataframe_split" else rows}, _COLUMNS).inputs
    assert {name: tensor.array.shape for name, tensor in inputs.items()} == {
        "age": (2, 1), "city": (2, 1), "member": (2,), "visits": (2,)
    }  # fmt: skip
    np.testing.assert_array_equal(inputs["age"].array, [[31.5], [math.nan]])
    assert inputs["city"].array.ravel().tolist() == ["Köln".encode(), b""]
    assert inputs["member"].array.tolist() == [True, False]
    assert inputs["visits"].array.tolist() == [3, -1]


def test_a_column_may_hold_lists_and_params_are_the_parameters_of_the_request() -> None:
    document = {"inputs": {"x": [[[1, 2]], [[3, 4]]]}, "params": {"top_k": 3, "mode": "a"}}
    asked = read(document, {"x": ("INT32", [-1, 1, 2])})
    assert asked.inputs["x"].array.tolist() == [[[1, 2]], [[3, 4]]]
    assert dict(asked.parameters) == {"top_k": 3, "mode": "a"}


_ONE_OF = "a table is an object with one of 'dataframe_split', 'dataframe_records', 'instances', 'inputs'"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"{", "failed to parse the request JSON buffer"),
        ([], _ONE_OF),
        ({}, _ONE_OF),
        ({"instances": [[1]], "inputs": [[1]]}, _ONE_OF),
        ({"instances": [[1, 2, 3]], "threshold": 1}, "a table has no member 'threshold'"),
        ({"instances": [[1, 2, 3]], "params": [1]}, "'params' of the table is not an object"),
        ({"dataframe_split": [[1]]}, "'dataframe_split' is an object with the lists 'columns' and 'data'"),
        (split([[1, 2, 3], [1, 2]]), "row 1 of 'data' has not 3 values, one for each column"),
        (split([[1, 2]], ["a", "a"]), "'columns' has a name twice"),
        (split([[1, 2]], ["a", "b"]), "the table has 2 columns, and the model takes 3"),
        ({"dataframe_records": []}, "'dataframe_records' is a list with an object for each row"),
        ({"dataframe_records": [{"a": 1}, {"b": 1}]}, "row 1 has not the members of row 0: 'a'"),
        ({"instances": {"a": 1}}, "'instances' is a list with an element for each row"),
        ({"inputs": {"a": 1}}, "'inputs' is a list, or an object with a list for each input"),
        ({"instances": [[1, 2, 3], [1, 2]]}, "the lists of input 'input' have different lengths"),
        ({"instances": [[1, 2, 3], 4]}, "the lists of input 'input' have different lengths"),
        ({"instances": [[1, 2, "3"]]}, "attempt to access JSON non-number as double: input 'input'"),
        ({"instances": [[1, 2, {}]]}, "attempt to access JSON non-number as double: input 'input'"),
    ],
)  # fmt: skip
def test_what_is_no_table_for_the_model_is_refused(document: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        read(document)
    assert words in raised.value.message


def test_inputs_that_no_column_is_called_after_are_refused_with_a_few_of_the_names() -> None:
    two = {"left": ("FP32", [-1]), "right": ("FP32", [-1])}
    with pytest.raises(RepoAgentError, match="the table has no names, and the model has the inputs 'left', 'right'"):
        read({"instances": [[1]]}, two)
    many = split([list(range(1000))], ["x" * 100 + str(number) for number in range(1000)])
    with pytest.raises(RepoAgentError, match="the table's columns are 'xxx") as raised:
        read(many, two)
    assert len(raised.value.message) < 700
    assert "..., and the inputs 'left', 'right'" in raised.value.message


def test_sizes_are_bounded() -> None:
    assert MAX_TABLE < LONG_JSON  # what is read in one go elsewhere
    with pytest.raises(RepoAgentError, match=f"more than {MAX_TABLE}; send fewer rows, or tensors to 'infer'"):
        read(b" " * (MAX_TABLE + 1))
    with pytest.raises(RepoAgentError, match="the table's tensors are larger than allowed, from input 'input' on"):
        read({"instances": [[1, 2, 3]]}, limit=11)
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    with pytest.raises(RepoAgentError, match="JSON nesting depth exceeds"):
        read({"instances": deep})


def test_null_is_no_text_and_no_whole_number() -> None:
    for kind in ("BYTES", "INT64"):
        with pytest.raises(InvalidArgumentError, match=": input 'x'"):
            read({"inputs": {"x": [None]}}, {"x": (kind, [-1])})


def answer(**arrays: Any) -> Any:
    outputs = {name: Tensor.of(np.asarray(array)) for name, array in arrays.items()}
    return json.loads(write_table(InferResponse("m", "1", "", outputs)))


def test_one_output_is_its_rows_and_a_column_is_flat() -> None:
    assert answer(y=np.array([[0.1], [2]], np.float32)) == {"predictions": [0.1, 2.0]}
    assert answer(y=np.array([[1, 2], [3, 4]])) == {"predictions": [[1, 2], [3, 4]]}
    assert answer(y=np.zeros((2, 0), np.float32)) == {"predictions": [[], []]}
    assert answer(y=np.array([math.nan, 1.0])) == {"predictions": [None, 1.0]}


def test_several_outputs_are_objects_by_row() -> None:
    label = np.array([b"a", "é".encode()], np.object_)
    assert answer(label=label, scores=np.array([[0.5, 0.25], [1, 0]], np.float32)) == {
        "predictions": [{"label": "a", "scores": [0.5, 0.25]}, {"label": "é", "scores": [1.0, 0.0]}]
    }
    assert answer(a=np.array([1, 2]), b=np.array([3])) == {"predictions": {"a": [1, 2], "b": [3]}}
