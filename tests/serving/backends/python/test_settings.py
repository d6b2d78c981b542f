"""Where a model runs: what the server's settings state, and what the model does."""

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.config import ModelConfig, read_text
from repoagent.errors import InternalError, InvalidArgumentError, UnsupportedError
from repoagent.serving.backends.python.settings import PythonSettings, program_for, runs_in_process_of_its_own


def config(**parameters: str) -> ModelConfig:
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]
    return read_text('name: "m" backend: "python" ' + " ".join(lines))


@pytest.mark.parametrize(
    ("server", "model", "own_process"),
    [
        ({}, {}, False),
        ({}, {"EXECUTION": "process"}, True),
        ({"execution": "process"}, {}, True),
        ({"execution": "process"}, {"EXECUTION": "in-process"}, False),
        ({"execution": "process-only"}, {}, True),
        ({"execution": "process-only"}, {"EXECUTION": "process"}, True),
        ({}, {"EXECUTION_ENV_PATH": "/venv"}, True),
        ({}, {"EXECUTION_ENV_PATH": ""}, False),
    ],
)
def test_a_model_says_where_it_runs_and_else_the_server(
    server: dict[str, str], model: dict[str, str], own_process: bool
) -> None:
    assert runs_in_process_of_its_own(config(**model), PythonSettings.of(server)) is own_process


@pytest.mark.parametrize(
    ("server", "model", "text"),
    [
        ({"execution": "fork"}, {}, "python,execution must be 'process', 'in-process' or 'process-only', not 'fork'"),
        ({"execution": "process-only"}, {"EXECUTION": "in-process"}, "only in processes of their own"),
        ({}, {"EXECUTION": "yes"}, "parameter 'EXECUTION' of model 'm' must be 'process' or 'in-process', not 'yes'"),
        ({"stub-timeout-seconds": "0"}, {}, "stub-timeout-seconds must be a positive number, not '0'"),
        ({"environments": "venvs"}, {}, "python,environments must be absolute paths separated by ':', not 'venvs'"),
        ({"stub-timeout-seconds": "soon"}, {}, "stub-timeout-seconds must be a positive number, not 'soon'"),
        ({}, {"EXECUTION": "in-process", "EXECUTION_ENV_PATH": "/venv"}, "which the server's own process cannot use"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(server: dict[str, str], model: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        runs_in_process_of_its_own(config(**model), PythonSettings.of(server))
    assert text in str(raised.value)


@pytest.mark.parametrize("character", [*";|&$`<>()[]{}\\\"'*?~#!", " ", "\n"], ids=repr)
def test_a_name_that_tritons_processes_cannot_have_is_refused_for_a_process(character: str) -> None:
    """P24: as in Triton."""
    model = config()
    model.name = f"m{character}"
    assert not runs_in_process_of_its_own(model, PythonSettings())
    with pytest.raises(InvalidArgumentError, match="contains invalid characters: model 'm"):
        runs_in_process_of_its_own(model, PythonSettings(own_process=True))


def test_an_environment_may_lie_with_the_model_and_must_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    python = tmp_path / "env" / "bin" / "python"
    python.symlink_to(sys.executable)
    program = program_for(config(EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/env"), tmp_path)
    assert program.command[0] == str(python)
    assert program.environment["PATH"].startswith(f"{python.parent}:")
    assert program_for(config(EXECUTION_ENV_PATH=str(python)), tmp_path).command[0] == str(python)
    assert program_for(config(EXECUTION_ENV_PATH=""), tmp_path).command[0] == sys.executable
    with pytest.raises(InvalidArgumentError, match="no interpreter can be run"):
        program_for(config(EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY"), tmp_path)
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz"):
        pass
    with pytest.raises(UnsupportedError, match=r"is an archive \(env.tar.gz\): unpack it"):
        program_for(config(EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/env.tar.gz"), tmp_path)


def test_a_program_without_an_interpreter_needs_one_to_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(InvalidArgumentError, match="name one with the parameter EXECUTION_ENV_PATH"):
        program_for(config(EXECUTION="process"), tmp_path)


ENVIRONMENT = """
import sys
class TritonPythonModel:
    def execute(self, requests):
        import only_here
        import repoagent.errors
        seen = {"prefix": sys.prefix, "where": only_here.WHERE, "path": "/".join(sys.path)}
        return [pb_utils.InferenceResponse([], parameters=seen)]
"""


@pytest.mark.slow
def test_a_model_runs_in_an_environment_of_its_own(run_model: Any, tmp_path: Path) -> None:
    """One that has NumPy and a package of its own, and knows nothing of this project."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    for name in ("numpy", "numpy.libs"):
        found = Path(np.__file__).parents[1] / name
        if found.exists():
            (packages / name).symlink_to(found)
    (packages / "only_here.py").write_text("WHERE = 'in the environment'\n")
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}'
    model = run_model(ENVIRONMENT, f'name: "m" backend: "python" {parameter}', environments=str(tmp_path))
    seen = model.ask([1.0])[0].responses[0].parameters
    assert Path(seen["prefix"]) == environment
    assert seen["where"] == "in the environment"


@pytest.mark.slow
def test_an_interpreter_without_numpy_says_so(run_model: Any, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}'
    with pytest.raises(InternalError, match=r"ended with exit status 1.*No module named 'numpy'"):
        run_model(ENVIRONMENT, f'name: "m" backend: "python" {parameter}', environments=str(tmp_path))
