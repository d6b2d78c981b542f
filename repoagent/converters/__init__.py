"""The converters that come with this program; other packages bring more. Each lies in a module of its own."""

from collections.abc import Mapping
from typing import Final

__all__ = ["BUILT_IN_CONVERTERS"]

BUILT_IN_CONVERTERS: Final[Mapping[tuple[str, str], str]] = {
    ("onnx", "optimized"): "repoagent.converters.onnx.optimized:OptimizedConverter",
    ("onnx", "int8"): "repoagent.converters.onnx.int8:Int8Converter",
    ("onnx", "tensorrt"): "repoagent.converters.onnx.tensorrt:TensorRtConverter",
}
"""``(from, to)`` -> ``"module:attribute"``. Their code is imported when a model is converted, not before."""
