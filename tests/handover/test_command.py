"""The words of a command; its processes are in tests/cli/test_run.py."""

import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from repoagent.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from repoagent.handover import command
from repoagent.handover.command import check_ready_url, fill_in, stable_link, wait_until_ready

VALUES = {"model": "/m/{version}", "version": None, "name": "-rf", "repository": "/m"}


def test_places_are_filled_once_and_other_braces_stay() -> None:
    words = ["--model={model}", "{repository}/{x}", "${HOME}", "a{name}"]
    assert fill_in(words, VALUES) == ["--model=/m/{version}", "/m/{x}", "${HOME}", "a-rf"]


@pytest.mark.parametrize(
    ("word", "text"), [("{version}", "no version directory"), ("{name}", "would take for a flag"), ("{name}x", "flag")]
)
def test_a_place_that_cannot_be_filled_is_refused(word: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        fill_in([word], VALUES)


@pytest.mark.parametrize(
    "words",
    [
        ["sh", "-c", "{name}"],
        ["bash", "-lc", "ls{name}"],
        ["sh", "-ce", "ls{name}"],
        ["perl", "-e", "{name}x"],
        ["x", "ls {name}"],
        ["x", '"{name}"'],
        ["x", "$({name})"],
    ],
)
@pytest.mark.parametrize("name", ["a;b", "a b", "$(id)", "a'b", 'a"b', "a\nb", "\u00e4"])
def test_a_name_does_not_become_part_of_a_script(words: list[str], name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="could change the script"):
        fill_in(words, {"name": name})
    assert fill_in(words, {"name": "a-b_1.0"}) == [word.replace("{name}", "a-b_1.0") for word in words]


def test_a_name_in_a_script_does_not_become_a_flag() -> None:
    with pytest.raises(InvalidArgumentError, match="could change the script"):
        fill_in(["sh", "-c", "rm {name}"], VALUES)


def test_a_name_is_an_argument_whatever_it_has() -> None:
    words = ["sh", "-c", 'serve "$1"', "sh", "{name}", "--name={name}", "{name}/x"]
    assert fill_in(words, {"name": "a b"})[4:] == ["a b", "--name=a b", "a b/x"]


def test_a_link_that_another_process_made_meanwhile_is_not_removed(tmp_path: Path) -> None:
    at, place = tmp_path / "at", tmp_path / "1-0123456789abcdef" / "1" / "m"
    with stable_link(at, place):
        assert at.readlink() == place
        at.unlink()
        at.symlink_to("/elsewhere")
    assert at.readlink() == Path("/elsewhere")


def test_a_link_of_a_killed_process_is_replaced_while_its_files_are_gone(tmp_path: Path) -> None:
    at, dead = tmp_path / "at", tmp_path / "1-0123456789abcdef" / "1" / "m"
    at.symlink_to(dead)
    with stable_link(at, tmp_path / "new"):
        assert at.readlink() == tmp_path / "new"
    dead.parents[1].mkdir()  # with --remove-when-ready only that of the process is left
    at.symlink_to(dead)
    with pytest.raises(AlreadyExistsError), stable_link(at, tmp_path / "new"):
        pass
    assert at.readlink() == dead


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """As any user can lock a directory that it may read, such as /tmp."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


def test_a_lock_of_another_process_does_not_hold_up_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_LOCK_SECONDS", 0)
    with (
        locked(tmp_path),
        pytest.raises(UnavailableError, match="has locked"),
        stable_link(tmp_path / "at", tmp_path / "m"),
    ):
        pass


@pytest.mark.timeout(30)
def test_a_lock_of_another_process_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """The plaintext goes after the link."""
    link = stable_link(tmp_path / "at", tmp_path / "m")
    link.__enter__()
    with locked(tmp_path):
        link.__exit__(None, None, None)
    assert os.listdir(tmp_path) == []


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives each connection the next answer, and keeps it open; its URL, and what was asked."""
    asked: list[bytes] = []
    held = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                held.append(connection)
                asked.append(connection.recv(1000))
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        server.join()
        for connection in held:
            connection.close()


@pytest.mark.parametrize("location", ["http://[bad", "http://127.0.0.1:1/", "ftp://x/", "/ok"])
def test_a_redirect_is_not_followed_and_the_server_is_asked_again(location: str) -> None:
    """One that no URL can be made of has ended the thread that asks, and the limit of time with it."""
    moved = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
    with answering(moved, b"HTTP/1.1 200 OK\r\n\r\n") as (url, asked):
        assert wait_until_ready(f"{url}/health?x=1#y", 60, threading.Event())
    assert [request.split(b"\r\n")[0] for request in asked] == [b"GET /health?x=1 HTTP/1.1"] * 2


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 2", b"HTTP/1.1 200", b"x" * 5000, b"SSH-2.0-x\r\n", b"HTTP/1.1 503 No\r\n"]
)
def test_an_answer_without_an_end_is_none(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_ANSWER_SECONDS", 0.1)
    with answering(answer, b"HTTP/1.0 204\r\n") as (url, asked):
        assert wait_until_ready(url, 60, threading.Event())
    assert len(asked) == 2


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://[::1",
        "http://a..b/",
        "http://h:x/",
        "http://h:0",
        "http://h/a b",
        "http://h/\u00e4",
    ],
)
def test_a_url_that_cannot_be_asked_is_refused_before_the_load(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected a URL"):
        check_ready_url(url)


@pytest.mark.parametrize("url", ["http://localhost:8000/health", "https://[::1]:1/", "http://h"])
def test_a_url_that_can_be_asked_is_fine(url: str) -> None:
    check_ready_url(url)
