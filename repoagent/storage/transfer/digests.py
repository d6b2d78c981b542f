"""Digests of a file, one of them the name under which it is kept."""

import re
from typing import Final

from repoagent.beneath.digests import Hasher, new_hasher
from repoagent.errors import InvalidArgumentError

_LENGTHS: Final = {"sha256": 64, "sha512": 128, "git-sha1": 40}


class WrongDigestError(InvalidArgumentError):
    """A file came, and it is not the one that was asked for."""


class Digester:
    """SHA-256, and the algorithm of an expected digest."""

    def __init__(self, expected: str, size: int) -> None:
        """Begin; ``size`` is that of the whole file, which git puts before it."""
        self._expected = expected
        algorithm = expected.partition(":")[0]
        names = {"sha256", algorithm} & _LENGTHS.keys()
        self._states: dict[str, Hasher] = {name: new_hasher(name, size) for name in names}

    def update(self, content: memoryview) -> None:
        """The next bytes."""
        for state in self._states.values():
            state.update(content)

    def sha256(self, name: str) -> str:
        """The SHA-256 of all, in hexadecimal digits.

        Raises:
            WrongDigestError: the file ``name`` has not the expected digest.
        """
        algorithm, _, expected = self._expected.partition(":")
        if expected and self._states[algorithm].hexdigest() != expected:
            found = self._states[algorithm].hexdigest()
            raise WrongDigestError(f"{name} has the digest {algorithm}:{found}; expected {self._expected}")
        return self._states["sha256"].hexdigest()


def digest_of(content: bytes, algorithm: str = "sha256") -> str:
    """The digest of some bytes, in the form that :func:`check_digest` accepts."""
    digester = Digester(f"{algorithm}:", len(content))
    digester.update(memoryview(content))
    return f"{algorithm}:{digester._states[algorithm].hexdigest()}"


def check_digest(text: str, what: str) -> str:
    """``text`` if it is a digest.

    Raises:
        InvalidArgumentError: it is not; ``what`` states whose.
    """
    algorithm, _, digest = text.partition(":")
    if len(digest) != _LENGTHS.get(algorithm) or not re.fullmatch(r"[0-9a-f]*", digest):
        raise InvalidArgumentError(
            f"{what}: {text[:80]!r} is not a valid digest; expected sha256:, sha512: or git-sha1: and lower-case "
            "hexadecimal digits"
        )
    return text
