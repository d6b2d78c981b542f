"""The unit for systemd: systemd finds no fault in it, and the server takes its flags."""

import configparser
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def unit(deploy: Path) -> Path:
    return deploy / "systemd" / "repoagent.service"


def _service(unit: Path) -> configparser.SectionProxy:
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read(unit)
    return read["Service"]


def test_the_server_takes_its_flags_and_stops_in_time(
    unit: Path, flags_of: Callable[[list[str]], dict[str, Any]], tmp_path: Path
) -> None:
    """U12: a page named a unit, and there was none."""
    service = _service(unit)
    program, command, *flags = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("repoagent", "serve")
    config = tmp_path / "serve.toml"
    config.write_text('model-repository = ["/srv/models"]')
    flags = [f"--config-file={config}" if flag.startswith("--config-file=") else flag for flag in flags]
    options = flags_of(["tritonserver", *flags])
    assert options["exit_timeout_secs"] < int(service["TimeoutStopSec"])
    assert options["cache_directory"] == Path("/var/cache") / service["CacheDirectory"]


def test_systemd_finds_no_fault(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/repoagent/current/bin/repoagent", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])
