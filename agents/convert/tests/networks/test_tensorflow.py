"""Models of Keras and TensorFlow: what the plan reads, and each kind in its environment and jail (``make models``)."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from click.testing import CliRunner, Result
from repoagent_convert.networks.tensorflow import SavedModelConverter

from agents.convert.tests.test_frameworks import FILES, put
from repoagent.api import ConversionSource, Product
from repoagent.cli.main import program
from repoagent.config import read_text
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnsafePathError
from repoagent.testing import Outcome

from .conftest import MADE, needs_models

Load = Callable[..., Outcome]
SAVED = FILES["savedmodel"][0]
OPTIONS = {"output": "model.onnx", "signature": "serving_default"}
HELD_OUT = {
    name: MADE / "networks" / name
    for name in (
        *("Keras, MLP", "Keras, CNN", "Keras, LSTM and GRU", "Keras, two inputs", "Keras, transformer"),
        *("SavedModel, module", "SavedModel, Keras"),
    )
}
HOSTILE = {
    "python function": "has the operations EagerPyFunc",
    "numpy function": "has the operations PyFunc",
    "reads": "has the operations ReadFile",
    "writes": "has the operations WriteFile",
    "lists": "has the operations MatchingFiles",
    "writes while it is opened": "cannot be opened: PermissionDeniedError",
    "lambda": "has a Lambda layer, whose Python code is not run",
    "lambda of HDF5": "has a Lambda layer, whose Python code is not run",
    "a class of os": "cannot be opened: Could not locate class 'system'",
    "a function of builtins": "cannot be opened: Could not locate class 'exec'",
    "a program": "cannot be opened: Could not locate class 'Popen'",
    "a table in another file": "cannot be opened: Requested the loading of a vocabulary file outside",
}


def folder(root: Path, *names: str) -> Path:
    for name in ("saved_model.pb", *names):
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(SAVED if name.endswith("saved_model.pb") else b"x")
    return root


def test_a_folder_is_read_whole_and_goes_whole(tmp_path: Path) -> None:
    folder(tmp_path / "model.savedmodel", "variables/variables.index", "assets/words")
    source = ConversionSource(tmp_path, "model.savedmodel/saved_model.pb", "1/model.savedmodel/saved_model.pb")
    plan = SavedModelConverter().plan(source, OPTIONS)
    names = ("assets/words", "saved_model.pb", "variables/variables.index")
    assert plan.inputs == tuple(f"model.savedmodel/{name}" for name in names)
    assert plan.replaces == ("model.savedmodel",)


def test_in_the_directory_of_the_version_only_what_tensorflow_writes_is_read(tmp_path: Path) -> None:
    folder(tmp_path, "variables/variables.index", "README.md", "other/variables")
    plan = SavedModelConverter().plan(ConversionSource(tmp_path, "saved_model.pb", "1/saved_model.pb"), OPTIONS)
    assert plan.inputs == ("saved_model.pb", "variables/variables.index")
    assert plan.replaces == ("saved_model.pb", "variables")


def test_a_link_in_the_folder_is_refused(tmp_path: Path) -> None:
    folder(tmp_path / "m")
    (tmp_path / "m/variables").symlink_to("/etc")
    with pytest.raises(UnsafePathError, match=r"1/m/variables is a link or a special file"):
        SavedModelConverter().plan(ConversionSource(tmp_path, "m/saved_model.pb", "1/m/saved_model.pb"), OPTIONS)


@pytest.mark.parametrize("text", ['platform: "tensorflow_savedmodel"', 'backend: "tensorflow"'])
def test_tritons_name_of_the_backend_becomes_ours(text: str, tmp_path: Path) -> None:
    config = read_text(f'{text} max_batch_size: 8 default_model_filename: "model.savedmodel"')
    source = ConversionSource(folder(tmp_path), "saved_model.pb", "1/saved_model.pb", config)
    plan = SavedModelConverter().plan(source, OPTIONS)
    outputs = [{"name": "best", "type": "TYPE_INT64", "dims": []}]
    SavedModelConverter().configure(config, plan, Product({"inputs": [], "outputs": outputs, "batch": 1024}))
    assert (config.backend, config.platform, config.default_model_filename) == ("onnxruntime", "", "model.onnx")
    assert (config.max_batch_size, list(config.output[0].dims), config.output[0].HasField("reshape")) == (8, [1], True)
    with pytest.raises(InvalidArgumentError, match="but the configuration has 'python'"):
        SavedModelConverter().check(read_text('backend: "python"'))


def test_a_network_without_batches_is_configured_with_all_dimensions(tmp_path: Path) -> None:
    config = read_text("")
    plan = SavedModelConverter().plan(ConversionSource(folder(tmp_path), "saved_model.pb", "1"), OPTIONS)
    tensors = [{"name": "x", "type": "TYPE_FP32", "dims": [1, 4]}]
    SavedModelConverter().configure(config, plan, Product({"inputs": tensors, "outputs": tensors, "batch": 0}))
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [1, 4])


def test_the_folder_that_triton_has_is_found_by_its_name_too(tmp_path: Path, load: Load) -> None:
    put(tmp_path, "model.savedmodel/saved_model.pb", SAVED)
    put(tmp_path, "model.ubj", b"{L")
    error = str(load("", input="model.savedmodel").error)
    assert "1/model.savedmodel/saved_model.pb: models of 'savedmodel' run code when they are opened" in error
    assert "needs tensorflow-cpu, tf2onnx; install them in an environment" in error
    assert "--converter-environment savedmodel=DIR; or convert it yourself: python -m" in error


def converted(file: Path, output: Path, kind: str) -> Result:
    flags = ["--converter-environment", f"{kind}={MADE / 'tensorflow'}", "--allow-code-conversion"]
    return CliRunner().invoke(program, ["convert", str(file), "--output", str(output), *flags])


def model_in(directory: Path) -> tuple[Path, str]:
    (file,) = (*directory.glob("model.*"), *directory.glob("saved_model.pb"))
    return file, "savedmodel" if file.name == "saved_model.pb" else "keras"


@pytest.mark.kinds("accepted", "")
@needs_models
@pytest.mark.parametrize("name", HELD_OUT)
def test_a_kind_is_converted_in_the_jail_and_answers_as_its_framework(name: str, tmp_path: Path) -> None:
    file, kind = model_in(HELD_OUT[name])
    result = converted(file, tmp_path / "model.onnx", kind)
    assert result.exit_code == 0, (result.output, result.exception)
    assert re.search(r"compared with (keras|tensorflow) .*: 256 rows, largest difference", result.stderr)
    session = ort.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    with np.load(HELD_OUT[name] / "held_out.npz") as file:
        known = dict(file)
    rows = {one.name: known[f"rows/{one.name}"] for one in session.get_inputs()}
    for one, found in zip(session.get_outputs(), session.run(None, rows), strict=True):
        np.testing.assert_allclose(found, known[f"answers/{one.name}"], rtol=1e-4, atol=1e-5)


@pytest.fixture
def outside() -> Iterator[Path]:
    place = MADE / "networks/outside"
    yield place
    (place / "new").unlink(missing_ok=True)


@needs_models
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_model_is_refused_and_changes_nothing(name: str, tmp_path: Path, outside: Path) -> None:
    file, kind = model_in(MADE / "networks/hostile" / name)
    result = converted(file, tmp_path / "model.onnx", kind)
    assert isinstance(result.exception, RepoAgentError), result.output
    assert HOSTILE[name] in str(result.exception)
    assert os.listdir(outside) == ["secret"]
    assert not list(tmp_path.iterdir())


@needs_models
def test_without_the_jail_a_model_writes_while_it_is_opened(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SavedModelConverter, "runs_code", False)
    converted(MADE / "networks/hostile/writes while it is opened/saved_model.pb", tmp_path / "model.onnx", "savedmodel")
    assert (outside / "new").exists()
