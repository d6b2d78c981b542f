"""The names of ``triton_python_backend_utils``, as Triton's manual and examples use them."""

import pytest

from repoagent.serving.backends.python.model.utils import bound_utils

NAMES = """
InferenceRequest InferenceResponse InferenceResponseSender ResponseIterator Tensor TritonError TritonModelException
Logger LogLevel Metric MetricFamily MetricKind ModelConfig PreferredMemory
TRITONSERVER_MEMORY_CPU TRITONSERVER_MEMORY_GPU TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END TRITONSERVER_REQUEST_RELEASE_ALL TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
TRITONSERVER_RESPONSE_COMPLETE_FINAL TRITON_STRING_TO_NUMPY
deserialize_bytes_tensor serialize_byte_tensor numpy_to_triton_type triton_string_to_numpy triton_to_numpy_type
get_input_config_by_name get_input_tensor_by_name get_output_config_by_name get_output_tensor_by_name
get_model_dir is_model_ready load_model unload_model using_decoupled_model_transaction_policy
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_the_utilities_have_tritons_names(name: str) -> None:
    assert getattr(bound_utils(None), name) is not None
