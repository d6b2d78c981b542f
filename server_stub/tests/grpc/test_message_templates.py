"""Requests that are made without parsing are what parsing would have made of them."""

import numpy as np
import pytest
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.message_templates import MessageTemplates
from repoagent_server.grpc.request import read_infer

from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.tensor import DataType

_Input = pb.ModelInferRequest.InferInputTensor
_Output = pb.ModelInferRequest.InferRequestedOutputTensor


def message(*arrays: np.ndarray, model: str = "m", **fields: object) -> pb.ModelInferRequest:
    inputs = [
        _Input(name=f"in{index}", datatype={"f": "FP32", "b": "INT8"}[array.dtype.char], shape=array.shape)
        for index, array in enumerate(arrays)
    ]
    raw = [array.tobytes() for array in arrays]
    return pb.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=raw, **fields)  # type: ignore[arg-type]


def floats(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def remembered(known: MessageTemplates, sent: pb.ModelInferRequest) -> bytes:
    data = sent.SerializeToString()
    known.remember(data, sent, read_infer(sent).request)
    return data


def same(one: InferRequest, other: InferRequest) -> bool:
    plain = ("model_name", "model_version", "id", "requested_outputs", "parameters", "sender", "volatile")
    return (
        all(getattr(one, name) == getattr(other, name) for name in plain)
        and list(one.inputs) == list(other.inputs)
        and all(
            tensor.data_type is other.inputs[name].data_type
            and tensor.array.dtype == other.inputs[name].array.dtype
            and tensor.array.shape == other.inputs[name].array.shape
            and tensor.array.tobytes() == other.inputs[name].array.tobytes()
            for name, tensor in one.inputs.items()
        )
    )


def test_a_request_like_an_earlier_one_is_what_parsing_makes_of_it() -> None:
    known = MessageTemplates()
    outputs = [_Output(name="y"), _Output(name="z")]
    remembered(known, message(floats(1, 2), np.ones((1, 3), np.int8), model_version="1", outputs=outputs))
    later = message(floats(5, 6), np.full((1, 3), 7, np.int8), model_version="1", outputs=outputs)
    found = known.read(later.SerializeToString())
    assert found is not None
    assert same(found, read_infer(later).request)


def test_tensors_are_aligned_wherever_they_lie() -> None:
    known = MessageTemplates()
    for size in range(1, 9):
        sent = message(np.ones((1, size), np.int8), floats(1, 2))
        found = known.read(remembered(known, sent))
        assert found is not None
        assert found.inputs["in1"].array.flags.aligned
        assert found.inputs["in1"].data_type is DataType.FP32
        np.testing.assert_array_equal(found.inputs["in1"].array, floats(1, 2))


def test_what_differs_in_more_than_values_is_not_known() -> None:
    known = MessageTemplates()
    remembered(known, message(floats(1, 2, 3, 4)))
    others = [
        message(floats(1, 2, 3, 4), model="n"),
        message(floats(1, 2, 3, 4).reshape(2, 2)),
        message(floats(1, 2, 3)),
        message(floats(1, 2, 3, 4), id="7"),
        message(np.ones((1, 16), np.int8)),
    ]
    assert [known.read(other.SerializeToString()) for other in others] == [None] * len(others)


def test_a_tensor_of_another_length_in_a_message_of_the_same_length_is_not_known() -> None:
    known = MessageTemplates()
    data = remembered(known, message(floats(1), floats(2)))
    wrong = bytearray(data)
    wrong[data.rindex(b"\x3a\x04") + 1] = 3
    assert known.read(bytes(wrong)) is None
    assert known.read(data) is not None


@pytest.mark.parametrize(
    "sent",
    [
        message(floats(1), id="1"),
        message(floats(1), parameters={"priority": pb.InferParameter(int64_param=1)}),
        message(
            floats(1), outputs=[_Output(name="y", parameters={"classification": pb.InferParameter(int64_param=2)})]
        ),
        message(np.zeros((1, 0), np.float32)),
        message(),
        message(model="m" * 5000),
        pb.ModelInferRequest(
            model_name="m",
            inputs=[_Input(name="x", datatype="BYTES", shape=[1])],
            raw_input_contents=[b"\x01\x00\x00\x00a"],
        ),
        pb.ModelInferRequest(
            model_name="m",
            inputs=[_Input(name="x", datatype="FP32", shape=[1], contents=pb.InferTensorContents(fp32_contents=[1.0]))],
        ),
    ],
    ids=["id", "parameter", "classification", "empty", "no input", "long", "bytes", "typed"],
)
def test_only_plain_requests_are_remembered(sent: pb.ModelInferRequest) -> None:
    known = MessageTemplates()
    assert known.read(remembered(known, sent)) is None


def test_fields_in_an_unusual_order_are_parsed_every_time() -> None:
    """Tensors in front of what they belong to, as a client may write them: nothing can be told from the beginning."""
    known = MessageTemplates()
    tensors = pb.ModelInferRequest(raw_input_contents=[floats(1).tobytes()]).SerializeToString()
    rest = message(floats(1))
    rest.ClearField("raw_input_contents")
    data = tensors + rest.SerializeToString()
    parsed = pb.ModelInferRequest.FromString(data)
    known.remember(data, parsed, read_infer(parsed).request)
    assert known.read(data) is None


def test_an_unknown_field_that_looks_like_a_tensor_is_none() -> None:
    """What looks like the tensor at the end may be inside another field; the true tensor came before."""
    known = MessageTemplates()
    sent = message(floats(1))
    tensor = sent.raw_input_contents[0]
    looks_like_it = b"\x3a\x04" + tensor
    data = sent.SerializeToString() + b"\x7a" + bytes([len(looks_like_it)]) + looks_like_it
    parsed = pb.ModelInferRequest.FromString(data)
    known.remember(data, parsed, read_infer(parsed).request)
    assert known.read(data) is None


def test_what_is_remembered_is_bounded() -> None:
    known = MessageTemplates()
    for index in range(600):
        remembered(known, message(floats(1), model=f"model{index}"))
        remembered(known, message(floats(*range(1 + index))))
    assert len(known._by_length) <= 256
    assert max(map(len, known._by_length.values())) <= 8
