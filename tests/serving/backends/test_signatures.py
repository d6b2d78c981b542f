import pytest

from repoagent.config import ModelConfig, read_text
from repoagent.errors import InvalidArgumentError
from repoagent.serving.backends.signatures import Signature, TensorInfo, complete, validate
from repoagent.serving.requests.tensor import DataType

F, S = DataType.FP32, DataType.BYTES


def info(name: str, *dims: int, data_type: DataType = F) -> TensorInfo:
    return TensorInfo(name, data_type, dims)


BATCHABLE = Signature((info("x", -1, 16),), (info("y", -1),))
FIXED = Signature((info("x", 1, 16),), (info("y", -1, 4, data_type=S),))


def completed(text: str, signature: Signature, default: int = 4) -> ModelConfig:
    config = read_text('name: "m" ' + text)
    complete(config, signature, default_max_batch_size=default)
    return config


def test_a_model_whose_tensors_all_start_with_a_variable_dimension_batches() -> None:
    config = completed("", BATCHABLE)
    assert config.max_batch_size == 4
    assert config.HasField("dynamic_batching")
    assert list(config.input[0].dims) == [16]


def test_a_tensor_that_is_nothing_but_its_batch_gets_a_reshape() -> None:
    output = completed("", BATCHABLE).output[0]
    assert (list(output.dims), output.HasField("reshape"), list(output.reshape.shape)) == ([1], True, [])


def test_a_model_with_fixed_dimensions_does_not_batch() -> None:
    config = completed("", FIXED)
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert list(config.input[0].dims) == [1, 16]
    assert int(config.output[0].data_type) == int(S)


def test_a_batch_size_that_the_model_cannot_have_is_refused() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        completed("max_batch_size: 8", FIXED)
    assert str(caught.value) == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    )


def test_what_the_configuration_says_stays() -> None:
    text = 'max_batch_size: 2 sequence_batching { } input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }'
    config = completed(text, BATCHABLE)
    assert config.max_batch_size == 2
    assert not config.HasField("dynamic_batching")
    assert list(config.input[0].dims) == [-1]


def test_the_default_batch_size_is_a_setting() -> None:
    assert completed("", BATCHABLE, default=0).max_batch_size == 0
    assert list(completed("", BATCHABLE, default=0).input[0].dims) == [-1, 16]


GOOD = """
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape { } }
"""


def test_a_configuration_that_agrees_is_accepted() -> None:
    validate(read_text(GOOD), BATCHABLE)


@pytest.mark.parametrize(
    ("text", "signature", "message"),
    [
        (
            GOOD.replace('"x"', '"z"'),
            BATCHABLE,
            "unable to load model 'm', unexpected inference input 'z', allowed inputs are: x",
        ),
        (
            GOOD.replace('"y"', '"z"'),
            BATCHABLE,
            "unable to load model 'm', unexpected inference output 'z', allowed outputs are: y",
        ),
        (
            GOOD.replace("TYPE_FP32 dims: [ 16 ]", "TYPE_STRING dims: [ 16 ]"),
            BATCHABLE,
            (
                "unable to load model 'm', configuration expects datatype TYPE_STRING for input 'x', model provides "
                "TYPE_FP32"
            ),
        ),
        (
            GOOD + 'input { name: "w" data_type: TYPE_FP32 dims: [ 1 ] }',
            BATCHABLE,
            "unable to load model 'm', configuration expects 2 inputs, model provides 1",
        ),
        (
            GOOD.replace("16", "17"),
            BATCHABLE,
            (
                "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,16]) but the model configuration "
                "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the "
                "explicit tensor shape, making complete shape [-1,17])"
            ),
        ),
        (
            GOOD,
            FIXED,
            (
                "model 'm', tensor 'x': for the model to support batching the shape should have at least 1 dimension "
                "and the first dimension must be -1; but shape expected by the model is [1,16]"
            ),
        ),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }',
            Signature((info("x"),), ()),
            (
                "unable to load model 'm', scalar tensor 'x', should only provide 1 in the model configuration when "
                "the model doesn't support batching. Model configuration provided: [3]."
            ),
        ),
        (
            GOOD + 'input { name: "w" data_type: TYPE_FP32 dims: [ 1 ] optional: true }',
            BATCHABLE,
            "unable to load model 'm', optional input 'w' is not supported for models that support batching",
        ),
    ],
)
def test_a_contradiction_is_told_in_tritons_words(text: str, signature: Signature, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        validate(read_text('name: "m" ' + text), signature)
    assert str(caught.value) == message


def test_an_initialiser_that_requests_may_replace_is_an_optional_input() -> None:
    signature = Signature((info("x", 2),), (info("y", 2),), (info("w", 2),))
    text = """
    name: "m"
    input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
    input { name: "w" data_type: TYPE_FP32 dims: [ 2 ] optional: true }
    """
    validate(read_text(text), signature)
