"""``repoagent convert``: a file becomes an ONNX model beside it, and its configuration is printed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest
from click.testing import CliRunner, Result

from repoagent.cli.convert import convert
from repoagent.cli.interrupt import _FORWARDED
from repoagent.config import read_text
from repoagent.errors import AlreadyExistsError
from repoagent.loader import plugins

pytestmark = pytest.mark.slow

STORE = np.load(Path(__file__).parents[2] / "agents/convert/tests/trees/data/models.npz")
NAME = "xgb-multi-softprob.ubj"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(bytes(STORE[f"{NAME}/file"]))
    return path


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The command takes signals for the process that it runs in, which is the one of the tests here."""
    before = {number: signal.getsignal(number) for number in _FORWARDED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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


def test_a_directory_is_refused_with_the_files_that_are_meant(model: Path) -> None:
    result = run(model.parent)
    assert f"{model.parent} is a directory; name the file in it, such as" in str(result.exception)


def test_nothing_is_overwritten(model: Path) -> None:
    (model.parent / "model.onnx").write_bytes(b"mine")
    assert "model.onnx is there already; name another file with --output" in str(run(model).exception)
    assert (model.parent / "model.onnx").read_bytes() == b"mine"


def test_a_file_that_comes_during_the_conversion_stays(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Path] = []

    def look(path: Path, what: str = "file") -> None:
        looks.append(path)
        if len(looks) == 2:  # the last one before the result is put in its place
            path.write_bytes(b"mine")
        elif os.path.lexists(path):
            raise AlreadyExistsError(f"{path} is there already")

    monkeypatch.setattr("repoagent.cli.convert._refuse_existing", look)
    assert "model.onnx is there already" in str(run(model).exception)
    assert (model.parent / "model.onnx").read_bytes() == b"mine"


def test_a_conversion_that_is_stopped_leaves_nothing_behind(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repoagent.cli.convert.StopSignals", lambda: SimpleNamespace(number=15, is_set=lambda: True))
    assert run(model).exit_code == 128 + 15
    assert [path.name for path in model.parent.iterdir()] == ["model.bin"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "its content shows no format that becomes 'onnx'; name it with --from, one of: catboost, "),
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


@pytest.mark.parametrize("arguments", [[], ["--from", "xgboost"]])
def test_where_the_package_of_the_converter_is_missing_the_refusal_states_how_to_install_it(
    model: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda group: [])
    error = str(run(model, *arguments).exception)
    assert "xgboost" in error
    assert "repoagent-convert" in error
    assert "from a checkout: pip install ./agents/convert" in error
