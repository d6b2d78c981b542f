"""The program itself: which commands it has, and what it says of one that it has not."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from repoagent.cli.main import PluginGroup, program


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
