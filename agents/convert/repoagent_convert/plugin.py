"""Adds the converters. Imported at every start of the program, and by nothing that runs in an environment of others."""

from collections.abc import Mapping

from repoagent.api.hooks import hookimpl


@hookimpl
def register_converters() -> Mapping[tuple[str, str], str]:
    """What makes ONNX of the models of other libraries, or states how these write it."""
    return {
        ("catboost", "onnx"): "repoagent_convert.tables.catboost:CatboostConverter",
        ("keras", "onnx"): "repoagent_convert.networks.tensorflow:KerasConverter",
        ("lightgbm", "onnx"): "repoagent_convert.trees.lightgbm:LightgbmConverter",
        ("lightgbm-skops", "onnx"): "repoagent_convert.trees.lightgbm:LightgbmSkopsConverter",
        ("mlflow", "onnx"): "repoagent_convert.tables.mlflow:MlflowConverter",
        ("mlflow", "python"): "repoagent_convert.tables.pyfunc:PyfuncConverter",
        ("pt2", "onnx"): "repoagent_convert.networks.pt2:Pt2Converter",
        ("savedmodel", "onnx"): "repoagent_convert.networks.tensorflow:SavedModelConverter",
        ("sklearn", "onnx"): "repoagent_convert.tables.sklearn:SklearnConverter",
        ("skops", "onnx"): "repoagent_convert.tables.sklearn:SkopsConverter",
        ("torch", "onnx"): "repoagent_convert.frameworks:StateDict",
        ("torchscript", "onnx"): "repoagent_convert.frameworks:TorchScript",
        ("xgboost", "onnx"): "repoagent_convert.trees.xgboost:XgboostConverter",
    }
