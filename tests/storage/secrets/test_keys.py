import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repoagent.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from repoagent.storage.secrets.keys import builtin_providers, resolve_key

_SECRET = "hush-AGE-SECRET-KEY-1"
_ALL = builtin_providers(commands=True)


def _command(code: str) -> str:
    return "exec:" + shlex.join([sys.executable, "-c", code])


def test_env_gives_the_bytes_of_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", _SECRET)
    assert resolve_key("env:MODEL_KEY", _ALL) == _SECRET.encode()
    monkeypatch.delenv("MODEL_KEY")
    with pytest.raises(NotFoundError, match="env:MODEL_KEY"):
        resolve_key("env:MODEL_KEY", _ALL)


@pytest.mark.parametrize("prefix", ["file:", "file://"])
def test_file_gives_the_content_as_it_is(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "key").write_bytes(b"\x00binary\n")
    assert resolve_key(f"{prefix}{tmp_path}/key", _ALL) == b"\x00binary\n"


def test_file_may_be_a_link_as_mounted_secrets_are(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"k")
    (tmp_path / "key").symlink_to("data")
    assert resolve_key(f"file:{tmp_path}/key", _ALL) == b"k"


def test_a_file_that_cannot_be_a_key_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "big").write_bytes(b"x" * ((1 << 20) + 1))
    (tmp_path / "directory").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("absent", "pipe", "big", "directory", "loop", "big/below"):
        with pytest.raises(NotFoundError) as caught:
            resolve_key(f"file:{tmp_path}/{name}", _ALL)
        expected = f"there is no usable file for the key reference file:{tmp_path}/{name}; the log has the reason"
        assert str(caught.value) == expected


def test_exec_gives_what_the_program_prints_without_a_shell() -> None:
    assert resolve_key(_command("import sys; print(sys.argv[1:])") + " '$HOME;' a", _ALL) == b"['$HOME;', 'a']\n"


def test_exec_that_fails_names_the_program_only() -> None:
    with pytest.raises(InternalError, match="status 3") as caught:
        resolve_key(_command(f"import sys; print('{_SECRET}'); sys.exit(3)"), _ALL)
    assert _SECRET not in str(caught.value)
    with pytest.raises(NotFoundError, match="/no/such/program"):
        resolve_key("exec:/no/such/program --token hush", _ALL)


def test_exec_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repoagent.storage.secrets.keys._EXEC_SECONDS", 0.2)
    with pytest.raises(UnavailableError, match="did not end"):
        resolve_key(_command("import sys; sys.stdin.close(); import threading; threading.Event().wait()"), _ALL)


def test_exec_that_writes_without_end_is_killed() -> None:
    """Once it has written more than a key may have: what it writes is held in memory."""
    largest = builtin_providers(commands=True, largest=1000)
    assert len(resolve_key("exec:head -c 1000 /dev/zero", largest)) == 1000
    for command in ("exec:head -c 1001 /dev/zero", "exec:yes"):
        with pytest.raises(InvalidArgumentError, match="wrote more than 1000 bytes"):
            resolve_key(command, largest)
    with pytest.raises(InvalidArgumentError, match="wrote more than 1048576 bytes"):
        resolve_key("exec:yes", _ALL)


def test_exec_is_killed_when_nobody_waits_any_more() -> None:
    with pytest.raises(CancelledError, match="was killed because the load was cancelled"):
        resolve_key("exec:sleep 600", _ALL, lambda: True)


@pytest.mark.parametrize(
    "value",
    [_SECRET, f"unknown:{_SECRET}", f"{_SECRET}:x", f"env:{_SECRET}", f"env:{_SECRET}=", f"file:{_SECRET}",
     f"file://host/{_SECRET}", f"exec:'{_SECRET}", f"ENV:{_SECRET}", "", "env:", f" env:{_SECRET}"],
)  # fmt: skip
def test_what_is_no_reference_is_refused_and_never_repeated(value: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        resolve_key(value, _ALL)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hush" not in str(error)
        error = error.__cause__


def _raising(error: Exception) -> Callable[[str], bytes]:
    def provide(uri: str) -> bytes:
        raise error

    return provide


def test_a_plug_ins_scheme_gets_the_whole_reference() -> None:
    assert resolve_key("kbs:///a/b/c", {"kbs": lambda uri: uri.encode()}) == b"kbs:///a/b/c"


def test_what_a_plug_in_raises_is_hidden_unless_it_is_ours() -> None:
    with pytest.raises(UnavailableError, match="kbs: failed with ValueError") as caught:
        resolve_key("kbs:x", {"kbs": _raising(ValueError(_SECRET))})
    assert _SECRET not in str(caught.value)
    with pytest.raises(NotFoundError, match="no such key"):
        resolve_key("kbs:x", {"kbs": _raising(NotFoundError("no such key"))})


def test_exec_runs_nothing_unless_the_operator_allows_it(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    with pytest.raises(InvalidArgumentError, match="--allow-exec-keys"):
        resolve_key(f"exec:touch {witness}", builtin_providers())
    assert not witness.exists()
