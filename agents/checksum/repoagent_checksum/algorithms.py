"""The digest algorithms: their names, the length of their digests, and their files."""

from dataclasses import dataclass
from typing import Final

from repoagent.api import UnsupportedError

__all__ = ["ALGORITHMS", "GIT_SHA1", "Algorithm", "algorithm_of_length", "find_algorithm"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One digest algorithm. ``tag`` is its name in lines of the BSD form, ``sums`` the usual name of a digest file."""

    name: str
    tag: str
    hex_length: int
    sums: str
    weak: bool = False

    @property
    def key(self) -> str:
        """Its name for :func:`repoagent.api.digest_files`, and before a digest: ``sha256:...``."""
        return self.name.lower()


def _standard(name: str, hex_length: int, *, weak: bool = False) -> Algorithm:
    return Algorithm(name, name, hex_length, f"{name}SUMS", weak)


ALGORITHMS: Final = {
    algorithm.name: algorithm
    for algorithm in (
        _standard("MD5", 32, weak=True),
        _standard("SHA1", 40, weak=True),
        _standard("SHA224", 56),
        _standard("SHA256", 64),
        _standard("SHA384", 96),
        _standard("SHA512", 128),
        Algorithm("BLAKE2B", "BLAKE2b", 128, "B2SUMS"),
        Algorithm("BLAKE3", "BLAKE3", 64, "B3SUMS"),
    )
}

GIT_SHA1: Final = Algorithm("GIT-SHA1", "GIT-SHA1", 40, "", weak=True)
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
