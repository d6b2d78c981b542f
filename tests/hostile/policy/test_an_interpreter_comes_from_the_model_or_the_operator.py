"""T5: ``EXECUTION_ENV_PATH`` names a program that the server runs; it may not be any program of the machine."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repoagent.config import read_text
from repoagent.errors import InvalidArgumentError
from repoagent.serving.backends.python.settings import program_for
from tests.hostile.policy.ground import Ground, Road

REFUSED = "which is neither inside the model"
Named = Callable[[str], str]


def configuration(path: str) -> bytes:
    return f'backend: "python" parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}'.encode()


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A program outside of the model that leaves a mark when it is run."""
    path = tmp_path / "evil" / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    path.chmod(0o755)
    return path


def test_no_road_leads_to_another_program(ground: Ground, road: Road, evil: Path, program: bytes) -> None:
    ground.write({"config.pbtxt": configuration(str(evil)), "1/model.py": program})
    assert REFUSED in road(ground, "")
    assert not (ground.path / "ran").exists()


@pytest.mark.parametrize(
    "named",
    [
        "{evil}",
        "{evil.parent.parent}",
        "$$TRITON_MODEL_DIRECTORY/../../evil/bin/python",
        "$$TRITON_MODEL_DIRECTORY/../../evil",
        "$$TRITON_MODEL_DIRECTORY/env",
        "$$TRITON_MODEL_DIRECTORY/directory",
        "$$TRITON_MODEL_DIRECTORY/directory/bin/python",
        "$$TRITON_MODEL_DIRECTORY/program",
        "evil/bin/python",
        "/bin/sh",
        "/no/such/program",
    ],
)
def test_neither_names_nor_links_lead_out_of_the_model(
    tmp_path: Path, evil: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    model = tmp_path / "repository" / "m"
    (model / "env" / "bin").mkdir(parents=True)
    (model / "env" / "bin" / "python").symlink_to(evil)
    (model / "directory").symlink_to(evil.parents[1])
    (model / "program").symlink_to("/bin/sh")
    monkeypatch.chdir(tmp_path)
    config = read_text(configuration(named.format(evil=evil)).decode())
    with pytest.raises(InvalidArgumentError, match=REFUSED):
        program_for(config, model)


def test_an_interpreter_of_the_model_and_a_link_to_the_servers_own_are_taken(tmp_path: Path) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to(sys.executable)
    shutil.copy(sys.executable, tmp_path / "copy")
    for named in ("env", "env/bin/python", "copy"):
        config = read_text(configuration(f"$$TRITON_MODEL_DIRECTORY/{named}").decode())
        assert program_for(config, tmp_path).command[0].startswith(str(tmp_path))


def test_the_operators_directories_and_programs_are_taken_and_no_others(tmp_path: Path, evil: Path) -> None:
    config = read_text(configuration(str(evil.parents[1])).decode())
    assert program_for(config, tmp_path / "m", [evil.parents[1]]).command[0] == str(evil)
    assert program_for(config, tmp_path / "m", [evil]).command[0] == str(evil)
    with pytest.raises(InvalidArgumentError, match=REFUSED):
        program_for(config, tmp_path / "m", [tmp_path / "evi"])
