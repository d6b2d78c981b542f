"""Remote files that an agent downloads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file to download: where it is, where it goes, and what is known about it.

    Attributes:
        path: Where it goes, relative, with ``/``.
        url: Where it is: http, https, or the URL of an object in a store.
        size: Its size in bytes, if known; a file of another size is refused.
        digest: ``sha256:HEX``, ``sha512:HEX`` or ``git-sha1:HEX`` (of a git blob); empty: nothing is compared.
        tag: Changes when the file does (an ETag). With it, a file without a digest is downloaded once.
        headers: Headers of its requests, such as a token. Called for each request; with True when the server has just
            refused the headers before. They are sent to the origin of ``url`` only, not where it redirects to.
    """

    path: str
    url: str
    size: int | None = None
    digest: str = ""
    tag: str = ""
    headers: Callable[[bool], Mapping[str, str]] | None = None
