"""The digest algorithms: their names, the length of their digests, and how to make a hasher."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from repoagent.api import UnsupportedError, install_hint

__all__ = ["ALGORITHMS", "GIT_SHA1", "Algorithm", "Hasher", "algorithm_of_length", "find_algorithm"]


class Hasher(Protocol):
    """The part of ``hashlib``'s interface that is used here."""

    def update(self, data: Any, /) -> Any:
        """Take more of the content."""

    def hexdigest(self) -> str:
        """The digest of all content so far, in lower-case hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One digest algorithm. ``tag`` is its name in lines of the BSD form, ``sums`` the usual name of a digest file."""

    name: str
    tag: str
    hex_length: int
    sums: str
    make: Callable[[int, bool], Hasher]
    weak: bool = False

    def new(self, size: int = 0, *, threads: bool = False) -> Hasher:
        """A hasher for a file of ``size`` bytes. With ``threads`` it may use every core, if it can."""
        return self.make(size, threads)


def _hashlib(name: str, _size: int, _threads: bool) -> Hasher:
    # Not "for security" lets MD5 and SHA-1 work on FIPS machines too; whether they are good enough is said elsewhere.
    return hashlib.new(name, usedforsecurity=False)


def _blake3(_size: int, threads: bool) -> Hasher:
    try:
        from blake3 import blake3
    except ImportError:
        raise UnsupportedError(
            f"BLAKE3 needs the package 'blake3'; {install_hint('repoagent-checksum', 'blake3')}"
        ) from None
    hasher: Hasher = blake3(max_threads=blake3.AUTO if threads else 1)
    return hasher


def _git_sha1(size: int, _threads: bool) -> Hasher:
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def _standard(name: str, hex_length: int, *, weak: bool = False) -> Algorithm:
    return Algorithm(name, name, hex_length, f"{name}SUMS", partial(_hashlib, name.lower()), weak)


ALGORITHMS: Final = {
    algorithm.name: algorithm
    for algorithm in (
        _standard("MD5", 32, weak=True),
        _standard("SHA1", 40, weak=True),
        _standard("SHA224", 56),
        _standard("SHA256", 64),
        _standard("SHA384", 96),
        _standard("SHA512", 128),
        Algorithm("BLAKE2B", "BLAKE2b", 128, "B2SUMS", partial(_hashlib, "blake2b")),
        Algorithm("BLAKE3", "BLAKE3", 64, "B3SUMS", _blake3),
    )
}

GIT_SHA1: Final = Algorithm("GIT-SHA1", "GIT-SHA1", 40, "", _git_sha1, weak=True)
"""The name of a blob in Git. A Hugging Face listing gives it for files that are not in Git LFS."""


def find_algorithm(name: str, place: str = "") -> Algorithm:
    """The algorithm called ``name``, in any case, with or without a dash (``sha-256``).

    Args:
        name: As written.
        place: Where it was written, for the message.

    Raises:
        UnsupportedError: there is none.
    """
    found = ALGORITHMS.get(name.upper().replace("-", ""))
    if found is None:
        # First what Triton's agent says, word for word; it knows no place.
        text = f"{place}{': ' if place else ''}Unsupported checksum algorithm: {name}"
        raise UnsupportedError(f"{text}; there are {', '.join(ALGORITHMS)}")
    return found


def algorithm_of_length(hex_length: int) -> Algorithm | None:
    """What a digest of that many hexadecimal digits is taken for where nothing else tells: MD5 or one of the SHAs."""
    for algorithm in ALGORITHMS.values():
        if algorithm.hex_length == hex_length:
            return algorithm
    return None
