"""``repoagent doctor`` over machines that lack something."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from repoagent.beneath import jail
from repoagent.cli import doctor
from repoagent.cli.main import program
from repoagent.engines.probe import Findings, Gpu

PROBE = "repoagent.engines.probe.probe"


def _found(monkeypatch: pytest.MonkeyPatch, findings: Findings | None = None) -> dict[str, Any]:
    """What it prints, by subject."""
    monkeypatch.setattr(PROBE, lambda: findings or Findings(problem="TensorRT is not installed"))
    done = CliRunner().invoke(program, ["doctor", "--json"])
    assert done.exit_code == 0, done.output
    return {one["subject"]: one for one in json.loads(done.output)}


def test_a_gap_comes_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _found(monkeypatch)
    assert found["TensorRT"] == {
        "subject": "TensorRT",
        "found": "not installed, not usable",
        "remedy": "TensorRT is not installed",
    }
    assert "CPUExecutionProvider" in found["ONNX Runtime providers"]["found"]
    assert found["numpy"]["remedy"] == ""


def test_gpus_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(0, "NVIDIA Test", (8, 9), 16 << 30)
    found = _found(monkeypatch, Findings("tensorrt_rtx", "1.7.1.116", (gpu,)))
    assert found["TensorRT"]["found"] == "tensorrt_rtx 1.7.1.116, usable"
    assert found["GPU 0"]["found"] == "NVIDIA Test, 16384 MiB, compute capability 8.9"


def test_a_kernel_without_a_jail_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail, "problem", lambda: "the kernel has no Landlock")
    found = _found(monkeypatch)["jail for foreign code"]
    assert found["found"] == "the kernel has no Landlock"
    assert found["remedy"] == "models that are code (pickles) are not converted"
    monkeypatch.setattr(jail, "problem", lambda: "")
    monkeypatch.setattr(jail, "landlock_version", lambda: 7)
    assert _found(monkeypatch)["jail for foreign code"]["found"] == "Landlock 7 and filters of system calls"


def test_what_keeps_workers_from_the_keeper_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(version: int, user: int) -> tuple[str, str]:
        monkeypatch.setattr(jail, "landlock_version", lambda: version)
        monkeypatch.setattr("os.geteuid", lambda: user)
        one = _found(monkeypatch)["workers of --processes"]
        return one["found"], one["remedy"]

    text, remedy = found(7, 0)
    assert "Landlock 7" in text
    assert "signals" in text
    assert "--worker-user" in text
    assert not remedy
    assert "signals" not in found(3, 7)[0]
    assert found(0, 0)[1] == "--worker-user keeps them from it"
    assert found(0, 7)[1] == "start as root, with --worker-user"


def test_swap_and_a_small_tmpfs_are_gaps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "swaps").write_text("Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n")
    monkeypatch.setattr(doctor, "_PROC", tmp_path)
    monkeypatch.setattr(doctor, "_LITTLE_SHARED_MEMORY", 1 << 62)
    found = _found(monkeypatch)
    assert found["swap"]["found"] == "on: /dev/sda2"
    assert "--allow-swap" in found["swap"]["remedy"]
    assert "--shm-size" in found["tmpfs"]["remedy"]
    monkeypatch.setattr(doctor, "_SHARED_MEMORY", tmp_path / "missing")
    assert "--confidential-directory" in _found(monkeypatch)["tmpfs"]["remedy"]


def test_extras_name_what_they_lack_and_never_a_bare_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "")
    found = _found(monkeypatch)
    extra = found["extra s3"]
    assert extra["found"] == "lacks s3fs"
    assert extra["remedy"] == "if you need it, from a checkout: pip install '.[s3]'"


def test_a_check_that_fails_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PROC", Path("/nonexistent"))
    found = _found(monkeypatch)
    assert found["swap"]["found"].startswith("cannot be determined: UnavailableError")
    assert "open files" in found


def test_the_words_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROBE, lambda: Findings(problem="install NVIDIA's driver"))
    lines = CliRunner().invoke(program, ["doctor"]).output.splitlines()
    place = next(number for number, line in enumerate(lines) if "TensorRT" in line)
    assert lines[place].startswith("gap  TensorRT")
    assert lines[place + 1].endswith("-> install NVIDIA's driver")
