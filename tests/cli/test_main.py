"""The program itself: which commands it has, and what it says of one that it has not."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

from repoagent.cli.main import PluginGroup, program

#: The columns that click leaves beside the longest name of a command, on a terminal of 80.
_ROOM: Final = 64


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_it_prints_its_version(flag: str) -> None:
    """U12: there was none."""
    result = CliRunner().invoke(program, [flag])
    assert (result.exit_code, result.output) == (0, f"repoagent {version('repoagent-core')}\n")


def test_a_command_that_is_nearly_right_is_suggested() -> None:
    result = CliRunner().invoke(program, ["srve", "--model-repository=/models"])
    assert result.exit_code == 2
    assert "Error: there is no command 'srve'; did you mean 'serve'?" in result.output


def test_a_command_like_no_other_is_refused_without_a_guess() -> None:
    result = CliRunner().invoke(program, ["xyzzy"])
    assert result.exit_code == 2
    assert result.output.endswith("Error: there is no command 'xyzzy'\n")


def test_a_command_whose_package_is_missing_is_suggested_and_says_what_to_install() -> None:
    group = PluginGroup("repoagent")
    group.__dict__["_specs"] = {}  # as without any package but the core
    assert "did you mean 'serve'?" in CliRunner().invoke(group, ["srve"]).output
    assert (
        "'serve' comes with another package; from a checkout: pip install ./server_stub"
        in CliRunner().invoke(group, ["serve"]).output
    )


def test_the_collector_of_garbage_works_while_a_command_runs() -> None:
    assert CliRunner().invoke(program, ["version"]).exit_code == 0
    assert gc.isenabled()


@pytest.mark.slow
def test_output_onto_a_full_disk_is_one_line_of_complaint() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "repoagent", "version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "repoagent: [Errno 28] No space left on device\n")


def _groups(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Group]]:
    """Every command with commands of its own, and what a user types for it."""
    if not isinstance(command, click.Group):
        return
    yield path, command
    context = click.Context(command)
    for name in command.list_commands(context):
        if found := command.get_command(context, name):
            yield from _groups(found, (*path, name))


def test_every_list_of_commands_has_whole_sentences() -> None:
    cut = {
        " ".join((*path, name)): found.get_short_help_str(_ROOM)
        for path, group in _groups(program)
        if path  # the program itself prints what the commands were registered with
        for name in group.list_commands(click.Context(group))
        if (found := group.get_command(click.Context(group), name)) and found.get_short_help_str(_ROOM).endswith("...")
    }
    assert cut == {}
