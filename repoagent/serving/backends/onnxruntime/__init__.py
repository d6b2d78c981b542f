"""The ONNX Runtime backend: ONNX and ORT-format models on the CPU."""

from repoagent.serving.backends.onnxruntime.backend import OnnxRuntimeBackend

__all__ = ["OnnxRuntimeBackend"]
