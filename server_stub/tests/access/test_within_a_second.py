"""How long a key that is gone from the file can still be good: measured in the pauses of the thread that follows the
file, which end when the test lets them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import pytest
from repoagent_server.access import NotAuthenticatedError
from repoagent_server.access.access_file import AccessFile
from repoagent_server.access.credentials import given

from server_stub.tests.access.conftest import PATIENCE, Issuer, client, replace_file

LONGEST: Final = 0.5
"""Seconds of pauses: the other half of the second is for reading the file."""

Change = Callable[[Path], None]


class Pauses:
    """Stands in the place of the wait between two looks."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[float] = SimpleQueue()
        self._over: SimpleQueue[bool] = SimpleQueue()

    def __call__(self, seconds: float) -> bool:
        """What the thread that follows the file calls."""
        self._asked.put(seconds)
        return self._over.get()

    def reached(self) -> float:
        """How long the pause is that has begun."""
        return self._asked.get(timeout=PATIENCE)

    def over(self, *, for_good: bool = False) -> None:
        """End the pause that has begun."""
        self._over.put(for_good)


@contextmanager
def _followed(path: Path) -> Iterator[tuple[AccessFile, Pauses]]:
    pauses = Pauses()
    with AccessFile(path, pause=pauses) as file:
        try:
            yield file, pauses
        finally:
            pauses.over(for_good=True)


def _is_good(file: AccessFile, key: str) -> bool:
    try:
        file.access.caller(given([f"Bearer {key}".encode()], []))
    except NotAuthenticatedError:
        return False
    return True


def _seconds_until_refused(file: AccessFile, pauses: Pauses, key: str, change: Callable[[], None]) -> float:
    """The pauses from ``change``, which comes when one has just begun, to the look that refuses ``key``."""
    waited = pauses.reached()
    assert _is_good(file, key)
    change()
    pauses.over()
    while True:
        pause = pauses.reached()
        if not _is_good(file, key):
            return waited
        waited += pause
        assert waited < 2 * LONGEST, "the key is good for too long"
        pauses.over()


def _in_place(path: Path) -> None:
    path.write_text(client("new"))


def _by_renaming(path: Path) -> None:
    replace_file(path, client("new"))


def _by_a_link(path: Path) -> None:
    other = path.with_name("other.toml")
    other.write_text(client("new"))
    link = path.with_name("link")
    link.symlink_to(other.name)
    link.rename(path)


@pytest.mark.parametrize("change", [_in_place, _by_renaming, _by_a_link])
def test_a_key_that_is_gone_is_refused_after_two_pauses(path: Path, change: Change) -> None:
    path.write_text(client("old"))
    with _followed(path) as (file, pauses):
        assert _seconds_until_refused(file, pauses, "old-key", lambda: change(path)) <= LONGEST
        assert _is_good(file, "new-key")


def test_a_token_whose_signer_is_gone_is_refused_after_two_pauses(path: Path, issuer: Issuer) -> None:
    path.write_text("\n".join([issuer.table(), client("people", issuer="corp")]))
    with _followed(path) as (file, pauses):
        successor = Issuer(issuer.folder)
        assert _seconds_until_refused(file, pauses, issuer.token(), successor.publish) <= LONGEST
        assert _is_good(file, successor.token())


def test_a_file_that_is_still_being_written_is_not_read_and_the_time_counts_from_its_end(path: Path) -> None:
    path.write_text(client("old"))
    whole = client("one") + client("new")
    with _followed(path) as (file, pauses):
        for text in ("", client("one")):
            pauses.reached()
            path.write_text(text)
            pauses.over()
        waited = _seconds_until_refused(file, pauses, "old-key", lambda: _write(path, whole))
        assert waited <= LONGEST
        assert _is_good(file, "new-key")


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def test_a_fault_in_between_costs_no_time(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text(client("old"))
    with _followed(path) as (file, pauses):
        broken: dict[str, Any] = {"keys": ["plain"]}
        path.write_text(client("old", **broken))
        for _ in range(2):
            pauses.reached()
            pauses.over()
        assert _seconds_until_refused(file, pauses, "old-key", lambda: _by_renaming(path)) <= LONGEST
        assert caplog.text.count("cannot be used") == 1
