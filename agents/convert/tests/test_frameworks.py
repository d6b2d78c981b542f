"""Models of frameworks that write ONNX themselves are recognised by content, and refused with what to run."""

import io
import os
import re
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from repoagent_convert.model_file import FileConverter
from repoagent_convert.networks.network import NetworkConverter
from repoagent_convert.networks.pt2 import Pt2Converter
from repoagent_convert.networks.tensorflow import KerasConverter, SavedModelConverter
from repoagent_convert.tables.sklearn import SkopsConverter

from repoagent.api import ConversionJob, InvalidArgumentError, UnsupportedError
from repoagent.testing import Outcome

Load = Callable[..., Outcome]
Save = Callable[..., Path]
BOOSTER = np.load(Path(__file__).with_name("trees") / "data/models.npz")["xgb-binary-logistic.ubj/file"].tobytes()


def archive(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        for name in names:
            written.writestr(name, b"x" * 5000)
    return file.getvalue()


PT2 = (
    "'pt2' run code .* --allow-code-conversion; the conversion from 'pt2' needs torch, onnxscript; .*"
    "--converter-environment pt2=DIR; or convert it .*torch.export.load"
)
FILES = {
    "pt2": (archive("m/archive_format", "m/models/model.json", "m/data/weights/data.pkl"), PT2),
    "pt2 of 2.5": (archive("serialized_exported_program.json", "version"), PT2),
    "torchscript": (archive("m/data.pkl", "m/code/m.py", "m/constants.pkl"), "TorchScript.*lacks the example inputs"),
    "state dict": (archive("m/data.pkl", "m/data/0", "m/version"), "a file of torch.save.*no graph"),
    "many weights": (
        archive("m/data.pkl", *(f"m/{n:0500}" for n in range(200))),
        "a file of torch.save.*no graph",
    ),
    "former state dict": (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M", "a file of torch.save.*no graph"),
    "keras": (archive("metadata.json", "config.json", "model.weights.h5"), r"model.export\('model.onnx'"),
    "h5": (b"\x89HDF\r\n\x1a\n" + bytes(99), r"model.export\('model.onnx'"),
    "savedmodel": (b"\x08\x01\x12\xb9\x60\x0a\x80\x2f\x12", "python -m tf2onnx.convert --saved-model DIR"),
}


def put(root: Path, name: str, content: bytes) -> None:
    place = root / "source/1" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
def test_it_is_refused_by_name_with_what_to_run(name: str, tmp_path: Path, load: Load) -> None:
    content, text = FILES[name]
    put(tmp_path, "a $(model)", content)
    error = str(load("").error)
    assert re.search(text, error)
    assert error.count("$(model)") == 1, "the command that is to be run has a name that the model chose"


def hidden(content: bytes) -> bytes:
    """An archive whose member has more than it claims."""
    return content.replace((5000).to_bytes(4, "little"), (4999).to_bytes(4, "little"))


def build(converter: Any, path: Path) -> Any:
    return converter.build(ConversionJob(path.parent, path.parent, {"input": path.name, "any_version": False}))


@pytest.mark.parametrize(
    ("opened", "limit"),
    [
        (partial(build, KerasConverter()), (NetworkConverter, "largest")),
        (partial(build, Pt2Converter()), (NetworkConverter, "largest")),
        (SkopsConverter().load, (FileConverter, "largest")),
    ],
    ids=["Keras", "pt2", "skops"],
)
def test_an_archive_is_bounded_before_a_library_opens_it(
    opened: Callable[[Path], Any], limit: tuple[type, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").write_bytes(hidden(FILES["keras"][0]))
    with pytest.raises(InvalidArgumentError, match=r"the member 'metadata.json' (has another size|is damaged)"):
        opened(tmp_path / "model")
    monkeypatch.setattr(*limit, 10_000)
    (tmp_path / "model").write_bytes(FILES["keras"][0])
    with pytest.raises(UnsupportedError, match="unpacks to more than 10000 bytes"):
        opened(tmp_path / "model")


def test_a_folder_of_tensorflow_is_refused_as_its_file_is(tmp_path: Path, load: Load) -> None:
    content, text = FILES["savedmodel"]
    put(tmp_path, "model.savedmodel/saved_model.pb", content)
    put(tmp_path, "model.savedmodel/variables/variables.index", b"")
    assert re.search(text, str(load("").error))


def test_a_folder_with_a_pipe_of_that_name_keeps_no_one_waiting(tmp_path: Path, load: Load) -> None:
    put(tmp_path, "model.ubj", BOOSTER)
    (tmp_path / "source/1/folder").mkdir()
    os.mkfifo(tmp_path / "source/1/folder/saved_model.pb")
    assert "'1/folder/saved_model.pb' is neither a file nor a directory" in str(load("").error)


def test_weights_beside_a_model_are_not_the_model(tmp_path: Path, load: Load) -> None:
    put(tmp_path, "model.ubj", BOOSTER)
    put(tmp_path, "weights.pt", FILES["state dict"][0])
    outcome = load("")
    assert outcome.error is None
    assert "1/model.onnx" in outcome.files


def test_an_onnx_model_of_the_first_version_is_not_a_saved_model(perceptron: onnx.ModelProto) -> None:
    perceptron.ir_version = 1
    perceptron.producer_name = "pytorch"
    assert not SavedModelConverter().recognizes(perceptron.SerializeToString())
