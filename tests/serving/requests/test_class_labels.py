"""Files of labels, by hand and through a load."""

from pathlib import Path

import pytest

from repoagent.config import ModelConfig
from repoagent.errors import InternalError, UnsafePathError
from repoagent.serving.requests.request import OutputClasses, read_labels
from repoagent.storage.files.files import MemoryFiles, ModelFiles


def _files(**contents: bytes) -> ModelFiles:
    def spill() -> Path:
        raise AssertionError("labels need no directory")

    return MemoryFiles(contents, spill)


def _config(**outputs: str) -> ModelConfig:
    config = ModelConfig(name="m")
    for name, file in outputs.items():
        config.output.add(name=name, label_filename=file)
    return config


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        (b"cat\ndog\n", (b"cat", b"dog")),
        (b"cat\ndog", (b"cat", b"dog")),
        (b"cat\n\n", (b"cat", b"")),
        (b"a\r\nb", (b"a\r", b"b")),
        (b"\xff\xfe", (b"\xff\xfe",)),
        (b"\n", (b"",)),
        (b"", ()),
    ],
)
def test_a_line_is_a_label(content: bytes, labels: tuple[bytes, ...]) -> None:
    assert read_labels(_config(Y="f", Z=""), _files(f=content)) == {"Y": labels}


def test_a_file_that_is_not_there_has_tritons_text() -> None:
    with pytest.raises(InternalError, match=r"^failed to open text file for read f: No such file or directory$"):
        read_labels(_config(Y="f"), _files(g=b""))


def test_a_file_outside_the_model_is_refused() -> None:
    with pytest.raises(UnsafePathError):
        read_labels(_config(Y="../f"), _files(f=b"a"))


def test_a_class_without_a_label_has_an_empty_one() -> None:
    classes = OutputClasses(batching=False, labels={"Y": (b"cat",)})
    assert [classes.label("Y", 0), classes.label("Y", 1), classes.label("Z", 0)] == [b"cat", b"", b""]
