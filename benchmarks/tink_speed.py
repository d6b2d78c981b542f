"""Decryption in Tink's streaming format by the decrypt agent, beside Tink's own stream and plain AES-GCM.

    python benchmarks/tink_speed.py                # 1 GiB; needs 3 GiB of /dev/shm
    python benchmarks/tink_speed.py --size 128M    # a quick look

All decrypt the same gigabyte on a memory filesystem, in turns, after a round that does not count; the median of the
others counts. "AES-GCM" decrypts one buffer of 1 MiB in memory with the same number of threads, and "format" all
segments of the file in memory: what the format costs. "AES-GCM, written" writes each result to a new file, as "ours"
and Tink do, which is the most that any format can reach. Tink missing prints MISSING and makes the exit status 1
(``pip install tink``).
"""

import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from measures import fill, in_turns, medians, options_of, seconds, size_of
from repoagent_decrypt.files.positional import Workers
from repoagent_decrypt.tink.files import SegmentCipher, Shape, decrypt_file, encrypt_file, header_size
from repoagent_decrypt.tink.keyset import StreamingKey, parse_keyset
from servers import report_missing

MIB = 1 << 20


def main() -> int:
    given = options_of(__doc__, size="1G", rounds=5)
    size = size_of(given.size)
    try:
        import tink
        from tink import json_proto_keyset_format, secret_key_access, streaming_aead
    except ImportError:
        return report_missing({"tink": "pip install tink"})
    streaming_aead.register()
    handle = tink.new_keyset_handle(streaming_aead.streaming_aead_key_templates.AES256_GCM_HKDF_1MB)
    keys = parse_keyset(json_proto_keyset_format.serialize(handle, secret_key_access.TOKEN).encode(), "keyset")
    primitive = handle.primitive(streaming_aead.StreamingAead)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, Workers() as workers:
        root = Path(directory)
        sealed = _sealed(root, size, keys[0], workers)

        def theirs() -> None:
            with (
                sealed.open("rb") as file,
                (root / "theirs").open("wb") as out,
                primitive.new_decrypting_stream(file, b"") as stream,
            ):
                while piece := stream.read(4 * MIB):
                    out.write(piece)
            (root / "theirs").unlink()

        def ours() -> None:
            decrypt_file(sealed, root / "ours", keys, workers=workers)
            (root / "ours").unlink()

        def with_files() -> None:
            _plain_aes(size, workers.threads, root / "with_files")()
            (root / "with_files").unlink()

        ways = {
            "AES-GCM": _plain_aes(size, workers.threads),
            "format": _format(sealed.read_bytes(), keys[0], workers.threads),
            "AES-GCM, written": with_files,
            "ours": ours,
            "Tink": theirs,
        }
        times = in_turns({name: partial(seconds, way) for name, way in ways.items()}, given.rounds, warm=1)
        rates = {name: size / 1e9 / value for name, value in medians(times).items()}
    print(f"{size >> 20} MiB, {workers.threads} threads, {len(os.sched_getaffinity(0))} cores; GB/s, median")
    for name, rate in rates.items():
        print(f"{name:18} {rate:6.2f}")
    print(f"format / AES-GCM: {rates['format'] / rates['AES-GCM']:.2f}")
    for peer in ("AES-GCM, written", "Tink"):
        print(f"ours / {peer}: {rates['ours'] / rates[peer]:.2f}")
    return 0


def _sealed(root: Path, size: int, key: StreamingKey, workers: Workers) -> Path:
    plain, sealed = fill(root / "plain", size, 1) / "part0000", root / "sealed"
    encrypt_file(plain, sealed, key, workers=workers)
    plain.unlink()
    return sealed


def _plain_aes(size: int, threads: int, target: Path | None = None) -> Callable[[], None]:
    """Decrypts one buffer again and again; with ``target`` each result is written there, in its place."""
    aead, nonce = AESGCM(bytes(32)), bytes(12)
    sealed = aead.encrypt(nonce, bytes(MIB), None)

    def part(numbers: range) -> None:
        into = bytearray(MIB)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT, 0o600) if target else None
        for number in numbers:
            aead.decrypt_into(nonce, sealed, None, into)
            if fd is not None:
                os.pwrite(fd, into, number * MIB)
        if fd is not None:
            os.close(fd)

    def run() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(part, [range(first, size // MIB, threads) for first in range(threads)]))

    return run


def _format(sealed: bytes, key: StreamingKey, threads: int) -> Callable[[], None]:
    """Decrypts every segment of a file that lies in memory."""
    shape, header = Shape.of_sealed(len(sealed), key), header_size(key.derived_size)
    cipher, data = SegmentCipher(key, sealed[:header]), memoryview(sealed)

    def part(first: int) -> None:
        into = memoryview(bytearray(key.segment_size))
        for index in range(first, shape.segments, threads):
            segment = data[index * key.segment_size : (index + 1) * key.segment_size]
            cipher.open(index, segment if index else segment[header:], into, last=index == shape.segments - 1)

    def run() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(part, range(threads)))

    return run


if __name__ == "__main__":
    sys.exit(main())
