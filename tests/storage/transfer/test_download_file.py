import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from repoagent.errors import CancelledError, InvalidArgumentError, UnavailableError
from repoagent.storage.transfer.download_file import download_file
from repoagent.storage.transfer.partial_file import CHUNK, PartialFile
from repoagent.storage.transfer.streams import SEGMENT, DownloadContext, RemoteFile, web_opener
from repoagent.web import Hosts, WebClient
from tests.file_server import FileServer, Request
from tests.storage.digests import digest_of

CONTENT = os.urandom(3 * SEGMENT + 12345)
NO_LIMIT = 1 << 40


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr("repoagent.storage.transfer.download_file._FIRST_PAUSE", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with FileServer({"/w": CONTENT}) as server:
        yield server


@pytest.fixture
def into(tmp_path: Path) -> Iterator[PartialFile]:
    unfinished = PartialFile(tmp_path / "part", "w", provable=False)
    yield unfinished
    unfinished.close()


def remote(server: FileServer, **known: object) -> RemoteFile:
    client = WebClient(Hosts(["127.0.0.1"]), timeout=60)
    return RemoteFile("w", f"{server.url}/w", web_opener(client, f"{server.url}/w"), **known)  # type: ignore[arg-type]


def reopened(into: PartialFile) -> PartialFile:
    return PartialFile(into.path, "w", provable=False)


def test_a_file_comes_in_ranges_where_the_server_takes_them(server: FileServer, into: PartialFile) -> None:
    counted: list[int] = []
    name, size = download_file(remote(server), into, DownloadContext(4, count=counted.append), most=NO_LIMIT)
    assert (name, size) == (hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
    assert into.path.read_bytes() == CONTENT
    assert {asked for _, asked in server.requests} == {
        f"bytes={start}-{min(start + SEGMENT, len(CONTENT) if start else SEGMENT) - 1}"
        for start in range(0, len(CONTENT), SEGMENT)
    }
    assert server.sent == sum(counted) == len(CONTENT)


def test_a_file_comes_whole_where_the_server_takes_no_ranges(server: FileServer, into: PartialFile) -> None:
    server.ranges = False
    assert download_file(remote(server), into, DownloadContext(4), most=NO_LIMIT)[1] == len(CONTENT)
    assert into.path.read_bytes() == CONTENT
    assert len(server.requests) == 1
    assert server.sent == len(CONTENT)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, SEGMENT, SEGMENT + 1])
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_files_of_every_size_come_whole(
    server: FileServer, into: PartialFile, size: int, ranges: bool, known: bool
) -> None:
    server.ranges = ranges
    server.files["/w"] = CONTENT[:size]
    file = remote(server, size=size) if known else remote(server)
    assert download_file(file, into, DownloadContext(2), most=NO_LIMIT) == (
        hashlib.sha256(CONTENT[:size]).hexdigest(),
        size,
    )
    assert into.path.read_bytes() == CONTENT[:size]


@pytest.mark.slow
@pytest.mark.parametrize("ranges", [True, False])
def test_a_dropped_connection_is_made_again(server: FileServer, into: PartialFile, ranges: bool) -> None:
    server.ranges = ranges
    dropped: list[int] = []

    def drop(request: Request, position: int) -> bool:
        if position >= 2 * SEGMENT + 3 * CHUNK and len(dropped) < 3:
            dropped.append(position)
            return False
        return True

    server.before_piece = drop
    assert (
        download_file(remote(server), into, DownloadContext(2), most=NO_LIMIT)[0] == hashlib.sha256(CONTENT).hexdigest()
    )
    assert len(dropped) == 3
    assert into.path.read_bytes() == CONTENT
    if ranges:  # only the chunk that was not complete came again
        assert server.sent <= len(CONTENT) + 3 * CHUNK


def test_a_server_that_always_breaks_off_is_given_up(server: FileServer, into: PartialFile) -> None:
    server.before_piece = lambda _request, position: position < SEGMENT + CHUNK // 2
    with pytest.raises(UnavailableError, match=r"cannot read http://127\.0\.0\.1:\d+/w \(attempt 5\): OSError"):
        download_file(remote(server), into, DownloadContext(1), most=NO_LIMIT)


def test_what_has_arrived_is_kept_and_continued(server: FileServer, into: PartialFile) -> None:
    server.before_piece = lambda _request, position: position < 2 * SEGMENT
    with pytest.raises(UnavailableError):
        download_file(remote(server), into, DownloadContext(1), most=NO_LIMIT)
    into.close()
    server.before_piece, server.sent = None, 0
    again = reopened(into)
    assert (
        download_file(remote(server), again, DownloadContext(4), most=NO_LIMIT)[0]
        == hashlib.sha256(CONTENT).hexdigest()
    )
    assert server.sent == len(CONTENT) - 2 * SEGMENT


@pytest.mark.slow
@pytest.mark.parametrize("complete", [False, True])
def test_what_has_arrived_of_another_content_is_not_mixed_in(
    server: FileServer, into: PartialFile, complete: bool
) -> None:
    if complete:
        download_file(remote(server), into, DownloadContext(1), most=NO_LIMIT)
    else:
        server.before_piece = lambda _request, position: position < 2 * SEGMENT
        with pytest.raises(UnavailableError):
            download_file(remote(server), into, DownloadContext(1), most=NO_LIMIT)
    into.close()
    server.before_piece = None
    server.files["/w"] = CONTENT[::-1]
    again = reopened(into)
    assert download_file(remote(server, size=len(CONTENT)), again, DownloadContext(4), most=NO_LIMIT)[0] == (
        hashlib.sha256(CONTENT[::-1]).hexdigest()
    )
    assert again.path.read_bytes() == CONTENT[::-1]


def test_a_file_that_changes_meanwhile_is_refused(server: FileServer, into: PartialFile) -> None:
    def change(request: Request, position: int) -> None:
        if position == SEGMENT:
            server.files["/w"] = CONTENT[::-1]

    server.before_piece = change
    with pytest.raises(UnavailableError, match=r"changed while it was copied \(its tag was .* load it again"):
        download_file(remote(server), into, DownloadContext(1), most=NO_LIMIT)
    assert not any(into.marks)


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_another_size_than_the_known_one_is_refused(
    server: FileServer, into: PartialFile, ranges: bool, wrong: int
) -> None:
    server.ranges = ranges
    with pytest.raises(UnavailableError, match=r"bytes, and .* were expected"):
        download_file(remote(server, size=len(CONTENT) + wrong), into, DownloadContext(2), most=NO_LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "git-sha1"])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_digest_is_demanded_and_a_wrong_one_leaves_nothing(
    server: FileServer, into: PartialFile, algorithm: str, ranges: bool
) -> None:
    server.ranges = ranges
    right = digest_of(CONTENT, algorithm)
    assert download_file(remote(server, size=len(CONTENT), digest=right), into, DownloadContext(2), most=NO_LIMIT)[
        1
    ] == len(CONTENT)
    into.clear()
    server.files["/w"] = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(InvalidArgumentError, match=rf"has the digest {algorithm}:.*; expected {right}"):
        download_file(remote(server, size=len(CONTENT), digest=right), into, DownloadContext(2), most=NO_LIMIT)
    assert not any(into.marks)


def test_damaged_parts_come_again_before_a_digest_is_called_wrong(server: FileServer, into: PartialFile) -> None:
    digest = digest_of(CONTENT)
    server.before_piece = lambda _request, position: position < 2 * SEGMENT
    with pytest.raises(UnavailableError):
        download_file(remote(server, digest=digest), into, DownloadContext(1), most=NO_LIMIT)
    os.pwrite(into.fd, b"damage", 100)
    server.before_piece = None
    assert download_file(remote(server, digest=digest), into, DownloadContext(1), most=NO_LIMIT)[1] == len(CONTENT)
    assert into.path.read_bytes() == CONTENT


def test_a_limit_ends_a_file_whose_size_nobody_knew(server: FileServer, into: PartialFile) -> None:
    for server.ranges in (True, False):
        with pytest.raises(InvalidArgumentError, match="the limit is 1000"):
            download_file(remote(server), into, DownloadContext(1), most=1000)
    assert server.sent < len(CONTENT)


def test_a_download_can_be_cancelled_and_keeps_what_came(server: FileServer, into: PartialFile) -> None:
    with pytest.raises(CancelledError):
        download_file(
            remote(server), into, DownloadContext(2, cancelled=lambda: server.sent > SEGMENT + CHUNK), most=NO_LIMIT
        )
    assert sum(into.marks) >= SEGMENT // CHUNK


@pytest.mark.parametrize(("status", "attempts"), [(500, 5), (503, 5), (429, 5), (404, 1), (403, 1), (418, 1)])
def test_only_what_may_pass_is_tried_again(server: FileServer, into: PartialFile, status: int, attempts: int) -> None:
    def refuse(request: Request) -> bool:
        request.answer(status)
        return True

    server.handlers.append(refuse)
    with pytest.raises(UnavailableError, match=rf"\(attempt {attempts}\): .*HTTP {status}"):
        download_file(remote(server), into, DownloadContext(1), most=NO_LIMIT)


def test_a_wrong_range_is_not_taken_for_the_right_one(server: FileServer, into: PartialFile) -> None:
    def shift(request: Request) -> bool:
        request.answer(206, CONTENT[5 : 5 + CHUNK], {"Content-Range": f"bytes 5-{CHUNK + 4}/{len(CONTENT)}"})
        return True

    server.handlers.append(shift)
    with pytest.raises(UnavailableError, match="answered with the range 'bytes 5-"):
        download_file(remote(server), into, DownloadContext(1), most=NO_LIMIT)
