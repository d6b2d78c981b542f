"""``repoagent keygen``, side by side with ``age-keygen``."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from repoagent_decrypt.age.keys import parse_identities

Run = Callable[..., Result]


@pytest.mark.parametrize("option", [[], ["--pq"]])
def test_the_identity_goes_to_a_private_file_and_the_recipient_is_shown(
    option: list[str], tmp_path: Path, run: Run
) -> None:
    path = tmp_path / "key.txt"
    result = run("keygen", "-o", path, *option)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(parse_identities(path.read_bytes(), "x").native) == 1
    assert "SECRET" not in result.output
    recipient = run("keygen", "-y", path).output.strip()
    assert result.output == f"Public key: {recipient}\n"
    assert f"# public key: {recipient}\n" in path.read_text()


def test_without_a_file_it_is_printed(run: Run) -> None:
    text = run("keygen").stdout
    assert run("keygen", "-y", "-", input=text).output.strip() in text


def test_a_key_is_never_overwritten_by_mistake(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "key.txt"
    run("keygen", "-o", path)
    before = path.read_bytes()
    assert "lose the key" in run("keygen", "-o", path, status=1).output
    assert path.read_bytes() == before
    run("keygen", "-o", path, "--force")
    assert path.read_bytes() != before
    assert [each.name for each in tmp_path.iterdir()] == ["key.txt"]


@pytest.mark.skipif(shutil.which("age-keygen") is None, reason="the program age-keygen is not installed")
def test_age_keygen_and_we_read_each_others_keys(tmp_path: Path, run: Run) -> None:
    run("keygen", "-o", tmp_path / "ours")
    theirs = subprocess.run(["age-keygen", "-y", tmp_path / "ours"], capture_output=True, text=True, check=True)
    assert theirs.stdout == run("keygen", "-y", tmp_path / "ours").output
    made = subprocess.run(["age-keygen", "-o", tmp_path / "made"], capture_output=True, text=True, check=True)
    assert run("keygen", "-y", tmp_path / "made").output.strip() in made.stderr
