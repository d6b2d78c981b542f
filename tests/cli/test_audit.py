"""``repoagent audit``: what it prints and how it exits."""

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from repoagent.audit.log import AuditLog
from repoagent.cli.audit import audit


@pytest.fixture
def file(tmp_path: Path) -> Path:
    log = AuditLog(tmp_path / "audit.log", sync=False)
    for number in range(4):
        log.record("load", "loaded", {"number": number})
    log.close()
    return tmp_path / "audit.log"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(audit, [str(argument) for argument in arguments])


def test_the_head_is_what_sha256sum_prints_of_the_last_line(file: Path) -> None:
    made = subprocess.run(f"tail -n 1 '{file}' | sha256sum", shell=True, check=True, capture_output=True, text=True)
    assert run("head", file).output == f"4 {made.stdout.split()[0]}\n"
    assert run("verify", file).output == f"ok: lines 1 to 4, head {made.stdout.split()[0]}\n"


def test_a_broken_line_is_printed_and_the_status_is_1(file: Path) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0], lines[2], lines[3]]))
    result = run("verify", file)
    assert result.exit_code == 1
    assert result.output.startswith(f"{file}:2: it has the number 3, and 2 should come here")


def test_lines_missing_at_the_end_exit_1_with_a_head_and_0_without(file: Path) -> None:
    head = run("head", file).output.split()[1]
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert run("verify", file).exit_code == 0
    result = run("verify", file, "--head", head)
    assert result.exit_code == 1
    assert f"no line has the head {head}" in result.output


def test_a_torn_line_is_reported_and_the_status_is_0(file: Path) -> None:
    with file.open("a") as log:
        log.write('{"event"')
    result = run("verify", file)
    assert result.exit_code == 0
    assert "was cut short after 8 bytes" in result.output
    assert run("head", file).output.startswith("4 ")


@pytest.mark.parametrize("text", ["hello\n", "\n", "x"])
def test_what_is_not_a_log_has_no_head(tmp_path: Path, text: str) -> None:
    (tmp_path / "other").write_text(text)
    assert run("head", tmp_path / "other").exit_code == 1


def test_an_empty_file_is_sound(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert run("verify", tmp_path / "empty").output == "ok: no lines\n"


@pytest.mark.parametrize("head", ["abc", "A" * 64, "z" * 64])
def test_a_head_that_is_not_a_digest_is_a_wrong_command_line(file: Path, head: str) -> None:
    assert run("verify", file, "--head", head).exit_code == 2


def test_a_key_that_is_too_short_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDIT_KEY", "short")
    result = run("verify", file, "--key", "env:AUDIT_KEY")
    assert result.exit_code == 1
    assert "at least 16" in str(result.exception)
