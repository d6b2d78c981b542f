import numpy as np
import pytest

from repoagent.config import read_text
from repoagent.errors import InternalError
from repoagent.serving.requests.tensor import Reshaper, Tensor


def test_most_models_have_none() -> None:
    assert Reshaper.of(read_text('input { name: "x" dims: [ 1 ] }')) is None


def test_variable_dimensions_keep_their_values_in_order() -> None:
    reshaper = Reshaper.of(read_text('input { name: "x" dims: [ -1, 1, -1 ] reshape { shape: [ -1, -1 ] } }'))
    assert reshaper is not None
    tensors = reshaper.to_model({"x": Tensor.of(np.zeros((2, 1, 3))), "other": Tensor.of(np.zeros(5))})
    assert (tensors["x"].shape, tensors["other"].shape) == ((2, 3), (5,))


def test_an_empty_shape_leaves_only_the_batch() -> None:
    reshaper = Reshaper.of(read_text('max_batch_size: 2 output { name: "y" dims: [ 1 ] reshape { shape: [ ] } }'))
    assert reshaper is not None
    assert reshaper.to_client({"y": Tensor.of(np.zeros(2))})["y"].shape == (2, 1)


def test_an_output_that_does_not_fit_its_promise_is_an_error_of_the_model() -> None:
    reshaper = Reshaper.of(read_text('output { name: "y" dims: [ 2, 2 ] reshape { shape: [ 4 ] } }'))
    assert reshaper is not None
    with pytest.raises(InternalError, match="cannot be reshaped"):
        reshaper.to_client({"y": Tensor.of(np.zeros(5))})
