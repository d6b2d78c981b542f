from repoagent.config import read_text
from repoagent.serving.requests.tensor import model_metadata

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
