"""The README keeps up with the code."""

from pathlib import Path

import pytest
from click import Command
from repoagent_checksum.checksum_options import PARAMETERS
from repoagent_checksum.cli import checksum
from repoagent_checksum.digest_file import ALGORITHMS, STANDARD_NAMES

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.mark.parametrize("parameter", [*PARAMETERS, "DIGEST:path", *(f"{name}:path" for name in ALGORITHMS)])
def test_every_parameter_is_documented(parameter: str) -> None:
    assert f"`{parameter}`" in README


@pytest.mark.parametrize("name", STANDARD_NAMES)
def test_every_standard_digest_file_is_documented(name: str) -> None:
    assert f"`{name}`" in README


@pytest.mark.parametrize("command", checksum.commands.values(), ids=lambda command: str(command.name))
def test_every_option_of_the_command_line_is_documented(command: Command) -> None:
    assert f"repoagent checksum {command.name}" in README
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert f"`{parameter.opts[0]}`" in README
