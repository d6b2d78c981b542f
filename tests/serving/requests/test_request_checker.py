from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repoagent.config import ModelConfig, read_text
from repoagent.errors import InternalError, InvalidArgumentError, UnsafePathError
from repoagent.serving.requests.request import Asked, InferRequest, OutputClasses, read_labels
from repoagent.serving.requests.request_checker import RequestChecker
from repoagent.serving.requests.tensor import DataType, Reshaper, Tensor, model_metadata
from repoagent.storage.files.files import MemoryFiles, ModelFiles

BATCHING = """
max_batch_size: 8
input [ { name: "a" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "b" data_type: TYPE_INT32 dims: [ -1, 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""
PLAIN = """
input { name: "a" data_type: TYPE_FP32 dims: [ 2, 3 ] }
input { name: "b" data_type: TYPE_STRING dims: [ -1 ] optional: true }
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2, 3 ] } ]
"""
PREFIX = "[request id: <id_unknown>] "


def tensor(data_type: DataType, *shape: int) -> Tensor:
    return Tensor(data_type, np.zeros(shape, np.float32))


def request(outputs: tuple[str, ...] = (), request_id: str = "", **inputs: Tensor) -> InferRequest:
    return InferRequest(Asked("m", inputs, requested_outputs=outputs, id=request_id))


def checker(text: str) -> RequestChecker:
    return RequestChecker("m", read_text(text))


F32, I32, TEXT = DataType.FP32, DataType.INT32, DataType.BYTES


def test_a_valid_request_gives_its_batch_size() -> None:
    assert checker(BATCHING).check(request(a=tensor(F32, 3, 16), b=tensor(I32, 3, 9, 2))) == 3


def test_a_model_that_does_not_batch_counts_every_request_as_one() -> None:
    assert checker(PLAIN).check(request(a=tensor(F32, 2, 3))) == 1


def test_a_data_type_given_as_a_plain_number_is_accepted() -> None:
    plain_number = Tensor(11, np.zeros((2, 16), np.float32))  # type: ignore[arg-type]
    assert checker(BATCHING).check(request(a=plain_number, b=tensor(I32, 2, 9, 2))) == 2


# The texts are those of Triton's core (infer_request.cc and model.cc, 2.6x to 2.73).
@pytest.mark.parametrize(
    ("config", "bad", "text"),
    [
        pytest.param(
            BATCHING,
            request(a=tensor(F32, 1, 16), c=tensor(I32, 1, 1, 2)),
            "unexpected inference input 'c' for model 'm'",
            id="unknown input",
        ),
        pytest.param(
            BATCHING,
            request(outputs=("z",), a=tensor(F32, 1, 16), b=tensor(I32, 1, 1, 2)),
            "unexpected inference output 'z' for model 'm'",
            id="unknown output",
        ),
        pytest.param(
            BATCHING,
            request(a=tensor(F32, 1, 16)),
            PREFIX + "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['a'], but missing required "
            "input(s) ['b']. Please provide all required input(s).",
            id="missing input",
        ),
        pytest.param(
            PLAIN,
            request(),
            PREFIX + "expected number of inputs between 1 and 2 but got 0 inputs for model 'm'. Got input(s) [], but "
            "missing required input(s) ['a']. Please provide all required input(s).",
            id="missing input beside an optional one",
        ),
        pytest.param(
            BATCHING,
            request(request_id="r7", a=tensor(I32, 1, 16), b=tensor(I32, 1, 1, 2)),
            "[request id: r7] inference input 'a' data-type is 'INT32', but model 'm' expects 'FP32'",
            id="wrong type",
        ),
        pytest.param(
            PLAIN,
            request(a=tensor(F32, 2, 4)),
            PREFIX + "unexpected shape for input 'a' for model 'm'. Expected [2,3], got [2,4].",
            id="wrong shape",
        ),
        pytest.param(
            BATCHING,
            request(a=tensor(F32, 9, 16), b=tensor(I32, 9, 1, 2)),
            PREFIX + "inference request batch-size must be <= 8 for 'm'",
            id="batch too big",
        ),
        pytest.param(
            BATCHING,
            request(a=tensor(F32, 2, 16), b=tensor(I32, 3, 1, 2)),
            PREFIX + "input 'b' batch size does not match other inputs for 'm'",
            id="batch sizes differ",
        ),
        pytest.param(
            BATCHING,
            request(a=tensor(F32), b=tensor(I32, 3, 1, 2)),
            PREFIX + "input 'a' has no shape but model requires batch dimension for 'm'",
            id="no batch dimension",
        ),
    ],
)
def test_a_fault_is_told_in_tritons_words(config: str, bad: InferRequest, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        checker(config).check(bad)
    assert str(caught.value) == text


OPTIONAL = """
input [ { name: "a" data_type: TYPE_FP32 dims: [ 6 ] }, { name: "b" data_type: TYPE_FP32 dims: [ 6 ] optional: true } ]
"""


def test_an_optional_input_does_not_pass_for_a_required_one() -> None:
    with pytest.raises(InvalidArgumentError, match=r"missing required input\(s\) \['a'\]"):
        checker(OPTIONAL).check(request(b=tensor(F32, 6)))


@pytest.mark.parametrize("rows", [(0, 3), (3, 0), (0, 1)])
def test_a_batch_of_nothing_does_not_go_with_a_batch_of_some(rows: tuple[int, int]) -> None:
    uneven = request(a=tensor(F32, rows[0], 16), b=tensor(I32, rows[1], 9, 2))
    with pytest.raises(InvalidArgumentError, match="input 'b' batch size does not match other inputs for 'm'"):
        checker(BATCHING).check(uneven)


def test_a_batch_of_nothing_is_a_batch() -> None:
    assert checker(BATCHING).check(request(a=tensor(F32, 0, 16), b=tensor(I32, 0, 9, 2))) == 0


def test_a_wrong_shape_of_a_batching_model_explains_the_batch_dimension() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        checker(BATCHING).check(request(a=tensor(F32, 1, 17), b=tensor(I32, 1, 1, 2)))
    start = PREFIX + "unexpected shape for input 'a' for model 'm'. Expected [-1,16], got [1,17]. NOTE: Setting a non-"
    assert str(caught.value).startswith(start)


DIMS = st.lists(st.integers(0, 4), max_size=4).map(tuple)
TENSORS = st.builds(lambda kind, shape: tensor(kind, *shape), st.sampled_from([F32, I32, TEXT]), DIMS)
CONFIGS = st.builds(
    lambda batch, inputs: ModelConfig(
        max_batch_size=batch,
        input=[{"name": n, "data_type": t, "dims": d, "optional": o} for n, (t, d, o) in inputs.items()],
        output=[{"name": "y"}],
    ),
    st.integers(0, 3),
    st.dictionaries(
        st.sampled_from("abc"),
        st.tuples(st.sampled_from([11, 8, 13]), st.lists(st.sampled_from([-1, 1, 2, 3]), max_size=3), st.booleans()),
        max_size=3,
    ),
)
REQUESTS = st.builds(
    lambda inputs, outputs: InferRequest(Asked("m", inputs, requested_outputs=tuple(outputs))),
    st.dictionaries(st.sampled_from("abc"), TENSORS, max_size=3),
    st.lists(st.sampled_from("yz"), max_size=1),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(config=CONFIGS, candidate=REQUESTS)
def test_the_fast_check_says_yes_exactly_where_the_plain_one_finds_no_fault(
    config: ModelConfig, candidate: InferRequest
) -> None:
    rules = RequestChecker("m", config)
    try:
        rules.explain(candidate)
    except InvalidArgumentError:
        assert rules.size_if_valid(candidate) is None
    else:
        assert rules.size_if_valid(candidate) is not None


CONFIG = """
platform: "onnxruntime_onnx" max_batch_size: 4
input { name: "x" data_type: TYPE_STRING dims: [ 2, -1 ] }
input { name: "s" data_type: TYPE_INT32 dims: [ 2 ] is_shape_tensor: true }
output { name: "y" data_type: TYPE_BF16 dims: [ 3 ] }
"""


def test_shapes_show_the_batch_dimension_and_strings_are_bytes() -> None:
    assert model_metadata("m", read_text(CONFIG), [2, 1]) == {
        "name": "m",
        "versions": ["1", "2"],
        "platform": "onnxruntime_onnx",
        "inputs": [
            {"name": "x", "datatype": "BYTES", "shape": [-1, 2, -1]},
            {"name": "s", "datatype": "INT32", "shape": [2]},
        ],
        "outputs": [{"name": "y", "datatype": "BF16", "shape": [-1, 3]}],
    }


def test_a_model_without_a_platform_shows_its_backend() -> None:
    config = read_text('backend: "python" input { name: "x" dims: [ 1 ] data_type: TYPE_FP32 }')
    assert model_metadata("m", config, [1])["platform"] == "python"


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


# Files of labels, by hand and through a load.


def _files(**contents: bytes) -> ModelFiles:
    def spill() -> Path:
        raise AssertionError("labels need no directory")

    return MemoryFiles(contents, spill)


def _config(**outputs: str) -> ModelConfig:
    config = ModelConfig(name="m")
    for name, file in outputs.items():
        config.output.add(name=name, label_filename=file)
    return config


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        (b"cat\ndog\n", (b"cat", b"dog")),
        (b"cat\ndog", (b"cat", b"dog")),
        (b"cat\n\n", (b"cat", b"")),
        (b"a\r\nb", (b"a\r", b"b")),
        (b"\xff\xfe", (b"\xff\xfe",)),
        (b"\n", (b"",)),
        (b"", ()),
    ],
)
def test_a_line_is_a_label(content: bytes, labels: tuple[bytes, ...]) -> None:
    assert read_labels(_config(Y="f", Z=""), _files(f=content)) == {"Y": labels}


def test_a_file_that_is_not_there_has_tritons_text() -> None:
    with pytest.raises(InternalError, match=r"^failed to open text file for read f: No such file or directory$"):
        read_labels(_config(Y="f"), _files(g=b""))


def test_a_file_outside_the_model_is_refused() -> None:
    with pytest.raises(UnsafePathError):
        read_labels(_config(Y="../f"), _files(f=b"a"))


def test_a_class_without_a_label_has_an_empty_one() -> None:
    classes = OutputClasses(batching=False, labels={"Y": (b"cat",)})
    assert [classes.label("Y", 0), classes.label("Y", 1), classes.label("Z", 0)] == [b"cat", b"", b""]
