"""What the review tried in vain with names and files; it must go on resisting."""

import json
from pathlib import Path

import numpy as np
import pytest

from repoagent.errors import RepoAgentError
from tests.hostile.conftest import SECRET, NewCore

NAMES = [
    "..", "../m", "m/..", "/etc", "./m", "m/", "m//", "a/b", "m\0", "", ".", "%2e%2e", "..%2fm", "\udcff", "m\n", "~",
]  # fmt: skip
CONFIG = '{"backend": "identity"}'


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", ["nothing", "config", "files"])
def test_a_model_name_leads_nowhere_else(
    name: str, given: str, repository: Path, new_core: NewCore, outside: Path
) -> None:
    (repository / "m" / "1").mkdir(parents=True)
    core = new_core()
    before = sorted(repository.parent.rglob("*"))
    said = ""
    try:
        core.load(
            name,
            config=CONFIG if given != "nothing" else None,
            files={"1/model.onnx": b""} if given == "files" else None,
        )
    except RepoAgentError as error:
        said = str(error)
    assert said or given == "files"  # what comes whole may have any name: nothing is looked for under it
    assert SECRET.decode() not in said
    left = [path for path in sorted(repository.parent.rglob("*")) if path not in before]
    assert not [path for path in left if "workspace" not in path.parts and "cache" not in path.parts]


@pytest.mark.parametrize(
    "path",
    ["../x", "/x", "1/../../x", "1/./x", "1//x", "1/", "", ".", "..", "1/x\0y", "1/model.py/../../../x"],
)
def test_a_name_of_a_file_that_is_sent_along_leads_nowhere_else(path: str, new_core: NewCore) -> None:
    core = new_core()
    with pytest.raises(RepoAgentError):
        core.load("m", config=CONFIG, files={path: b"x", "1/model.onnx": b""})
    assert not core.model_ready("m")


def test_files_that_exclude_each_other(new_core: NewCore) -> None:
    core = new_core()
    with pytest.raises(RepoAgentError, match="both a file and a directory"):
        core.load("m", config=CONFIG, files={"1": b"x", "1/model.onnx": b""})


@pytest.mark.parametrize("field", ["default_model_filename", "label_filename", "input_data_file", "data_file"])
@pytest.mark.parametrize("path", ["../../outside/key.txt", "/etc/hostname", "a/../../../outside/key.txt"])
def test_a_name_in_a_configuration_leads_nowhere_else(
    field: str, path: str, repository: Path, outside: Path, new_core: NewCore
) -> None:
    tensor = "data_type: TYPE_FP32 dims: [4]"
    extra = {
        "default_model_filename": f'default_model_filename: "{path}"',
        "label_filename": f'output {{ name: "OUTPUT0" {tensor} label_filename: "{path}" }}',
        "input_data_file": f'model_warmup {{ name: "w" inputs {{ key: "INPUT0" value {{ {tensor} '
        f'input_data_file: "{path}" }} }} }}',
        "data_file": "sequence_batching { state { input_name: 'a' output_name: 'b' data_type: TYPE_FP32 dims: [4] "
        f"initial_state {{ name: 'i' data_type: TYPE_FP32 dims: [4] data_file: '{path}' }} }} }}",
    }[field]
    (repository / "m" / "1").mkdir(parents=True)
    np.zeros(4, np.float32).tofile(repository / "m" / "1" / "model.onnx")
    (repository / "m" / "config.pbtxt").write_text(
        f'backend: "identity" input {{ name: "INPUT0" {tensor} }} '
        + ("" if field == "label_filename" else f'output {{ name: "OUTPUT0" {tensor} }} ')
        + extra
    )
    core = new_core()
    with pytest.raises(RepoAgentError, match=f"'{field}' must name a file inside the model directory"):
        core.load("m")


@pytest.mark.parametrize("name", ["genai_config.json", "config"])
def test_json_that_is_nested_without_end(name: str, repository: Path, new_core: NewCore) -> None:
    deep = '{"a":' * 200_000
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text('backend: "llm"')
    (repository / "m" / "1" / "tokenizer.json").write_text(deep)
    (repository / "m" / "1" / "genai_config.json").write_text(deep)
    core = new_core()
    with pytest.raises(RepoAgentError):
        core.load("m", config=deep if name == "config" else None)
    assert not core.model_ready("m")


def test_two_parts_of_one_name_in_an_override(new_core: NewCore) -> None:
    core = new_core()
    twice = '{"name": "m", "name": "other", "backend": "identity"}'
    with pytest.raises(RepoAgentError):
        core.load("m", config=twice, files={"1/x": json.dumps({}).encode()})
