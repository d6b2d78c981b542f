from collections.abc import Callable

import numpy as np

from repoagent.config import ModelConfig, read_text
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Array, Tensor
from repoagent.serving.scheduling.batch_queue import BatchRule

ConfigMaker = Callable[..., ModelConfig]


def request(**inputs: Array) -> InferRequest:
    return InferRequest(Asked("m", {name: Tensor.of(array) for name, array in inputs.items()}))


def rule(text: str) -> BatchRule:
    return BatchRule(read_text(f"max_batch_size: 8 {text}"))


def test_fixed_shapes_need_no_comparison() -> None:
    fixed = rule('input { name: "x" dims: [ 2 ] }')
    assert fixed.key(request(x=np.zeros((1, 2)))) is None


def test_variable_shapes_must_agree_but_for_the_batch() -> None:
    variable = rule('input { name: "x" dims: [ -1 ] } input { name: "z" dims: [ 2 ] }')
    keys = [
        variable.key(request(x=np.zeros((rows, width)), z=np.zeros((rows, 2))))
        for rows, width in [(1, 2), (3, 2), (1, 3)]
    ]
    assert keys[0] == keys[1] != keys[2]


def test_optional_inputs_must_be_there_in_all_or_none() -> None:
    optional = rule('input { name: "x" dims: [ 2 ] } input { name: "z" dims: [ 2 ] optional: true }')
    array = np.zeros((1, 2))
    assert optional.key(request(x=array, z=array)) == optional.key(request(z=array, x=array))
    assert optional.key(request(x=array)) != optional.key(request(x=array, z=array))


def test_shape_values_must_be_the_same() -> None:
    shapes = rule('input { name: "x" dims: [ 2 ] } input { name: "s" dims: [ 2 ] is_shape_tensor: true }')
    array = np.zeros((3, 2))
    keys = [shapes.key(request(x=array, s=np.array(value))) for value in ([1, 2], [1, 2], [2, 1])]
    assert keys[0] == keys[1] != keys[2]
    assert shapes.size(request(s=np.array([1, 2]), x=array)) == 3


def test_the_size_of_a_request_is_at_least_one() -> None:
    batching = rule('input { name: "x" dims: [ 2 ] }')
    assert batching.size(request(x=np.zeros((0, 2)))) == 1
    assert BatchRule(read_text('input { name: "x" dims: [ 5 ] }')).size(request(x=np.zeros(5))) == 1
