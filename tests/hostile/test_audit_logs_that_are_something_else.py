"""A file that is no log, a log with two names, a line that nobody wrote: each is refused, and nothing is lost."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from repoagent.audit.lines import canonical
from repoagent.audit.log import AuditLog
from repoagent.audit.verification import BrokenChain, verify
from repoagent.errors import InvalidArgumentError, UnavailableError

KEY: Final = b"k" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.mark.parametrize("text", [b"notes of somebody, without a line feed", b'{"events":1}', b"\0\0notes"])
def test_a_file_of_somebody_else_without_a_line_feed_is_left_as_it_is(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    with pytest.raises(InvalidArgumentError, match="does not end with a line of an audit log"):
        AuditLog(path)
    assert path.read_bytes() == text


@pytest.mark.parametrize("torn", [b"{", b'{"event":"server","prev"', b"\0\0\0\0"])
def test_the_beginning_of_the_very_first_line_is_taken_up(path: Path, torn: bytes) -> None:
    path.write_bytes(torn)
    AuditLog(path).close()
    assert verify([path]).head.seq == 1


@pytest.mark.parametrize("name_again", [os.symlink, os.link])
def test_a_log_under_two_names_has_one_writer(path: Path, name_again: Callable[[Path, Path], None]) -> None:
    first = AuditLog(path)
    first.record("server", "started", {})
    other = path.with_name("other.log")
    name_again(path, other)
    with pytest.raises(UnavailableError, match="in use by another server"):
        AuditLog(other)
    first.record("server", "stopped", {})
    first.close()
    assert verify([path]).head.seq == 2
    AuditLog(other).close()


def test_a_log_that_rotates_is_still_the_only_writer(path: Path) -> None:
    first = AuditLog(path, largest=1)
    first.record("server", "started", {})
    first.record("server", "stopped", {})
    other = path.with_name("other.log")
    other.symlink_to(path)
    with pytest.raises(UnavailableError, match="in use by another server"):
        AuditLog(other)
    first.close()


@pytest.mark.parametrize("mac", ["\ud800", "\xe9" * 64, ""])
def test_a_forged_hmac_that_is_not_text_is_a_broken_line(path: Path, mac: str) -> None:
    path.write_bytes(canonical({"v": 1, "seq": 1, "prev": "0" * 64, "event": "load", "mac": mac}) + b"\n")
    with pytest.raises(BrokenChain, match="HMAC"):
        verify([path], key=KEY)


def test_a_file_in_the_way_of_a_rotation_is_neither_taken_nor_removed(path: Path) -> None:
    other = path.with_name("audit.log.new")
    other.write_text("notes of somebody\n")
    log = AuditLog(path, largest=1)
    log.record("server", "started", {})
    log.record("server", "stopped", {})
    log.close()
    assert other.read_text() == "notes of somebody\n"
    assert verify([path]).head.seq == 2


def test_the_log_of_another_server_is_not_removed_by_a_rotation(path: Path) -> None:
    other = AuditLog(path.with_name("audit.log.new"))
    log = AuditLog(path, largest=1)
    log.record("server", "started", {})
    log.record("server", "stopped", {})
    log.close()
    other.record("server", "started", {})
    other.close()
    assert verify([path.with_name("audit.log.new")]).head.seq == 1
    assert verify([path]).head.seq == 2
