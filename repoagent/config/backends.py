"""Which backend a configuration asks for, and how that backend's model file is called."""

from types import MappingProxyType
from typing import Final

from repoagent.config.model_config_pb2 import ModelConfig

__all__ = ["BACKEND_OF_PLATFORM", "ENSEMBLE", "MODEL_FILENAMES", "backend_of", "model_filename"]

#: The platform and the backend of a pipeline of other models.
ENSEMBLE: Final = "ensemble"

#: The backend behind each value that ``platform`` may have.
BACKEND_OF_PLATFORM: Final = MappingProxyType(
    {
        "tensorrt_plan": "tensorrt",
        "onnxruntime_onnx": "onnxruntime",
        "pytorch_libtorch": "pytorch",
        "torch_aoti": "torch_aoti",
        "tensorflow_graphdef": "tensorflow",
        "tensorflow_savedmodel": "tensorflow",
        ENSEMBLE: ENSEMBLE,
    }
)

#: The model's file in a version directory, by backend. The order is the one in which a directory is searched.
MODEL_FILENAMES: Final = MappingProxyType(
    {
        "llm": "genai_config.json",  # Beside it lies a model.onnx, which nobody else can run.
        "tensorrt": "model.plan",
        "onnxruntime": "model.onnx",
        "openvino": "model.xml",
        "pytorch": "model.pt",
        "torch_aoti": "model.pt2",
        "python": "model.py",
    }
)

_BACKEND_OF_FILENAME: Final = MappingProxyType({name: backend for backend, name in MODEL_FILENAMES.items()})


def backend_of(config: ModelConfig) -> str:
    """The name of the backend, from ``backend``, else ``platform``, else ``default_model_filename``.

    Empty when none of them tells: then the files of the model have to (see :func:`~repoagent.config.normalize`).
    """
    if config.backend:
        return config.backend
    if config.platform:
        return BACKEND_OF_PLATFORM.get(config.platform, "")
    return _BACKEND_OF_FILENAME.get(config.default_model_filename, "")


def model_filename(config: ModelConfig) -> str:
    """The name of the model's file in each version directory; empty for a backend whose file name is not known."""
    return config.default_model_filename or MODEL_FILENAMES.get(backend_of(config), "")
