"""What a converter of trees plans, names, compares and writes into a configuration."""

import struct
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from repoagent_convert.trees.xgboost import XgboostConverter

from repoagent.api import ConversionSource
from repoagent.config import read_text
from repoagent.errors import InternalError, InvalidArgumentError, UnsupportedError
from repoagent.loader.converting import environments

from .conftest import STORE, Build, Recorded

BINARY = Recorded("xgb-binary-logistic.ubj")
ALL = sorted({name.partition("/")[0] for name in STORE.files})


def tensors(content: bytes) -> dict[str, tuple[str, list[Any]]]:
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    return {one.name: (one.type, one.shape) for one in (*session.get_inputs(), *session.get_outputs())}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {},
            {
                "input": ("tensor(float)", ["batch", 6]),
                "label": ("tensor(int64)", ["batch", 1]),
                "probabilities": ("tensor(float)", ["batch", 2]),
            },
        ),
        (
            {"names": "triton-fil"},
            {"input__0": ("tensor(float)", ["batch", 6]), "output__0": ("tensor(float)", ["batch", 2])},
        ),
        (
            {"names": "mlserver", "input_type": "fp64"},
            {
                "input": ("tensor(double)", ["batch", 6]),
                "predict": ("tensor(int64)", ["batch", 1]),
                "predict_proba": ("tensor(float)", ["batch", 2]),
            },
        ),
    ],
)
def test_tensors_have_the_names_and_types_asked_for(build: Build, options: dict[str, str], expected: Any) -> None:
    assert tensors(build(BINARY.converter, BINARY.content, **options).content) == expected


@pytest.mark.parametrize("names", ["triton-fil", "mlserver"])
@pytest.mark.parametrize("name", ["xgb-binary-hinge.ubj", "xgb-reg-squarederror.ubj", "lgb-multiclass.txt"])
def test_every_kind_has_an_output_under_every_naming(build: Build, name: str, names: str) -> None:
    model = Recorded(name)
    found = tensors(build(model.converter, model.content, names=names).content)
    assert ({"output__0"} if names == "triton-fil" else {"predict"}) <= found.keys()


def test_doubles_are_answered_as_floats_are(build: Build) -> None:
    one = ort.InferenceSession(build(BINARY.converter, BINARY.content).content)
    other = ort.InferenceSession(build(BINARY.converter, BINARY.content, input_type="fp64").content)
    expected = one.run(None, {"input": BINARY.rows})
    found = other.run(None, {"input": BINARY.rows.astype(np.float64)})
    assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))


def test_an_early_stopping_ends_with_the_best_iteration_unless_all_trees_are_wanted(build: Build) -> None:
    model = Recorded("xgb-early-stopping.json")
    built = build(model.converter, model.content)
    note = next(note for note in built.product.notes if "best iteration" in note)
    assert note.endswith("up to the best iteration (trees = all takes them all)")
    everything = build(model.converter, model.content, trees="all")
    assert len(everything.content) > len(built.content)
    assert not any("best iteration" in note for note in everything.product.notes)


@pytest.mark.parametrize(
    ("options", "stated", "is_missing"),
    [
        ({"missing": "-999"}, "", True),
        ({}, '{"n_estimators": 8, "missing": -999, "n_classes_": 2}', True),
        ({"missing": "nan"}, '{"missing": -999}', False),
        ({}, '{"missing": NaN}', False),
        ({}, '{"missing": null}', False),
        ({}, '{"_estimator_type": "classifier"}', False),
        ({}, "[", False),
    ],
)
@pytest.mark.parametrize("input_type", ["fp32", "fp64"])
def test_the_number_that_stands_for_a_missing_one_is_the_parameter_or_what_the_file_states(
    build: Build, options: dict[str, str], stated: str, is_missing: bool, input_type: str
) -> None:
    """Files of XGBoost before 2 have it; with XGBoost installed, the build compares such rows as well."""
    model = Recorded("xgb-missing.ubj")
    attribute = struct.pack(">cq12s2sq", b"L", 12, b"scikit_learn", b"SL", len(stated)) + stated.encode()
    content = model.content.replace(b"attributes{}", b"attributes{" + attribute + b"}")
    built = build(model.converter, content, input_type=input_type, **options)
    assert any("a missing number is NaN, and -999" in note for note in built.product.notes) == is_missing
    session = ort.InferenceSession(built.content)
    kind = np.float64 if input_type == "fp64" else np.float32
    rows = np.where(np.isnan(model.rows), -999, model.rows).astype(kind)
    found = session.run(None, {"input": rows})[1][:, 1]
    assert np.allclose(found, model.answers, atol=1e-6) == is_missing
    assert np.allclose(session.run(None, {"input": model.rows.astype(kind)})[1][:, 1], model.answers, atol=1e-6)


@pytest.mark.parametrize("missing", [-999, 0, -1.1])
def test_a_model_trained_with_another_number_for_a_missing_one_answers_as_the_library(
    build: Build, tmp_path: Path, missing: float
) -> None:
    xgboost: Any = pytest.importorskip("xgboost")
    random = np.random.default_rng(28)
    data = random.normal(size=(500, 3))
    data[random.random(data.shape) < 0.2] = missing
    matrix = xgboost.DMatrix(data, data[:, 1] > 0, missing=missing)
    booster = xgboost.train({"objective": "binary:logistic", "nthread": 1}, matrix, 8)
    booster.save_model(tmp_path / "model.ubj")
    built = build(XgboostConverter(), (tmp_path / "model.ubj").read_bytes(), missing=f"{missing}", input_type="fp64")
    found = ort.InferenceSession(built.content).run(None, {"input": data})[1][:, 1]
    np.testing.assert_allclose(found, booster.predict(matrix), atol=1e-6)


def test_the_configuration_is_completed_and_keeps_what_it_has(build: Build) -> None:
    built = build(BINARY.converter, BINARY.content)
    config = read_text('default_model_filename: "a model"')
    BINARY.converter.configure(config, built.plan, built.product)
    assert (config.backend, config.default_model_filename, config.max_batch_size) == ("onnxruntime", "model.onnx", 1024)
    assert [(one.name, list(one.dims)) for one in config.input] == [("input", [6])]
    assert [(one.name, list(one.dims)) for one in config.output] == [("label", [1]), ("probabilities", [2])]
    given = read_text('max_batch_size: 8 input { name: "input" data_type: TYPE_FP32 dims: 6 }')
    BINARY.converter.configure(given, built.plan, built.product)
    assert given.max_batch_size == 8
    assert [len(given.input), len(given.output)] == [1, 2]
    unbatched = read_text('input { name: "input" data_type: TYPE_FP32 dims: [-1, 6] }')
    BINARY.converter.configure(unbatched, built.plan, built.product)
    assert (unbatched.max_batch_size, len(unbatched.output)) == (0, 0)


def plan(path: Path, config: str = "", **options: str) -> Any:
    defaults = {name: one.default for name, one in XgboostConverter.options.items() if one.default is not None}
    source = ConversionSource(path.parent, path.name, f"1/{path.name}", read_text(config))
    return XgboostConverter().plan(source, {**defaults, **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"names": "triton"}, "parameter 'names': 'triton' is not a valid value; did you mean 'triton-fil'?"),
        ({"input_type": "fp16"}, "parameter 'input_type': 'fp16' is not a valid value"),
        ({"trees": "some"}, "parameter 'trees': 'some' is not a valid value; expected one of: best, all"),
        ({"missing": "none"}, "'missing' is 'none'; expected a number of FP32, or nan"),
        ({"missing": "1e39"}, "'missing' is '1e39'; expected a number of FP32, or nan"),
        ({"output": "../x"}, "parameter 'output': '../x' is not a plain file name"),
    ],
)
def test_other_options_are_refused(tmp_path: Path, options: dict[str, str], text: str) -> None:
    path = tmp_path / "model.ubj"
    path.write_bytes(BINARY.content)
    with pytest.raises(InvalidArgumentError, match=text.replace("?", r"\?")):
        plan(path, **options)


def test_what_cannot_be_a_model_is_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.ubj"
    with pytest.raises(InvalidArgumentError, match="no such file; the parameter 'input' names the model file"):
        plan(path)
    path.write_bytes(b"not a model")
    with pytest.raises(InvalidArgumentError, match=r"1/model.ubj: does not begin as a model of XGBoost"):
        plan(path)
    path.write_bytes(BINARY.content)
    with pytest.raises(InvalidArgumentError, match="but the configuration has 'python'"):
        plan(path, 'backend: "python"')
    monkeypatch.setattr(XgboostConverter, "largest", 100)
    with pytest.raises(UnsupportedError, match="has more than 100 bytes"):
        plan(path)


def test_a_missing_package_is_named_with_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_versions", lambda names: {})
    source = ConversionSource(tmp_path, "model.ubj", "1/model.ubj")
    with pytest.raises(
        UnsupportedError, match=r"needs onnx; from a checkout: pip install '\./agents/convert\[trees\]'"
    ):
        environments.planned(XgboostConverter(), ("xgboost", "onnx"), source, {}, environments.ConverterSettings())


def test_a_refusal_states_whether_the_file_is_damaged_or_cannot_be_expressed(build: Build) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a model of XGBoost, or is damaged: is cut off"):
        build(BINARY.converter, BINARY.content[:-100])
    linear = Recorded("lgb-refused-linear.txt")
    with pytest.raises(UnsupportedError, match="cannot be converted to ONNX: linear trees"):
        build(linear.converter, linear.content)


LIBRARY = """
__version__ = "9.9"

class Booster:
    feature_names = feature_types = None
    def __init__(self, model_file): pass
    def attr(self, name): return None
    def save_config(self): return ""
    def predict(self, rows, iteration_range):
        import onnxruntime
        return onnxruntime.InferenceSession(MODEL).run(None, {"input": rows})[1][:, 1] + WRONG

def DMatrix(rows, **more):
    return rows
"""


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, right: bytes, wrong: float) -> None:
    """An XGBoost that answers as the model ``right``, and ``wrong`` beside it."""
    (directory / "right.onnx").write_bytes(right)
    constants = f"MODEL = {str(directory / 'right.onnx')!r}\nWRONG = {wrong}\n"
    (directory / "xgboost.py").write_text(LIBRARY + constants)
    information = directory / "xgboost_cpu-9.9.dist-info"
    information.mkdir(exist_ok=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: xgboost-cpu\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(directory)
    monkeypatch.delitem(sys.modules, "xgboost", raising=False)


def test_the_result_is_compared_where_the_library_is_installed(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    first = build(BINARY.converter, BINARY.content)
    assert first.product.notes[-1] == "not compared: xgboost is not installed here"
    monkeypatch.undo()
    install(tmp_path, monkeypatch, first.content, 0)
    again = build(BINARY.converter, BINARY.content)
    assert again.product.notes[-1].startswith("compared with xgboost 9.9: 256 rows, largest difference ")
    assert "9.9" in environments._versions(BINARY.converter.libraries).values()
    install(tmp_path, monkeypatch, first.content, 0.01)
    text = "the converted model answers differently from xgboost 9.9: by up to 0.01 in 256 rows"
    with pytest.raises(InternalError, match=text):
        build(BINARY.converter, BINARY.content)
    install(tmp_path, monkeypatch, b"", 0)
    with pytest.raises(InvalidArgumentError, match=r"xgboost 9\.9 does not read it"):
        build(BINARY.converter, BINARY.content)


@pytest.mark.parametrize("name", [name for name in ALL if find_spec(Recorded(name).converter.library)])
def test_every_model_is_compared_with_the_library_itself(build: Build, name: str) -> None:
    """Where that is installed, as for ``make models``."""
    model = Recorded(name)
    if "refused" in name:
        with pytest.raises(UnsupportedError, match="cannot be converted to ONNX"):
            build(model.converter, model.content)
    else:
        note = build(model.converter, model.content).product.notes[-1]
        assert note.startswith(f"compared with {model.converter.library} ")
