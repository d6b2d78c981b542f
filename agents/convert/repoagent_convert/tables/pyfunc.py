"""A folder of MLflow as a model of the Python backend: MLflow itself loads and asks it, in the operator's environment.

For what ONNX cannot express. The result is a ``model.py`` beside the folder's files. Nothing of them is opened here;
they run without a jail whenever the model is loaded, so this is never chosen by itself.
"""

import json
import sys
from collections.abc import Mapping
from string import Template
from typing import TYPE_CHECKING, Any, Final

from repoagent.api import (
    ConversionJob,
    ConversionPlan,
    ConversionSource,
    ConverterOption,
    InvalidArgumentError,
    Product,
    UnsupportedError,
    read_json,
)
from repoagent_convert.model_file import LARGEST_BATCH
from repoagent_convert.tables.mlflow import mlmodel_text, read_mlmodel, recognizes_mlmodel

if TYPE_CHECKING:
    from repoagent.api import ModelConfig

_OUTPUT: Final = "model.py"
_ENVIRONMENT: Final = "EXECUTION_ENV_PATH"
_COLUMNS: Final = {
    "string": "STRING", "double": "FP64", "float": "FP32", "integer": "INT32", "long": "INT64", "boolean": "BOOL",
}  # fmt: skip
_TENSORS: Final = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "int8": "INT8", "int16": "INT16", "int32": "INT32",
    "int64": "INT64", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "bool": "BOOL",
    "str": "STRING", "object": "STRING",
}  # fmt: skip
_PROGRAM: Final = Template('''"""Written by repoagent-convert: asks the model of MLflow in this directory."""

import json
import os

import mlflow.pyfunc
import numpy as np
import pandas as pd
import triton_python_backend_utils as pb_utils

INPUTS, OUTPUTS, HAS_COLUMNS = json.loads($inputs), json.loads($outputs), $has_columns


def text(value):
    return value.decode() if isinstance(value, bytes) else value


class TritonPythonModel:
    def initialize(self, args):
        self.model = mlflow.pyfunc.load_model(os.path.dirname(os.path.abspath(__file__)))

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        try:
            found = self.model.predict(self.data(request))
            return pb_utils.InferenceResponse([self.tensor(found, one) for one in OUTPUTS])
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(error).__name__}: {error}"))

    def data(self, request):
        arrays = {}
        for name, kind in INPUTS:
            array = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            arrays[name] = np.vectorize(text, otypes=[object])(array) if kind == "STRING" else array
        if HAS_COLUMNS:
            return pd.DataFrame({name: array.reshape(-1) for name, array in arrays.items()})
        return arrays if len(arrays) > 1 else next(iter(arrays.values()))

    def tensor(self, found, output):
        name, kind, dims = output
        if isinstance(found, dict) or hasattr(found, "columns"):
            found = found[name] if name in found or isinstance(found, dict) else found
        array = np.asarray(found)
        array = array.astype(object if kind == "STRING" else pb_utils.triton_string_to_numpy(f"TYPE_{kind}"))
        return pb_utils.Tensor(name, array.reshape(len(array), *dims) if dims.count(-1) < 2 else array)
''')


class PyfuncConverter:
    """The file ``MLmodel`` of a folder; see :class:`repoagent.api.Converter`."""

    version = "1"
    in_child = True
    runs_code = True
    default_input = "MLmodel"
    instead = "name DIR with --backend-config=python,environments=DIR, too: MLflow runs there, without a jail"
    packages = ("mlflow|mlflow-skinny", "pandas", "numpy")
    options: Mapping[str, ConverterOption] = {}

    def recognizes(self, head: bytes) -> bool:
        """Whether a file that begins with ``head`` is an MLmodel."""
        return recognizes_mlmodel(head)

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        """See :class:`repoagent.api.Converter`.

        Raises:
            InvalidArgumentError: the MLmodel cannot be read, or the configuration has another backend.
            UnsupportedError: no signature names inputs and outputs of known types.
        """
        if source.config is not None and source.config.backend not in ("", "python"):
            raise InvalidArgumentError(f"makes a model of the backend 'python', not '{source.config.backend}'")
        text = mlmodel_text(source)
        try:
            described = read_mlmodel(text)
            if "python_function" not in described["flavors"]:
                raise UnsupportedError(f"{source.label}: has no flavor python_function")
            signature = described.get("signature") or {}
            given, answers = (_tensors(signature.get(role), role, source.label) for role in ("inputs", "outputs"))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{source.label}: is not an MLmodel: {error!r}") from None
        settings = {"inputs": given[0], "has_columns": given[1], "outputs": answers[0]}
        return ConversionPlan((source.name,), _OUTPUT, settings)

    def build(self, job: ConversionJob) -> Product:
        """See :class:`repoagent.api.Converter`. It runs in the operator's environment, and reports which that is."""
        inputs, outputs = job.settings["inputs"], job.settings["outputs"]
        program = _PROGRAM.substitute(
            inputs=repr(json.dumps([one[:2] for one in inputs])),
            outputs=repr(json.dumps(outputs)),
            has_columns=job.settings["has_columns"],
        )
        (job.target / _OUTPUT).write_text(program, encoding="utf-8")
        note = "MLflow runs it without a jail, in the processes of the Python backend"
        return Product({"environment": sys.prefix}, (note,))

    def configure(self, config: "ModelConfig", plan: ConversionPlan, product: Product) -> None:
        """See :class:`repoagent.api.Converter`. What the configuration has stays."""
        from repoagent.config.model_config_pb2 import DataType

        config.backend = "python"
        config.default_model_filename = _OUTPUT
        config.parameters[_ENVIRONMENT].string_value = str(product.annotations["environment"])
        if not (config.max_batch_size or config.input or config.output):
            config.max_batch_size = LARGEST_BATCH
        for place, role in ((config.input, "inputs"), (config.output, "outputs")):
            if not place and config.max_batch_size:
                for name, kind, dims in plan.settings[role]:
                    place.add(name=name, data_type=DataType.Value(f"TYPE_{kind}"), dims=dims)


def _tensors(text: Any, role: str, label: str) -> tuple[list[list[Any]], bool]:
    """Name, type and dimensions of each column or tensor of a signature, and whether these are columns.

    Raises:
        UnsupportedError: there is none, or one is of a type that no request has.
    """
    if not text or text == "null":
        raise UnsupportedError(
            f"{label}: has no signature with {role}, which names the tensors; save the model with "
            "signature=mlflow.models.infer_signature(X, model.predict(X))"
        )
    found, has_columns = [], False
    for number, one in enumerate(read_json(text)):
        usual = "input" if role == "inputs" else "prediction"
        name = str(one.get("name") or (f"{usual}_{number}" if number else usual))
        if one["type"] == "tensor":
            spec = one["tensor-spec"]
            if spec["shape"][:1] != [-1]:
                raise UnsupportedError(f"{label}: '{name}' has no rows: its shape is {spec['shape']}")
            kind, dims = _TENSORS.get(spec["dtype"]), [int(size) for size in spec["shape"][1:]] or [1]
        else:
            kind, dims, has_columns = _COLUMNS.get(one["type"]), [1], True
        if kind is None:
            raise UnsupportedError(f"{label}: '{name}' is of the type {one.get('type')}, which no request has")
        found.append([name, kind, dims])
    return found, has_columns
