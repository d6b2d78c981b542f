"""A model sent whole (``file:``), or as a configuration alone, has a name that a directory could have."""

import json

import pytest

from repoagent.errors import InvalidArgumentError
from tests.hostile.conftest import NewCore

_CONFIG = json.dumps(
    {
        "backend": "python",
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    }
)
_CODE = b"class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
NAMES = [
    "",
    ".",
    "..",
    "a/b",
    "../evil",
    "/",
    "a\nb",
    "a\rINFO forged",
    "a\0b",
    "a\x1b[2J",
    "a\u2028b",
    "\udcff",
    "x" * 256,
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("files", [{"file:1/model.py": _CODE}, None], ids=["files", "configuration alone"])
def test_a_name_that_no_directory_should_have_is_refused(
    new_core: NewCore, name: str, files: dict[str, bytes] | None, caplog: pytest.LogCaptureFixture
) -> None:
    core = new_core()
    with pytest.raises(InvalidArgumentError, match="cannot be the name of a model"):
        core.load(name, config=_CONFIG, files=files)
    assert core.index() == []
    assert not [record.getMessage() for record in caplog.records if not record.getMessage().isprintable()]


@pytest.mark.parametrize("name", ["m", "a b", "...", "model.onnx", "\u6a21\u578b", "x" * 255], ids=ascii)
def test_other_names_are_names(new_core: NewCore, name: str) -> None:
    core = new_core()
    core.load(name, config=_CONFIG, files={"file:1/model.py": _CODE})
    assert core.index() == [{"name": name, "version": "1", "state": "READY"}]
