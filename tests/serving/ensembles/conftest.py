"""Python models as Triton's documentation shows them, in the server's process and in processes of their own."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

PREFIX = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n"


def writer(repository: Path, execution: str) -> Callable[..., Path]:
    def write(name: str, config: str, code: str) -> Path:
        directory = repository / name / "1"
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(PREFIX + textwrap.dedent(code))
        where = f'parameters {{ key: "EXECUTION" value {{ string_value: "{execution}" }} }}'
        (directory.parent / "config.pbtxt").write_text(f'backend: "python"\n{config}\n{where}\n')
        return directory.parent

    return write


@pytest.fixture
def write_member(repository: Path) -> Callable[..., Path]:
    """Write a model of the backend ``python`` that runs in the server's process."""
    return writer(repository, "in-process")


@pytest.fixture(params=["in-process", "process"])
def write_anywhere(repository: Path, request: pytest.FixtureRequest, forked_models: None) -> Callable[..., Path]:
    """The same, once for each place that it can run in."""
    return writer(repository, request.param)


@pytest.fixture
def write_ensemble(repository: Path) -> Callable[[str, str], None]:
    """Write an ensemble from its tensors and steps."""

    def write(name: str, config: str) -> None:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(f'platform: "ensemble"\n{config}\n')

    return write
