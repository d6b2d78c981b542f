"""Keys for tests."""

from collections.abc import Mapping
from typing import Final

from repoagent.errors import NotFoundError

__all__ = ["SCHEME", "FakeKeys"]

SCHEME: Final = "fake"


class FakeKeys:
    """A key provider: ``fake:NAME`` is the secret that the test put there; ``asked`` lists the references in order."""

    def __init__(self, secrets: Mapping[str, bytes] | None = None) -> None:
        self._secrets = dict(secrets or {})
        self.asked: list[str] = []

    def put(self, name: str, secret: bytes) -> str:
        """Keep ``secret`` and return the reference to it."""
        self._secrets[name] = secret
        return f"{SCHEME}:{name}"

    def __call__(self, uri: str) -> bytes:
        """What the loader calls.

        Raises:
            NotFoundError: the test put nothing there.
        """
        self.asked.append(uri)
        name = uri.partition(":")[2]
        if name not in self._secrets:
            raise NotFoundError(f"the test has no key at {SCHEME}:{name}")
        return self._secrets[name]
