"""Which backend a configuration asks for, and how that backend's model file is called."""

from collections.abc import Collection
from types import MappingProxyType
from typing import Final

from repoagent.config.model_config_pb2 import ModelConfig

__all__ = [
    "BACKEND_OF_PLATFORM",
    "CHECKPOINT_HINT",
    "ENSEMBLE",
    "MODEL_FILENAMES",
    "PLATFORM_OF_BACKEND",
    "backend_of",
    "executed_by",
    "is_checkpoint",
    "model_filename",
    "platform_of",
]

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

#: The platform that a model of the backend gets when its configuration has none; other backends have no platform.
PLATFORM_OF_BACKEND: Final = MappingProxyType(
    {"tensorrt": "tensorrt_plan", "onnxruntime": "onnxruntime_onnx", "pytorch": "pytorch_libtorch"}
)

#: The model's file in a version directory, by backend. The order is the one in which a directory is searched.
MODEL_FILENAMES: Final = MappingProxyType(
    {
        "llm": "genai_config.json",  # Beside it lies a model.onnx, which no one else can run.
        "tensorrt": "model.plan",
        "onnxruntime": "model.onnx",
        "openvino": "model.xml",
        "pytorch": "model.pt",
        "torch_aoti": "model.pt2",
        "python": "model.py",
    }
)

CHECKPOINT_HINT: Final = (
    "holds a checkpoint, which no backend runs as it is: name the agent 'convert' with the parameter to = decoder"
)
"""What a message has of a directory with the files of :func:`is_checkpoint`."""


def is_checkpoint(names: Collection[str]) -> bool:
    """Whether a directory with files of these names holds a checkpoint of Hugging Face."""
    return "config.json" in names and any(name.endswith(".safetensors") for name in names)


_BACKEND_OF_FILENAME: Final = MappingProxyType({name: backend for backend, name in MODEL_FILENAMES.items()})


def backend_of(config: ModelConfig) -> str:
    """The name of the backend, from ``backend``, else ``platform``, else ``default_model_filename``.

    Empty when none of them names it: then the files of the model decide (see :func:`~repoagent.config.normalize`).
    """
    if config.backend:
        return config.backend
    if config.platform:
        return BACKEND_OF_PLATFORM.get(config.platform, "")
    return _BACKEND_OF_FILENAME.get(config.default_model_filename, "")


def executed_by(config: ModelConfig) -> str:
    """The backend that executes a model of this configuration: that of :func:`backend_of`, or "ensemble".

    A pipeline is one whatever else the configuration names, because the server treats it as one.
    """
    if config.HasField("ensemble_scheduling") or ENSEMBLE in (config.platform, config.backend):
        return ENSEMBLE
    return backend_of(config)


def platform_of(config: ModelConfig) -> str:
    """The platform that follows from the backend of ``config``; the backend's name where it has no platform.

    Empty when the backend is not known yet. A ``platform`` in the configuration counts only if it is one of that
    backend: ``backend: "python" platform: "onnxruntime_onnx"`` is of the platform "python".
    """
    backend = executed_by(config)
    if not backend or (config.platform and BACKEND_OF_PLATFORM.get(config.platform) == backend):
        return config.platform
    return PLATFORM_OF_BACKEND.get(backend, backend)


def model_filename(config: ModelConfig) -> str:
    """The name of the model's file in each version directory; empty for a backend whose file name is not known."""
    return config.default_model_filename or MODEL_FILENAMES.get(backend_of(config), "")
