"""T7: what the files of a language model name lies in its folder."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_llm import Executor, ExecutorConfig, ModelType
from repoagent_llm.backend.tokenizing import TOKENIZER_NAME
from repoagent_verify.cli import verify_command
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign

from agents.verify.tests.issuing import public_pem
from llm.tests.backend.tiny import byte_level
from repoagent.cli.check import check
from repoagent.cli.main import run
from repoagent.cli.prepare import prepare
from repoagent.errors import InvalidArgumentError, RepoAgentError
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


# A model sent whole (``file:``), or as a configuration alone, has a name that a directory could have.

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


# The owner of a model names its files: a name must not look as if a command had written it.

NAME = "x\x1b[2K\rsigned by key of the vendor\nOK \u202e"


@pytest.fixture
def verify(tmp_path: Path) -> Callable[..., str]:
    """What ``repoagent verify`` writes about a signed model to which a file of that name was added."""
    model = tmp_path / "m"
    model.mkdir()
    (model / "weights").write_bytes(b"weights")
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "key.pem").write_bytes(public_pem(key))
    (model / "model.sig").write_bytes(sign(model, Identity(key), Serialization(), signature="model.sig"))
    (model / NAME).write_bytes(b"")

    def write(*more: str) -> str:
        arguments = [str(model), "--public-key", str(tmp_path / "key.pem"), *more]
        return CliRunner().invoke(verify_command, arguments).output

    return write


@pytest.mark.parametrize("more", [[], ["--unsigned", "*"]])
def test_verify_escapes_them(verify: Callable[..., str], more: list[str]) -> None:
    lines = verify(*more).splitlines()
    assert r"not signed: x\x1b[2K\rsigned by key of the vendor\nOK \u202e" in lines[-1]
    assert all(line.isprintable() for line in lines)


def test_check_escapes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / NAME).write_bytes(b"")
    (model / "config.pbtxt").write_text('model_repository_agents { agents [ { name: "scan" } ] }')
    (model / "1" / "z.pkl").write_bytes(b"\x80\x04.")
    for arguments in ([str(model)], [str(model), "--json"]):
        with pytest.raises(SystemExit):
            run(check, "repoagent", args=[*arguments, "--workspace-directory", str(tmp_path / "w")])
        shown = capsys.readouterr()
        assert all(line.isprintable() for line in (shown.out + shown.err).splitlines())


def test_prepare_escapes_the_name_of_a_model(tmp_path: Path) -> None:
    model = tmp_path / "models" / NAME
    model.mkdir(parents=True)
    (model / "weights").write_bytes(b"weights")
    directories = [f"--workspace-directory={tmp_path / 'w'}", f"--cache-directory={tmp_path / 'c'}"]
    result = CliRunner().invoke(
        prepare, [*directories, "--allow-unchecked", str(model), str(tmp_path / "out")], color=True
    )
    assert result.exit_code == 0
    assert result.output.splitlines() == [rf"x\x1b[2K\rsigned by key of the vendor\nOK \u202e: ready in {tmp_path}/out"]


def test_run_escapes_the_name_of_a_model(tmp_path: Path) -> None:
    model = tmp_path / "models" / NAME
    model.mkdir(parents=True)
    (model / "weights").write_bytes(b"weights")
    words = [sys.executable, "-m", "repoagent", "run", f"--workspace-directory={tmp_path / 'w'}", "--allow-unchecked"]
    words += [f"--cache-directory={tmp_path / 'c'}", str(model), "--", "true"]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    assert result.stderr.splitlines() == [r"repoagent: x\x1b[2K\rsigned by key of the vendor\nOK \u202e: ready"]
