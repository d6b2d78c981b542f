"""An inference response, read back with other parsers."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from repoagent_server.codec import infer_response, json_text
from repoagent_server.codec.binary import Buffer
from repoagent_server.codec.infer_request import OutputEncoding
from repoagent_server.codec.infer_response import is_long
from repoagent_server.codec.infer_response import write_infer as write_pieces

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import InferResponse
from repoagent.serving.requests.tensor import DataType, Tensor


def _response(**outputs: Any) -> InferResponse:
    tensors = {name: value if isinstance(value, Tensor) else Tensor.of(value) for name, value in outputs.items()}
    return InferResponse("m", "1", "", tensors)


def write_infer(response: InferResponse, form: OutputEncoding) -> tuple[bytes, Sequence[Buffer]]:
    pieces, parts = write_pieces(response, form)
    return b"".join(pieces), parts


def test_json_holds_values_flat_in_row_major_order() -> None:
    response = _response(Y=np.arange(6, dtype=np.int32).reshape(3, 2).T)
    text, parts = write_infer(response, OutputEncoding())
    assert not parts
    assert json.loads(text) == {
        "model_name": "m",
        "model_version": "1",
        "outputs": [{"name": "Y", "datatype": "INT32", "shape": [2, 3], "data": [0, 2, 4, 1, 3, 5]}],
    }


def test_id_and_parameters_come_first() -> None:
    response = InferResponse("m", "1", "r", {}, {"p": True})
    text, _ = write_infer(response, OutputEncoding())
    assert text == b'{"id":"r","model_name":"m","model_version":"1","parameters":{"p":true},"outputs":[]}'


def test_binary_outputs_are_views_in_the_order_of_the_json() -> None:
    values = np.arange(4, dtype=np.float32)
    response = _response(A=values, B=np.array([7], np.uint8), C=np.array([1.5]))
    text, parts = write_infer(response, OutputEncoding(binary={"A": True, "B": True}))
    outputs = {output["name"]: output for output in json.loads(text)["outputs"]}
    assert [outputs[name].get("parameters") for name in "ABC"] == [
        {"binary_data_size": 16},
        {"binary_data_size": 1},
        None,
    ]
    assert outputs["C"]["data"] == [1.5]
    assert b"".join(parts) == values.tobytes() + b"\7"
    assert np.shares_memory(np.frombuffer(parts[0], np.uint8), values)


@pytest.mark.parametrize("name", ["x", "l", "u", "lu", "null", "data"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (0, 2), (1, 0), (1, 2)])
def test_what_is_not_finite_is_found_wherever_it_is(name: str, value: float, place: tuple[int, int]) -> None:
    arrays = np.ones((2, 3), np.float32)
    arrays[place] = value
    text, _ = write_infer(_response(**{name: arrays[0], "other": arrays[1]}), OutputEncoding())
    np.testing.assert_array_equal([output["data"] for output in json.loads(text)["outputs"]], arrays)


def test_arrays_that_are_not_finite_do_not_disturb_the_others() -> None:
    response = _response(A=np.array([np.nan, 1]), null=np.array([2], np.int8), B=np.array([[-np.inf]], np.float32))
    text, _ = write_infer(response, OutputEncoding())
    assert [output["data"] for output in json.loads(text.replace(b"NaN", b"0"))["outputs"]] == [[0, 1], [2], [-np.inf]]


def test_a_name_that_reads_like_a_missing_number_changes_nothing() -> None:
    text, _ = write_infer(_response(null=np.array([0.5, 2])), OutputEncoding())
    assert json.loads(text)["outputs"][0] == {"name": "null", "datatype": "FP64", "shape": [2], "data": [0.5, 2.0]}


def test_text_and_bytes_both_become_strings_or_length_and_bytes() -> None:
    response = _response(A=np.array(["é", b"a\0"], object), B=np.array([b"x"], object))
    text, parts = write_infer(response, OutputEncoding(binary={"B": True}))
    assert json.loads(text)["outputs"][0]["data"] == ["é", "a\0"]
    assert parts[0] == b"\1\0\0\0x"


@pytest.mark.parametrize("text", ["x" * 300, "é" * 150, "a😀" * 80, 'q"\\\n' * 100])
def test_a_long_text_is_written_in_pieces_that_make_the_same(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "LONG_TEXT", 64)
    for texts in ([text], ["a", text, "b", text[:40], text[:40]], [text, text]):
        assert json.loads(b"".join(json_text.list_pieces(map(str.encode, texts)))) == texts
    garbage = b"\xff" * 65 + b"\x80" * 200  # each byte stays as it came
    assert b"".join(json_text.list_pieces([garbage])) == b'["%b"]' % garbage


def test_what_is_long_stays_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of all of it keeps the interpreter from every other request."""
    monkeypatch.setattr(json_text, "LONG_TEXT", 64)
    monkeypatch.setattr(json_text, "LONG_ARRAY", 8)
    monkeypatch.setattr(infer_response, "LONG_ARRAY", 8)
    numbers = np.arange(99, dtype=np.float32)
    numbers[50] = np.nan
    outputs = {"a\0": np.array([b"\0" * 200, b"x"], object), "b": np.array([1.5]), "null": numbers, "d": numbers[:3]}
    outputs |= {"e": np.array([b"short"], object), "f": np.array([b"y"] * 40, object)}
    pieces, _ = write_pieces(_response(**outputs), OutputEncoding())
    assert max(map(len, pieces)) < 6 * 64 + 2  # a byte may become six
    read = {output["name"]: output["data"] for output in json.loads(b"".join(pieces))["outputs"]}
    assert list(read) == list(outputs)
    assert (read["a\0"], read["e"], read["f"]) == (["\0" * 200, "x"], ["short"], ["y"] * 40)
    for name in ("b", "null", "d"):
        np.testing.assert_array_equal(read[name], outputs[name])


def test_a_few_long_texts_are_long_to_write_in_either_form() -> None:
    short, long = (_response(Y=np.array([b"x" * size], object)) for size in (1000, (1 << 20) + 1))
    for form in (OutputEncoding(), OutputEncoding(default_binary=True)):
        assert not is_long(short, form)
        assert is_long(long, form)


@pytest.mark.parametrize("data_type", [DataType.FP16, DataType.BF16])
def test_types_without_json_form_go_in_binary_only(data_type: DataType) -> None:
    array = np.array([1, 2], np.float16 if data_type is DataType.FP16 else np.uint16)
    response = _response(Y=Tensor(data_type, array))
    with pytest.raises(InvalidArgumentError, match=f"sending {data_type.name} data via JSON is not supported"):
        write_infer(response, OutputEncoding())
    text, parts = write_infer(response, OutputEncoding(default_binary=True))
    assert json.loads(text)["outputs"][0]["datatype"] == data_type.name
    assert b"".join(parts) == array.tobytes()


def test_an_empty_output_is_an_empty_list_or_nothing() -> None:
    response = _response(Y=np.empty((0, 3), np.float32))
    assert json.loads(write_infer(response, OutputEncoding())[0])["outputs"][0]["data"] == []
    text, parts = write_infer(response, OutputEncoding(default_binary=True))
    assert json.loads(text)["outputs"][0]["parameters"] == {"binary_data_size": 0}
    assert not parts


def test_big_endian_arrays_are_sent_little_endian() -> None:
    response = _response(Y=Tensor(DataType.INT32, np.array([1, 2], ">i4")))
    _, parts = write_infer(response, OutputEncoding(default_binary=True))
    assert b"".join(parts) == np.array([1, 2], "<i4").tobytes()
