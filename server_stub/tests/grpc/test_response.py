"""Errors whose text is longer than what gRPC lets a status have."""

from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.response import ResponseWriter, details, frame_of, infer_message
from tritonclient.utils import InferenceServerException

from repoagent.serving.requests.request import InferResponse
from repoagent.serving.requests.tensor import DataType, Tensor


@pytest.mark.parametrize("text", ["", "x" * 6000, "é" * 500, "%" * 2000, "a\nb" * 1000])
def test_what_fits_is_left_as_it_is(text: str) -> None:
    assert details(text) == text


@pytest.mark.parametrize("char", ["x", "é", "😀", "%", "\n"])
def test_the_end_of_what_does_not_fit_is_cut(client: triton.InferenceServerClient, core: Any, char: str) -> None:
    name = char * 20_000
    with pytest.raises(InferenceServerException) as caught:
        client.load_model(name, client_timeout=60)
    assert caught.value.status() == "StatusCode.INTERNAL"
    text = caught.value.message()
    assert text.startswith(f"failed to load '{char * 400}")
    assert text.endswith(" ... (cut)")
    assert core.calls == [("load", name, None, None)]


# Responses made of known pieces are, to whoever parses them, those made by the protobuf library.


def response(*arrays: np.ndarray, **fields: object) -> InferResponse:
    return InferResponse(
        "m",
        "1",
        outputs={f"out{index}": Tensor.of(array) for index, array in enumerate(arrays)},
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("length", [0, 1, 127, 128, 300, 16384, 2**21, 2**28 - 1])
def test_a_frame_is_the_tag_and_the_length(length: int) -> None:
    data = frame_of(6, length)
    assert data[0] == 6 << 3 | 2
    assert sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data[1:])) == length
    assert [byte >> 7 for byte in data[1:]] == [1] * (len(data) - 2) + [0]


@pytest.mark.parametrize(
    "answer",
    [
        response(np.ones((2, 3), np.float32), np.arange(5)),
        response(np.ones((64, 1024), np.float32)),
        response(np.ones((1024, 64), np.float32).T),
        response(np.arange(12).reshape(3, 4)[:, ::2]),
        response(np.zeros((0, 4), np.float32)),
        response(np.array(3, np.float32)),
        response(np.array([b"a", b"bcd"], object), np.ones(1)),
        response(np.ones(3), id="7"),
        response(np.ones(3), parameters={"a": 1, "b": True, "c": "x", "d": 1.5}),
        response(),
    ],
    ids=["two", "large", "transposed", "strided", "empty", "scalar", "bytes", "id", "parameters", "none"],
)
def test_what_is_written_is_the_message(answer: InferResponse) -> None:
    writer = ResponseWriter()
    for _ in range(2):
        assert pb.ModelInferResponse.FromString(writer.write(answer)) == infer_message(answer)


def test_outputs_that_are_stored_elsewhere_are_empty() -> None:
    answer = response(np.ones(3), np.ones(4))
    writer = ResponseWriter()
    for stored in ((), ("out0",)):
        assert pb.ModelInferResponse.FromString(writer.write(answer, stored)) == infer_message(answer, stored)


def test_values_are_not_remembered_and_shapes_and_types_are_told_apart() -> None:
    writer = ResponseWriter()
    for array in (np.ones(4, np.float32), np.zeros(4, np.float32), np.ones(4, np.int32), np.ones((2, 2), np.float32)):
        answer = response(array)
        assert pb.ModelInferResponse.FromString(writer.write(answer)) == infer_message(answer)


def test_an_array_that_is_not_of_the_type_it_is_said_to_be_goes_out_whole() -> None:
    """A fault of a backend must not shift what follows on the wire."""
    writer = ResponseWriter()
    for array in (np.ones(4, np.float32), np.ones(4, np.float64)):
        answer = InferResponse("m", "1", outputs={"y": Tensor(DataType.FP32, array)})
        assert pb.ModelInferResponse.FromString(writer.write(answer)) == infer_message(answer)


def test_what_is_remembered_is_bounded() -> None:
    writer = ResponseWriter()
    for size in range(1000):
        writer.write(response(np.ones(size + 1, np.int8)))
    assert len(writer._known) <= 256
