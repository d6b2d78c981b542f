"""Where a model runs: what the server's settings state, and what the model does."""

import pytest

from repoagent.config import ModelConfig, read_text
from repoagent.errors import InvalidArgumentError
from repoagent.serving.backends.python.settings import PythonSettings, runs_in_process_of_its_own


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
    model = config()
    model.name = f"m{character}"
    assert not runs_in_process_of_its_own(model, PythonSettings())
    with pytest.raises(InvalidArgumentError, match="contains invalid characters: model 'm"):
        runs_in_process_of_its_own(model, PythonSettings(own_process=True))
