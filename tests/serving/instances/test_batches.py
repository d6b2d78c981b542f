import numpy as np
import pytest

from repoagent.config import ModelConfig, read_text
from repoagent.errors import InternalError
from repoagent.serving.instances.batches import Joiner, requested_outputs
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Array, Tensor


def request(*outputs: str, **inputs: Array) -> InferRequest:
    tensors = {name: Tensor.of(array) for name, array in inputs.items()}
    return InferRequest(Asked("m", tensors, requested_outputs=outputs))


def test_inputs_are_joined_in_order_into_one_piece_of_memory() -> None:
    joined = Joiner(ModelConfig()).join([request(x=np.full((rows, 2), rows, np.int16)) for rows in (1, 3)])
    assert joined["x"].array.tolist() == [[1, 1], [3, 3], [3, 3], [3, 3]]
    assert joined["x"].array.flags.c_contiguous
    assert joined["x"].array.dtype == np.int16


def test_text_is_joined_too() -> None:
    joined = Joiner(ModelConfig()).join([request(x=np.array([[value]], object)) for value in (b"a", b"bc")])
    assert joined["x"].array.tolist() == [[b"a"], [b"bc"]]


def test_outputs_are_handed_out_without_a_copy() -> None:
    joiner = Joiner(ModelConfig())
    requests = [request(x=np.zeros((rows, 1))) for rows in (2, 1)]
    outputs = {"y": Tensor.of(np.arange(3.0).reshape(3, 1))}
    parts = joiner.split(outputs, requests, joiner.sizes(requests))
    assert [part["y"].array.tolist() for part in parts] == [[[0], [1]], [[2]]]
    assert all(np.shares_memory(part["y"].array, outputs["y"].array) for part in parts)


def test_each_request_gets_the_outputs_that_it_asked_for() -> None:
    joiner = Joiner(ModelConfig())
    requests = [request("a", x=np.zeros((1, 1))), request("b", "a", x=np.zeros((1, 1)))]
    assert requested_outputs(requests) == ("a", "b")
    outputs = {name: Tensor.of(np.zeros((2, 1))) for name in "ab"}
    assert [list(part) for part in joiner.split(outputs, requests, [1, 1])] == [["a"], ["b", "a"]]
    assert requested_outputs([*requests, request(x=np.zeros((1, 1)))]) == ()


def test_an_output_that_is_no_batch_is_an_error() -> None:
    requests = [request(x=np.zeros((1, 1)))] * 2
    with pytest.raises(InternalError, match=r"output 'y' has shape \[3, 1\], but its first dimension must be 2"):
        Joiner(ModelConfig()).split({"y": Tensor.of(np.zeros((3, 1)))}, requests, [1, 1])


def test_tensors_without_a_batch_dimension_stay_whole() -> None:
    config = read_text(
        'max_batch_size: 4 input { name: "s" is_shape_tensor: true } input { name: "x" }'
        'output { name: "t" is_shape_tensor: true } output { name: "y" }'
    )
    joiner = Joiner(config)
    requests = [request(s=np.array([7, 8, 9]), x=np.zeros((1, 2)))] * 2
    joined = joiner.join(requests)
    assert joined["s"].array.tolist() == [7, 8, 9]
    assert joined["x"].array.shape == (2, 2)
    assert joiner.sizes(requests) == [1, 1]
    parts = joiner.split({"t": joined["s"], "y": joined["x"]}, requests, [1, 1])
    assert [(part["t"].array.tolist(), part["y"].array.shape) for part in parts] == [([7, 8, 9], (1, 2))] * 2
