"""The converters that come with this program; agents bring others. Each lies in a module of its own."""

from collections.abc import Mapping
from typing import Final

__all__ = ["BUILT_IN_CONVERTERS"]

BUILT_IN_CONVERTERS: Final[Mapping[tuple[str, str], str]] = {
    ("onnx", "optimized"): "repoagent.converters.onnx.optimized:OptimizedConverter",
    ("onnx", "int8"): "repoagent.converters.onnx.int8:Int8Converter",
    ("onnx", "tensorrt"): "repoagent.converters.onnx.tensorrt:TensorRtConverter",
    ("xgboost", "onnx"): "repoagent.converters.trees.xgboost:XgboostConverter",
    ("sklearn", "onnx"): "repoagent.converters.tables.sklearn:SklearnConverter",
    ("skops", "onnx"): "repoagent.converters.tables.sklearn:SkopsConverter",
    ("mlflow", "onnx"): "repoagent.converters.tables.mlflow:MlflowConverter",
    ("catboost", "onnx"): "repoagent.converters.tables.catboost:CatboostConverter",
    ("lightgbm", "onnx"): "repoagent.converters.trees.lightgbm:LightgbmConverter",
}
"""``(from, to)`` -> ``"module:attribute"``. Their code is imported when a model is converted, not before."""
