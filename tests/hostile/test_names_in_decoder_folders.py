"""T7: what the files of a language model name lies in its folder."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from repoagent_llm import Executor, ExecutorConfig, ModelType
from repoagent_llm.backend.tokenizing import TOKENIZER_NAME

from llm.tests.backend.tiny import byte_level
from repoagent.errors import RepoAgentError
from tests.hostile.conftest import NewCore


@pytest.fixture
def elsewhere(decoder_folder: Path, tmp_path: Path) -> Path:
    """A decoder folder outside of the repository: a graph that nobody pinned."""
    return Path(shutil.copytree(decoder_folder, tmp_path / "elsewhere"))


@pytest.fixture
def model(repository: Path, decoder_folder: Path) -> Path:
    """A language model; its version directory."""
    folder = Path(shutil.copytree(decoder_folder, repository / "m" / "1"))
    byte_level().save(str(folder / TOKENIZER_NAME))
    configure(folder.parent)
    return folder


def configure(directory: Path, **parameters: str) -> None:
    values = {"intra_op_thread_count": "1", **parameters}
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in values.items()]
    (directory / "config.pbtxt").write_text("\n".join(['backend: "llm"', *lines]))


def rename_graph(folder: Path, name: str) -> None:
    path = folder / "genai_config.json"
    values: dict[str, Any] = json.loads(path.read_text())
    values["model"]["decoder"]["filename"] = name
    path.write_text(json.dumps(values))


def refused(core: Any, text: str) -> None:
    with pytest.raises(RepoAgentError, match=text):
        core.load("m")
    assert not core.model_ready("m")


def test_the_model_as_it_is_loads(model: Path, new_core: NewCore) -> None:
    core = new_core()
    core.load("m")
    assert core.model_ready("m")


@pytest.mark.parametrize("form", ["absolute", "above", "roundabout"])
def test_the_graph_has_a_name_that_leads_out(form: str, model: Path, elsewhere: Path, new_core: NewCore) -> None:
    above = f"../../../{elsewhere.name}/model.onnx"
    name = {"absolute": str(elsewhere / "model.onnx"), "above": above, "roundabout": f"x/../{above}"}[form]
    (model / "x").mkdir()
    rename_graph(model, name)
    refused(new_core(), "'model.decoder.filename' must be the name of a file in the decoder's folder")
    with pytest.raises(RepoAgentError, match="the name of a file in the decoder's folder"):
        Executor(model, ModelType.DECODER_ONLY, ExecutorConfig())


@pytest.mark.parametrize("name", ["model.onnx", "genai_config.json", TOKENIZER_NAME])
def test_a_file_is_a_link_that_leads_out(name: str, model: Path, elsewhere: Path, new_core: NewCore) -> None:
    if name == TOKENIZER_NAME:
        byte_level().save(str(elsewhere / name))
    (model / name).unlink()
    (model / name).symlink_to(elsewhere / name)
    refused(new_core(), "is a link that leaves the model's directory")


@pytest.mark.parametrize("name", ["model.onnx", "genai_config.json"])
def test_an_executor_refuses_such_a_link_by_itself(name: str, model: Path, elsewhere: Path) -> None:
    (model / name).unlink()
    (model / name).symlink_to(elsewhere / name)
    with pytest.raises(RepoAgentError, match="is a link that leaves"):
        Executor(model, ModelType.DECODER_ONLY, ExecutorConfig())


@pytest.mark.parametrize("parameter", ["speculative_model_dir", "lora_prefetch_dir"])
@pytest.mark.parametrize("form", ["absolute", "above", "link"])
def test_a_parameter_names_a_folder_elsewhere(
    parameter: str, form: str, model: Path, elsewhere: Path, new_core: NewCore
) -> None:
    name = {"absolute": str(elsewhere), "above": f"../../../{elsewhere.name}", "link": "linked"}[form]
    if form == "link":
        (model / "linked").symlink_to(elsewhere)
    configure(model.parent, **{parameter: name})
    refused(new_core(), "is an absolute path|contains '..'|is a link that leaves")


@pytest.mark.parametrize("name", ["model.onnx", "genai_config.json", TOKENIZER_NAME, "unused"])
def test_a_pipe_keeps_no_load_waiting(name: str, model: Path, new_core: NewCore) -> None:
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    refused(new_core(), "is neither a file nor a directory")


def test_a_draft_model_names_a_graph_outside(model: Path, elsewhere: Path, new_core: NewCore) -> None:
    shutil.copytree(elsewhere, model / "draft")
    rename_graph(model / "draft", str(elsewhere / "model.onnx"))
    configure(model.parent, speculative_model_dir="draft")
    refused(new_core(), "the name of a file in the decoder's folder")
