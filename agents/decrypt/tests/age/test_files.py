"""File to file: agreement with the streaming way, cancelling, and nothing left behind."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from repoagent_decrypt.age.files import decrypt_file, encrypt_file
from repoagent_decrypt.age.reader import decrypt_stream
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.stream import BATCH_CHUNKS, CHUNK
from repoagent_decrypt.files.errors import DamagedError
from repoagent_decrypt.files.positional import Job, Side, Sizes, Workers

BATCH = BATCH_CHUNKS * CHUNK
Crew = Callable[[int], Workers]


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, BATCH, BATCH + 1, 5 * BATCH + 17])
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("armored", [False, True])
def test_both_ways_agree_with_the_streaming_reader(
    size: int, threads: int, armored: bool, identity: X25519Identity, tmp_path: Path, crew: Crew
) -> None:
    plain, sealed, opened, streamed = (tmp_path / name for name in ("plain", "sealed", "opened", "streamed"))
    plain.write_bytes(os.urandom(size))
    sizes = encrypt_file(plain, sealed, [identity.recipient], armored=armored, workers=crew(threads))
    assert sizes == Sizes(size, sealed.stat().st_size)
    assert decrypt_file(sealed, opened, [identity], workers=crew(threads)) == Sizes(sizes.written, size)
    with sealed.open("rb") as source, streamed.open("wb") as target:
        decrypt_stream(source, target, [identity])
    assert opened.read_bytes() == streamed.read_bytes() == plain.read_bytes()
    assert opened.stat().st_mode & 0o777 == 0o600


def test_progress_reaches_the_size_and_may_cancel(identity: X25519Identity, tmp_path: Path, crew: Crew) -> None:
    plain, sealed, opened = (tmp_path / name for name in ("plain", "sealed", "opened"))
    plain.write_bytes(bytes(6 * BATCH))
    seen: list[int] = []
    for threads in (1, 4):
        seen.clear()
        sealed.unlink(missing_ok=True)
        sizes = encrypt_file(plain, sealed, [identity.recipient], workers=crew(threads), progress=seen.append)
        assert seen == sorted(seen)
        assert sizes.written - seen[-1] < 300  # all but the header

    def cancel(done: int) -> None:
        raise KeyboardInterrupt(done)

    for threads in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            decrypt_file(sealed, opened, [identity], workers=crew(threads), progress=cancel)
        assert not opened.exists()


def test_an_existing_file_is_never_overwritten(identity: X25519Identity, tmp_path: Path) -> None:
    plain, sealed = tmp_path / "plain", tmp_path / "sealed"
    plain.write_bytes(b"new")
    sealed.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        encrypt_file(plain, sealed, [identity.recipient])
    assert sealed.read_bytes() == b"old"


def test_a_link_in_the_place_of_the_target_is_not_followed(identity: X25519Identity, tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"new")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        encrypt_file(tmp_path / "plain", tmp_path / "link", [identity.recipient])
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path, crew: Crew) -> None:
    short, out = tmp_path / "short", tmp_path / "out"
    short.write_bytes(b"abc")

    def copy(number: int, data: memoryview, target: memoryview, last: bool) -> int:
        target[: len(data)] = data
        return len(data)

    with short.open("rb") as source, out.open("wb") as target:
        job = Job(Side(source.fileno(), 0, 4), Side(target.fileno(), 0, 4), 8, 2, copy)
        with pytest.raises(DamagedError, match="shorter"):
            crew(2).run(job)
