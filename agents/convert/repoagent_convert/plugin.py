"""Adds the converters. Imported at every start of the program, and by nothing that runs in an environment of others."""

from collections.abc import Mapping

from repoagent.api.hooks import hookimpl


@hookimpl
def register_converters() -> Mapping[tuple[str, str], str]:
    """What makes ONNX of the models of other libraries."""
    return {
        ("catboost", "onnx"): "repoagent_convert.tables.catboost:CatboostConverter",
        ("lightgbm", "onnx"): "repoagent_convert.trees.lightgbm:LightgbmConverter",
        ("mlflow", "onnx"): "repoagent_convert.tables.mlflow:MlflowConverter",
        ("sklearn", "onnx"): "repoagent_convert.tables.sklearn:SklearnConverter",
        ("skops", "onnx"): "repoagent_convert.tables.sklearn:SkopsConverter",
        ("xgboost", "onnx"): "repoagent_convert.trees.xgboost:XgboostConverter",
    }
