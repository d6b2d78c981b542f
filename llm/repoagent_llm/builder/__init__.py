"""The builder: a checkpoint in safetensors becomes a decoder folder, with NumPy and onnx only."""

from repoagent_llm.builder.build import Form, Precision, build

__all__ = ["Form", "Precision", "build"]
