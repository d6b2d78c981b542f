"""Folders of MLflow: what their MLmodel, written by MLflow 3.17, is read as."""

import io
import random
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from repoagent_convert.tables import mlflow
from repoagent_convert.tables.mlflow import MlflowConverter, read_mlmodel
from repoagent_convert.trees import lightgbm
from repoagent_convert.trees.graph import to_onnx
from repoagent_convert.trees.lightgbm import read_lightgbm, text_in_skops

from agents.convert.tests.trees.conftest import STORE
from agents.convert.tests.trees.test_hostile_files import mutated
from repoagent.api import ConversionSource
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnsafePathError, UnsupportedError
from repoagent.testing import AgentHarness
from tests.extent import in_full

MLMODEL = """artifact_path: model
flavors:
  python_function:
    env:
      conda: conda.yaml
      virtualenv: python_env.yaml
    loader_module: mlflow.sklearn
    model_path: model.skops
    predict_fn: predict
    python_version: 3.11.7
  sklearn:
    code: null
    pickled_model: model.skops
    serialization_format: skops
    sklearn_version: 1.9.1
mlflow_version: 3.17.2
model_id: null
model_uuid: 5ad1b9e5
signature:
  inputs: '[{"type": "double", "name": "age", "required": true}, {"type": "string",
    "name": "sex", "required": true}, {"type": "long", "name": "it''s", "required":
    true}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [-1]}}]'
  params: null
type_hint_from_example: false
utc_time_created: '2026-11-28 10:00:00.000000'
"""
XGBOOST = """flavors:
  python_function:
    data: model.ubj
    loader_module: mlflow.xgboost
  xgboost:
    code: null
    data: model.ubj
    model_class: xgboost.sklearn.XGBClassifier
    xgb_version: 3.2.0
signature:
  inputs: '[{"type": "double", "name": "a", "required": true}]'
"""


FOLDERS = np.load(Path(__file__).with_name("data") / "folders.npz")
CONVERTED = {
    "catboost": ("catboost", "onnx", "model.cb"),
    "keras": ("keras", "onnx", "data/model.keras"),
    "keras-exported": ("savedmodel", "onnx", "data/model/saved_model.pb"),
    "lightgbm": ("lightgbm", "onnx", "model.lgb"),
    "lightgbm-sklearn": ("lightgbm-skops", "onnx", "model.skops"),
    "onnx": ("onnx", "optimized", "model.onnx"),
    "onnx-external": ("onnx", "optimized", "model.onnx"),
    "pt2": ("pt2", "onnx", "data/model.pt2"),
    "sklearn": ("skops", "onnx", "model.skops"),
    "sklearn-pickle": ("sklearn", "onnx", "model.pkl"),
    "tf-keras": ("keras", "onnx", "data/model.keras"),
    "tf-keras-h5": ("keras", "onnx", "data/model.h5"),
    "tf-module": ("savedmodel", "onnx", "tf2model/saved_model.pb"),
    "xgboost": ("xgboost", "onnx", "model.ubj"),
}
WITHOUT_LIBRARY = ("lightgbm", "lightgbm-sklearn", "onnx", "onnx-external", "xgboost")


def put(folder: str, directory: Path) -> Path:
    """A folder as MLflow wrote it."""
    for name in FOLDERS.files:
        if name.startswith(f"{folder}/"):
            place = directory / name.partition("/")[2]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(FOLDERS[name].tobytes())
    return directory


@pytest.mark.parametrize("folder", CONVERTED)
def test_each_flavour_leads_to_the_converter_of_its_file(folder: str, tmp_path: Path) -> None:
    pair, source, _ = MlflowConverter().redirect(ConversionSource(put(folder, tmp_path), "MLmodel", "1/MLmodel"), {})
    assert (*pair, source.name) == CONVERTED[folder]
    assert source.label == f"1/{source.name}"
    assert (tmp_path / source.name).is_file()


@pytest.mark.kinds("refused by name", "MLflow")
@pytest.mark.parametrize("folder", ["pickle", "script"])
def test_a_pickle_of_pytorch_is_refused_with_what_to_run(folder: str, tmp_path: Path) -> None:
    source = ConversionSource(put(folder, tmp_path), "MLmodel", "1/MLmodel")
    with pytest.raises(
        UnsupportedError, match=r"its pytorch model has none of model\.pt2.*serialization_format='pt2'\)"
    ):
        MlflowConverter().redirect(source, {})


@pytest.mark.kinds("accepted", "MLflow")
@pytest.mark.parametrize("folder", WITHOUT_LIBRARY)
def test_a_folder_answers_in_a_server_that_lacks_its_library(folder: str, tmp_path: Path) -> None:
    root = tmp_path / "repository" / "m"
    put(folder, root / "1")
    (root / "config.pbtxt").write_text('model_repository_agents { agents { name: "convert" } }')
    with AgentHarness(tmp_path / "harness") as harness:
        outcome = harness.run(root)
    assert outcome.error is None
    for name, content in outcome.files.items():
        place = tmp_path / "out" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    session = ort.InferenceSession(str(tmp_path / "out/1/model.onnx"), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert len(session.run(None, {given.name: np.zeros((3, 4), np.float32)})[-1]) == 3


def test_an_estimator_of_lightgbm_becomes_what_its_booster_does() -> None:
    """MLflow wrote the same trees twice."""
    text = text_in_skops(FOLDERS["lightgbm-sklearn/model.skops"].tobytes())
    wanted = read_lightgbm(FOLDERS["lightgbm/model.lgb"].tobytes())
    found, right = (to_onnx(one, "repoagent", double=False) for one in (read_lightgbm(text), wanted))
    assert found == right


def test_an_archive_that_unpacks_to_much_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lightgbm, "_TEXT_BYTES", 1000)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", bytes(1001))
    with pytest.raises(UnsupportedError, match="unpacks to more than 1000 bytes"):
        text_in_skops(content.getvalue())


@pytest.mark.parametrize("folder", ["lightgbm", "sklearn"])
def test_another_file_in_the_place_of_skops_around_lightgbm_is_refused(folder: str) -> None:
    name = next(name for name in FOLDERS.files if name.startswith(f"{folder}/model."))
    with pytest.raises(InvalidArgumentError, match=r"is not a zip archive|it is sklearn"):
        text_in_skops(FOLDERS[name].tobytes())


def test_a_folder_that_names_another_one_is_not_looked_into(tmp_path: Path) -> None:
    put("pt2", tmp_path / "outside")
    text = FOLDERS["pt2/MLmodel"].tobytes().decode().replace("model_data: data", "model_data: ../outside/data")
    (tmp_path / "m").mkdir()
    with pytest.raises(UnsafePathError):
        redirected(tmp_path / "m", text)
    (tmp_path / "m/data").symlink_to(tmp_path / "outside/data")
    with pytest.raises(UnsafePathError):
        redirected(tmp_path / "m", FOLDERS["pt2/MLmodel"].tobytes().decode())


def redirected(directory: Path, text: str, **options: str) -> Any:
    (directory / "MLmodel").write_text(text)
    return MlflowConverter().redirect(ConversionSource(directory, "MLmodel", "1/MLmodel"), options)


def test_the_flavour_its_file_and_the_columns_of_the_signature_are_found(tmp_path: Path) -> None:
    (kind, _), source, options = redirected(tmp_path, MLMODEL)
    assert (kind, source.name, source.label) == ("skops", "model.skops", "1/model.skops")
    assert options == {"columns": "age:fp32,sex:string,it's:fp32"}
    (kind, _), source, options = redirected(tmp_path, XGBOOST, names="mlserver")
    assert (kind, source.name, options) == ("xgboost", "model.ubj", {"names": "mlserver"})


def test_a_pickle_is_one_and_a_parameter_counts_before_the_signature(tmp_path: Path) -> None:
    text = MLMODEL.replace("serialization_format: skops", "serialization_format: cloudpickle")
    (kind, _), _, options = redirected(tmp_path, text, columns="age:string")
    assert (kind, options["columns"]) == ("sklearn", "age:string")


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("  sklearn:", "  statsmodels:", "has the flavors python_function, statsmodels; converted are onnx, xgboost"),
        ("code: null", "code: mycode", "has code of its own, which is not run"),
        ('"double"', '"datetime"', "the column 'age' is of the type datetime"),
        ("pickled_model", "other", "is not an MLmodel: KeyError"),
        ("flavors:", "flavors: !!python/object:os.system", "is not an MLmodel: ValueError"),
        ('"age", ', '"age"', "is not an MLmodel: "),
        ("code: null", "code: &a [*a]", "is not an MLmodel: ValueError"),
    ],
)
def test_what_is_not_served_is_refused_by_name(before: str, after: str, text: str, tmp_path: Path) -> None:
    with pytest.raises((UnsupportedError, InvalidArgumentError), match=text):
        redirected(tmp_path, MLMODEL.replace(before, after, 1))


@pytest.mark.parametrize("text", [MLMODEL, XGBOOST])
def test_it_is_read_as_yaml_is(text: str) -> None:
    yaml = pytest.importorskip("yaml")

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        return {None: "null", False: "false"}.get(value, str(value))

    assert read_mlmodel(text) == plain(yaml.safe_load(text))


@pytest.mark.timeout(in_full(3600, otherwise=300))
def test_damaged_files_are_errors(tmp_path: Path) -> None:
    source = random.Random(28)
    for _ in range(in_full(10_000, otherwise=100)):
        data = bytearray(MLMODEL.encode())
        for _ in range(source.randint(1, 4)):
            place = source.randrange(len(data))
            data[place : place + source.randint(0, 30)] = source.randbytes(source.randint(0, 3))
        (tmp_path / "MLmodel").write_bytes(data)
        try:
            MlflowConverter().redirect(ConversionSource(tmp_path, "MLmodel", "1/MLmodel"), {})
        except RepoAgentError:
            continue


@pytest.mark.timeout(in_full(3600, otherwise=300))
def test_a_damaged_archive_around_lightgbm_is_an_error_or_has_its_trees() -> None:
    source, content = random.Random(28), FOLDERS["lightgbm-sklearn/model.skops"].tobytes()
    trees = text_in_skops(content)
    for _ in range(in_full(10_000, otherwise=100)):
        with suppress(RepoAgentError):
            assert text_in_skops(mutated(content, source, is_text=False)) == trees


def test_a_folder_is_served_by_one_line(tmp_path: Path) -> None:
    root = tmp_path / "repository" / "m"
    (root / "1").mkdir(parents=True)
    (root / "1" / "MLmodel").write_text(XGBOOST)
    (root / "1" / "model.ubj").write_bytes(bytes(STORE["xgb-binary-logistic.ubj/file"]))
    (root / "config.pbtxt").write_text('model_repository_agents { agents { name: "convert" } }')
    with AgentHarness(tmp_path / "harness") as harness:
        outcome = harness.run(root)
        assert outcome.error is None
        assert "1/model.onnx" in outcome.files
        assert "1/model.ubj" not in outcome.files
        (root / "1" / "MLmodel").write_text(XGBOOST.replace("model.ubj", "../../../secret"))
        error = str(harness.run(root).error)
        assert "no such file" in error or "outside" in error


# As an attacker writes them.


def test_a_text_over_many_lines_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was read so far was read again with each line: twenty seconds for a megabyte."""
    seen = [0]
    real = mlflow._ends

    def ends(piece: str, *more: str) -> bool:
        seen[0] += len(piece)
        return real(piece, *more)

    monkeypatch.setattr(mlflow, "_ends", ends)
    text = "flavors:\n  x: 'a\n" + "b\n" * 1000 + "c'\n"
    assert read_mlmodel(text)["flavors"]["x"] == "a " + "b " * 1000 + "c"
    assert seen[0] <= len(text)


def test_a_mapping_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "MLmodel").write_text("flavors:\n  xgboost:\n    data:\n      x: y\n")
    with pytest.raises(InvalidArgumentError, match="its model file has no name"):
        MlflowConverter().redirect(ConversionSource(tmp_path, "MLmodel", "1/MLmodel"), {})
