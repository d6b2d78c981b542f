"""The TensorRT backend: plans on GPUs, through the engine protocol."""

from repoagent.serving.backends.tensorrt.backend import TensorRtBackend

__all__ = ["TensorRtBackend"]
