"""Generate requests: from members to inputs and parameters, and what is refused with which words."""

import json
from typing import Any

import numpy as np
import pytest
from repoagent_server.codec.generate_request import read_generate

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError
from repoagent.serving.requests.request import Asked
from repoagent.serving.requests.tensor import DataType

_DEFAULT = {
    "TEXT": ("BYTES", [-1, 1]),
    "N": ("INT32", [1]),
    "U": ("UINT8", [-1]),
    "F": ("FP32", [-1]),
    "B": ("BOOL", [-1]),
    "H": ("FP16", [-1]),
    "G": ("BF16", [-1]),
    "GRID": ("INT64", [-1, 2, -1, 3]),
}


_TYPES = "'int', 'bool', or 'string'."


def read(body: str, inputs: dict[str, tuple[str, list[int]]] = _DEFAULT, limit: int = 1 << 20) -> Asked:
    items = [{"name": name, "datatype": kind, "shape": shape} for name, (kind, shape) in inputs.items()]
    return read_generate(body.encode(), {"inputs": items}, "m", "", limit)


def refused(body: str, **options: Any) -> tuple[type[RepoAgentError], str]:
    with pytest.raises(RepoAgentError) as raised:
        read(body, **options)
    return type(raised.value), raised.value.message


@pytest.mark.parametrize(
    ("body", "name", "shape", "values"),
    [
        ('{"TEXT": "hé"}', "TEXT", (1, 1), ["hé".encode()]),
        ('{"TEXT": ["a", "b"]}', "TEXT", (2, 1), [b"a", b"b"]),
        ('{"N": -7}', "N", (1,), [-7]),
        ('{"U": [0, 255]}', "U", (2,), [0, 255]),
        ('{"F": [1, 2.5]}', "F", (2,), [1.0, 2.5]),
        ('{"B": true}', "B", (1,), [True]),
        ('{"GRID": [1,2,3,4,5,6,7,8,9,10,11,12]}', "GRID", (1, 2, 2, 3), list(range(1, 13))),
    ],
)
def test_a_member_with_the_name_of_an_input_is_a_tensor(body: str, name: str, shape: Any, values: Any) -> None:
    tensor = read(body).inputs[name]
    assert tensor.data_type is DataType[_DEFAULT[name][0]]
    assert tensor.array.shape == shape
    assert tensor.array.ravel().tolist() == values


def test_the_innermost_variable_dimension_takes_what_the_fixed_ones_leave() -> None:
    grid = {"X": ("INT64", [2, -1, 3, -1])}
    assert read(json.dumps({"X": list(range(24))}), grid).inputs["X"].array.shape == (2, 1, 3, 4)


@pytest.mark.parametrize("body", ['{"N": [1, 2]}', '{"N": []}', '{"GRID": [1, 2, 3, 4]}'])
def test_values_that_the_fixed_dimensions_do_not_divide_are_refused(body: str) -> None:
    kind, text = refused(body)
    assert kind is InvalidArgumentError
    assert text.endswith("to tensor with proper shape")
    assert text.startswith("The schema can not convert input '")


def test_a_tensor_without_bytes_has_no_dimensions() -> None:
    assert read('{"U": []}').inputs["U"].array.shape == ()


def test_anything_else_is_a_parameter_of_its_json_type() -> None:
    request = read('{"a": "x", "b": -1, "c": true, "d": 0.5, "TEXT": "t"}')
    assert request.parameters == {"a": "x", "b": -1, "c": True, "d": 0.5}
    assert list(request.inputs) == ["TEXT"]


@pytest.mark.parametrize("value", ["null", "[1]", "{}"])
def test_a_parameter_of_another_type_is_refused(value: str) -> None:
    wanted = "parameter 'p' has invalid type. It should be either 'int', 'bool', or 'string'."
    assert refused(f'{{"p": {value}}}') == (InvalidArgumentError, wanted)


def test_the_id_is_the_requests_and_a_parameter() -> None:
    request = read('{"id": "r1"}')
    assert (request.id, request.parameters) == ("r1", {"id": "r1"})


def test_an_id_must_be_a_string() -> None:
    wanted = "Unable to parse 'id': attempt to access JSON non-string as string"
    assert refused('{"p": null, "id": 3}') == (InternalError, wanted)


def test_members_of_parameters_are_treated_as_if_they_stood_outside() -> None:
    request = read('{"parameters": {"N": 3, "a": 1}, "b": 2}')
    assert request.inputs["N"].array.tolist() == [3]
    assert request.parameters == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (
            '{"parameters": 3}',
            InternalError,
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
        ),
        (
            '{"parameters": {"N": "x"}}',
            InternalError,
            "Converting keyword: 'parameters': attempt to access JSON non-signed-integer as signed-integer: input 'N'",
        ),
        (
            '{"parameters": {"parameters": {}}}',
            InvalidArgumentError,
            "Converting keyword: 'parameters': parameter 'parameters' has invalid type. It should be either " + _TYPES,
        ),
    ],
)
def test_faults_inside_of_parameters_say_so(body: str, kind: Any, text: str) -> None:
    assert refused(body) == (kind, text)


def test_an_input_called_parameters_clashes_with_the_keyword() -> None:
    wanted = "Keyword 'parameters' for nested schema also given as input tensor name"
    assert refused('{"parameters": 1}', inputs={"parameters": ("INT32", [1])}) == (InvalidArgumentError, wanted)


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ('{"N": 1, "N": 2}', "[request id: <id_unknown>] "),
        ('{"N": 1, "N": 2, "id": "r"}', "[request id: r] "),
        ('{"N": 1, "parameters": {"N": 2}}', "Converting keyword: 'parameters': [request id: <id_unknown>] "),
    ],
)
def test_an_input_given_twice_is_refused(body: str, where: str) -> None:
    assert refused(body) == (InvalidArgumentError, f"{where}input 'N' already exists in request")


def test_of_a_parameter_given_twice_the_first_counts() -> None:
    assert read('{"a": 1, "a": 2}').parameters == {"a": 1}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"TEXT": 1}', "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ('{"TEXT": [["a"]]}', "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ('{"B": 1}', "attempt to access JSON non-boolean as boolean"),
        ('{"N": 1.5}', "attempt to access JSON non-signed-integer as signed-integer"),
        ('{"N": [[1]]}', "attempt to access JSON non-signed-integer as signed-integer"),
        ('{"N": {"a": 1}}', "attempt to access JSON non-signed-integer as signed-integer"),
        ('{"U": -1}', "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ('{"F": "1"}', "attempt to access JSON non-number as double"),
        ('{"F": null}', "attempt to access JSON non-number as double"),
        ("[]", "attempt to get members for non-object"),
    ],
)
def test_values_of_the_wrong_type_are_refused_with_tritons_words(body: str, text: str) -> None:
    where = "".join(f": input '{name}'" for name in json.loads(body))  # F23
    assert refused(body) == (InternalError, text + where)


def test_the_first_fault_in_the_document_is_the_one_that_is_told() -> None:
    assert refused('{"p": null, "N": "x"}')[1].startswith("parameter 'p'")
    assert refused('{"N": "x", "p": null}')[1].startswith("attempt to access")


@pytest.mark.parametrize(("name", "kind"), [("H", "FP16"), ("G", "BF16")])
def test_a_type_without_a_json_form_is_refused(name: str, kind: str) -> None:
    wanted = f"input '{name}' has unsupported datatype {kind}"
    assert refused(f'{{"{name}": 1}}') == (InvalidArgumentError, wanted)


def test_tensors_too_large_together_are_refused() -> None:
    body = '{"F": [1, 2], "TEXT": "abc", "GRID": [1, 2, 3, 4, 5, 6]}'
    wanted = (
        "request size of 15 bytes with input 'GRID' of size 48 bytes exceeds the maximum allowed input size of 62. Use "
        "--http-max-input-size to increase the limit."
    )
    assert refused(body, limit=62) == (InvalidArgumentError, wanted)
    assert len(read(body, limit=63).inputs) == 3


@pytest.mark.parametrize(("depth", "text"), [(99, "non-string as string"), (100, "nesting depth"), (300, "nesting")])
def test_nesting_in_a_bytes_tensor_has_a_limit(depth: int, text: str) -> None:
    # The outermost list is the tensor itself.
    kind, found = refused('{"TEXT": [' + "[" * depth + '"a"' + "]" * depth + "]}")
    assert text in found
    if "nesting" in text:
        assert (kind, found) == (InvalidArgumentError, "JSON nesting depth exceeds maximum allowed limit (100)")


def test_numbers_are_not_wrapped_around() -> None:
    kind, text = refused('{"U": 300}')
    assert kind is InvalidArgumentError
    assert "300 is out of range for UINT8" in text
    assert read('{"N": 5}').inputs["N"].array.dtype == np.int32
