"""Folders of MLflow as models of the Python backend: the plan, the program, and who allows it."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from repoagent_convert.tables.pyfunc import PyfuncConverter

from agents.convert.tests.tables.test_mlflow import MLMODEL
from repoagent.api import ConversionJob, ConversionSource, Product
from repoagent.beneath import jail
from repoagent.config import read_text
from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.loader.converting.environments import ConverterSettings
from repoagent.testing import AgentHarness
from tests.loader.converting.test_environments import install

CUSTOM = """flavors:
  python_function:
    code: null
    loader_module: mlflow.pyfunc.model
    python_model: python_model.pkl
signature:
  inputs: '[{"type": "string", "name": "name", "required": true}, {"type": "double",
    "name": "age", "required": true}]'
  outputs: '[{"type": "string", "name": "text"}, {"type": "double", "name": "older"}]'
"""
MATRIX = """flavors:
  python_function:
    loader_module: mlflow.sklearn
signature:
  inputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1, 6]}}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1]}}]'
"""


def plan(directory: Path, text: str, config: str = "") -> Any:
    (directory / "MLmodel").write_text(text)
    return PyfuncConverter().plan(ConversionSource(directory, "MLmodel", "1/MLmodel", read_text(config)), {})


def test_columns_and_tensors_of_the_signature_are_inputs_and_outputs(tmp_path: Path) -> None:
    found = plan(tmp_path, CUSTOM)
    assert found.settings["inputs"] == [["name", "STRING", [1]], ["age", "FP64", [1]]]
    assert found.settings["outputs"] == [["text", "STRING", [1]], ["older", "FP64", [1]]]
    assert (found.inputs, found.output, found.replaces) == (("MLmodel",), "model.py", ())
    found = plan(tmp_path, MATRIX)
    assert found.settings["inputs"] == [["input", "FP64", [6]]]
    assert found.settings["outputs"] == [["prediction", "FP64", [1]]]


def test_the_configuration_names_the_environment_and_keeps_what_it_has(tmp_path: Path) -> None:
    for before, batch, inputs in (("", 1024, ["name", "age"]), ("max_batch_size: 4", 4, ["name", "age"])):
        config = read_text(before)
        PyfuncConverter().configure(config, plan(tmp_path, CUSTOM), Product({"environment": "/opt/mlflow"}))
        assert (config.backend, config.default_model_filename, config.max_batch_size) == ("python", "model.py", batch)
        assert config.parameters["EXECUTION_ENV_PATH"].string_value == "/opt/mlflow"
        assert [one.name for one in config.input] == inputs


@pytest.mark.parametrize(
    ("text", "config", "reason"),
    [
        (CUSTOM.partition("signature:")[0], "", "has no signature with inputs"),
        (CUSTOM.replace('"double"', '"datetime"'), "", "'age' is of the type datetime, which no request has"),
        (MATRIX.replace("[-1, 6]", "[1, 6]"), "", r"'input' has no rows: its shape is \[1, 6\]"),
        (CUSTOM.replace("python_function", "statsmodels"), "", "has no flavor python_function"),
        (CUSTOM.replace("[{", "[[{"), "", "is not an MLmodel"),
        (CUSTOM, 'backend: "onnxruntime"', "makes a model of the backend 'python', not 'onnxruntime'"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(text: str, config: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidArgumentError, UnsupportedError), match=reason):
        plan(tmp_path, text, config)


def loaded(directory: Path, text: str, predict: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model of the program that is written, beside an MLflow whose model is ``predict``."""
    settings = plan(directory, text).settings
    PyfuncConverter().build(ConversionJob(directory, directory, settings))

    class Utils(ModuleType):
        Tensor = staticmethod(lambda name, array: (name, array))
        InferenceResponse = staticmethod(lambda tensors=(), error=None: error or dict(tensors))
        TritonError = staticmethod(str)
        get_input_tensor_by_name = staticmethod(lambda request, name: SimpleNamespace(as_numpy=lambda: request[name]))
        triton_string_to_numpy = staticmethod(lambda name: {"TYPE_FP64": np.float64}[name])

    pyfunc = ModuleType("mlflow.pyfunc")
    pyfunc.load_model = lambda path: SimpleNamespace(predict=predict)  # type: ignore[attr-defined]
    mlflow = ModuleType("mlflow")
    mlflow.pyfunc = pyfunc  # type: ignore[attr-defined]
    for name, module in (
        ("mlflow", mlflow),
        ("mlflow.pyfunc", pyfunc),
        ("triton_python_backend_utils", Utils("utils")),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    space: dict[str, Any] = {"__file__": str(directory / "model.py")}
    exec((directory / "model.py").read_text(), space)
    model = space["TritonPythonModel"]()
    model.initialize({})
    return model


def test_the_program_asks_with_a_frame_of_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pd = pytest.importorskip("pandas")

    def predict(frame: Any) -> Any:
        return pd.DataFrame({"text": [f"{name}!" for name in frame.name], "older": frame.age + 1})

    model = loaded(tmp_path, CUSTOM, predict, monkeypatch)
    request = {"name": np.array([[b"a"], ["é".encode()]], object), "age": np.array([[1.0], [2.0]])}
    (answer,) = model.execute([request])
    assert answer["text"].tolist() == [["a!"], ["é!"]]
    assert answer["older"].tolist() == [[2.0], [3.0]]
    answers = model.execute([request, {"name": np.array([[1]], object), "age": np.array([["x"]], object)}])
    assert "text" in answers[0], "one request fails, and no other"
    assert "TypeError" in answers[1]


def test_the_program_asks_with_a_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    model = loaded(tmp_path, MATRIX, lambda rows: rows.sum(axis=1).tolist(), monkeypatch)
    (answer,) = model.execute([{"input": np.ones((3, 6))}])
    assert answer["prediction"].tolist() == [[6.0]] * 3


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    directory = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    for name in ("mlflow_skinny", "pandas", "numpy"):
        install(directory, name, "1.0")
    return directory


def run(directory: Path, settings: ConverterSettings, **parameters: str) -> Any:
    root = directory / "source"
    (root / "1").mkdir(parents=True, exist_ok=True)
    (root / "1" / "MLmodel").write_text(CUSTOM)
    (root / "1" / "python_model.pkl").write_bytes(b"a pickle")
    given = "".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    (root / "config.pbtxt").write_text(f'model_repository_agents {{ agents {{ name: "convert" {given} }} }}')
    with AgentHarness(directory / "harness", converter_settings=settings) as harness:
        return harness.run(root)


@pytest.mark.skipif(bool(jail.problem()), reason=f"no jail here: {jail.problem()}")
def test_the_folder_stays_and_the_program_lies_beside_it(environment: Path, tmp_path: Path) -> None:
    outcome = run(tmp_path, ConverterSettings.parse([f"mlflow={environment}"], True), to="python")
    assert outcome.error is None
    assert {"1/MLmodel", "1/python_model.pkl", "1/model.py"} <= outcome.files.keys()
    assert f'string_value: "{environment}"' in outcome.files["config.pbtxt"].decode()


def test_it_needs_the_parameter_and_the_operators_permission(environment: Path, tmp_path: Path) -> None:
    allowed = ConverterSettings.parse([f"mlflow={environment}"], True)
    assert "with the parameter to = python, MLflow runs others" in str(run(tmp_path, allowed).error)
    error = str(run(tmp_path, ConverterSettings(), to="python").error)
    assert "--allow-code-conversion" in error
    assert "--converter-environment mlflow=DIR" in error
    assert "--backend-config=python,environments=DIR" in error


def test_mlmodels_of_other_flavors_are_read_as_well(tmp_path: Path) -> None:
    assert plan(tmp_path, MLMODEL.replace('"long"', '"integer"')).settings["inputs"][2] == ["it's", "INT32", [1]]
