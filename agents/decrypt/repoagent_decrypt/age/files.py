"""File to file: the fastest way. A binary age file is worked on by all threads at once, an armored one streamed."""

import os
from collections.abc import Sequence
from contextlib import closing, nullcontext
from io import FileIO
from pathlib import Path
from typing import Final

from repoagent_decrypt.age.header import MAX_HEADER_BYTES
from repoagent_decrypt.age.reader import OpenedPayload, open_payload, plain_pieces
from repoagent_decrypt.age.stanzas import Identity, Recipient
from repoagent_decrypt.age.stream import BATCH_CHUNKS, CHUNK, SEALED, plain_shape, sealed_shape
from repoagent_decrypt.age.writer import AgeWriter, start_payload
from repoagent_decrypt.files.positional import (
    Hashers,
    Job,
    Progress,
    Side,
    Sizes,
    Workers,
    new_file,
    thread_count,
    write_at,
)

_LARGEST_HEAD: Final = MAX_HEADER_BYTES + (1 << 20)
_PLAIN_BATCH = BATCH_CHUNKS * CHUNK
_SEALED_BATCH = BATCH_CHUNKS * SEALED


def decrypt_file(
    source: Path,
    target: Path,
    identities: Sequence[Identity],
    *,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Sizes:
    """Decrypt ``source`` into the new file ``target`` (mode 0600), which exists afterwards only if all is authentic.

    Args:
        source: An age file, binary or armored.
        target: Must not exist.
        identities: Who we are.
        workers: Threads to use; by default made for this file, one per CPU. Share them among many small files.
        progress: Told the bytes of plaintext so far, from the calling thread; may raise to cancel.

    Raises:
        AgeError: one of its kinds, by what is wrong.
        OSError: a file cannot be read or written; ``FileExistsError`` if ``target`` exists.
    """
    with source.open("rb", buffering=0) as stream:
        head = _Recorded(stream)
        payload = open_payload(head, identities)
        written, read = (Hashers(names) for names in ((workers.hashing, workers.reading) if workers else ((), ())))
        with new_file(target) as fd:
            if payload.armored:
                written = read = Hashers(())
                _stream_out(payload, fd, thread_count(workers.threads if workers else None), progress)
            else:
                # The very bytes that the key was taken from: those in the file may be others by now.
                read.update(memoryview(head.bytes)[: payload.start])
                _run(_decrypt_job(payload, stream.fileno(), fd), workers, progress, written, read)
            status = os.fstat(fd)
        return Sizes(os.fstat(stream.fileno()).st_size, status.st_size, status, written.digests(), read.digests())


def encrypt_file(
    source: Path,
    target: Path,
    recipients: Sequence[Recipient],
    *,
    armored: bool = False,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Sizes:
    """Encrypt ``source`` into the new file ``target``; the reverse of :func:`decrypt_file`, same rules."""
    with source.open("rb", buffering=0) as stream, new_file(target) as fd:
        if armored:
            _stream_in(stream.fileno(), fd, recipients, progress)
        else:
            _run(_encrypt_job(stream.fileno(), fd, recipients), workers, progress)
        return Sizes(os.fstat(stream.fileno()).st_size, os.fstat(fd).st_size)


class _Recorded:
    """What was read of the beginning of ``stream``."""

    def __init__(self, stream: FileIO) -> None:
        self._stream = stream
        self.bytes = bytearray()

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size) or b""
        if len(self.bytes) < _LARGEST_HEAD:  # an armored file is streamed through here
            self.bytes += data
        return data


def _run(
    job: Job,
    workers: Workers | None,
    progress: Progress | None,
    written: Hashers | None = None,
    read: Hashers | None = None,
) -> None:
    with nullcontext(workers) if workers is not None else Workers() as chosen:
        chosen.run(job, progress, written, read)


def _decrypt_job(payload: OpenedPayload, source: int, target: int) -> Job:
    shape = sealed_shape(os.fstat(source).st_size - payload.start)

    def open_batch(number: int, sealed: memoryview, plain: memoryview, ends: bool) -> int:
        return payload.cipher.open(number * BATCH_CHUNKS, sealed, plain, ends=ends)

    return Job(
        source=Side(source, payload.start, _SEALED_BATCH),
        target=Side(target, 0, _PLAIN_BATCH),
        size=shape.sealed,
        batches=_batches(shape.chunks),
        transform=open_batch,
    )


def _encrypt_job(source: int, target: int, recipients: Sequence[Recipient]) -> Job:
    start, cipher = start_payload(recipients)
    write_at(target, memoryview(start), 0)
    shape = plain_shape(os.fstat(source).st_size)

    def seal_batch(number: int, plain: memoryview, sealed: memoryview, ends: bool) -> int:
        return cipher.seal(number * BATCH_CHUNKS, plain, sealed, ends=ends)

    return Job(
        source=Side(source, 0, _PLAIN_BATCH),
        target=Side(target, len(start), _SEALED_BATCH),
        size=shape.plain,
        batches=_batches(shape.chunks),
        transform=seal_batch,
    )


def _stream_out(payload: OpenedPayload, target: int, threads: int, progress: Progress | None) -> None:
    done = 0
    with closing(plain_pieces(payload, threads)) as pieces, open(target, "wb", closefd=False) as out:
        for piece in pieces:
            done += out.write(piece)
            if progress is not None:
                progress(done)


def _stream_in(source: int, target: int, recipients: Sequence[Recipient], progress: Progress | None) -> None:
    done = 0
    with (
        open(source, "rb", closefd=False) as stream,
        open(target, "wb", closefd=False) as out,
        AgeWriter(out, recipients, armored=True) as writer,
    ):
        while data := stream.read(_PLAIN_BATCH):
            done += writer.write(data)
            if progress is not None:
                progress(done)


def _batches(chunks: int) -> int:
    return -(-chunks // BATCH_CHUNKS)
