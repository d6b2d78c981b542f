"""``repoagent convert``: a file becomes an ONNX model beside it, and its configuration is printed."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from click.testing import CliRunner, Result

from repoagent.cli.convert import convert
from repoagent.config import read_text

pytestmark = pytest.mark.slow

STORE = np.load(Path(__file__).parents[1] / "converters/trees/data/models.npz")
NAME = "xgb-multi-softprob.ubj"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(bytes(STORE[f"{NAME}/file"]))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(convert, [str(one) for one in arguments])


def test_the_result_lies_beside_the_file_and_its_configuration_is_printed(model: Path) -> None:
    result = run(model)
    assert result.exit_code == 0, result.stderr
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.bin", "model.onnx"]
    answers = ort.InferenceSession(model.parent / "model.onnx").run(None, {"input": STORE[f"{NAME}/rows"]})[1]
    assert np.abs(answers - STORE[f"{NAME}/answers"]).max() < 1e-6
    config = read_text(result.stdout)
    assert (config.backend, config.max_batch_size) == ("onnxruntime", 1024)
    assert [one.name for one in config.output] == ["label", "probabilities"]
    assert [list(one.dims) for one in config.output] == [[1], [3]]
    assert "objective multi:softprob\n" in result.stderr
    assert "compared" in result.stderr


def test_the_output_and_the_parameters_of_the_converter_can_be_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    result = run(model, "--output", tmp_path / "1" / "trees.onnx", "--parameter", "names=triton-fil")
    assert result.exit_code == 0, result.stderr
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["trees.onnx"]
    config = read_text(result.stdout)
    assert config.default_model_filename == "trees.onnx"
    assert (config.input[0].name, config.output[0].name) == ("input__0", "output__0")


def test_the_directory_of_the_output_has_to_be_there(model: Path) -> None:
    result = run(model, "--output", model.parent / "nowhere" / "trees.onnx")
    assert (
        str(result.exception) == f"--output: there is no directory {model.parent}/nowhere; make it, or name another one"
    )
    assert [path.name for path in model.parent.iterdir()] == ["model.bin"]


def test_nothing_is_overwritten(model: Path) -> None:
    (model.parent / "model.onnx").write_bytes(b"mine")
    assert "model.onnx is there already; name another file with --output" in str(run(model).exception)
    assert (model.parent / "model.onnx").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "its content shows no format that becomes 'onnx'; name it with --from, one of: lightgbm, "),
        (["--from", "xgboost"], "does not begin as a model of XGBoost"),
        (["--to", "nothing"], "its content shows no format that becomes 'nothing'; name it with --from, one of: none"),
    ],
)
def test_what_is_not_a_model_is_refused(model: Path, arguments: list[str], text: str) -> None:
    model.write_bytes(b"nothing")
    assert text in str(run(model, *arguments).exception)
    assert [path.name for path in model.parent.iterdir()] == ["model.bin"]


def test_a_damaged_model_is_refused_and_leaves_nothing_behind(model: Path) -> None:
    model.write_bytes(model.read_bytes()[:-9])
    assert f"{model}: is not a model of XGBoost, or is damaged: is cut off" in str(run(model).exception)
    assert [path.name for path in model.parent.iterdir()] == ["model.bin"]
    assert "is not NAME=VALUE" in run(model, "--parameter", "names").stderr
