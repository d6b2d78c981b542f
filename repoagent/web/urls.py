"""The parts of an http or https URL, checked."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from repoagent.errors import InvalidArgumentError

_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_KEPT: Final = "%/:=&?~#+!$,;'@()*[]"
_LONGEST: Final = 16384


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a URL leads: credentials for one origin are not sent to another."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def origin_of(url: str) -> Origin:
    """The origin of an http or https URL. Raises ``InvalidArgumentError`` for another URL, or one with a user name, a
    password, or what no URL can hold."""
    split = _split(url)
    host = (split.hostname or "").lower()
    if "@" in split.netloc:
        raise InvalidArgumentError(f"the URL {shown_url(url)} holds a user name or a password; give a reference to it")
    if not _HOST.fullmatch(host) or len(host) > 253:
        raise InvalidArgumentError(f"the URL {shown_url(url)} has no valid host")
    try:
        port = split.port
    except ValueError:
        port = 0
    if port == 0:
        raise InvalidArgumentError(f"the URL {shown_url(url)} has no valid port")
    return Origin(split.scheme, host, port or _PORTS[split.scheme])


def target_of(url: str) -> str:
    """What a request names: path and query, with every character that may not stand in them quoted."""
    split = _split(url)
    query = f"?{split.query}" if split.query else ""
    return quote((split.path or "/") + query, safe=_KEPT)


def join(base: str, location: str) -> str:
    """Where a redirect of ``base`` leads. Errors as in :func:`origin_of`."""
    _check_text(location)
    return urljoin(base, location)


def shown_url(url: str) -> str:
    """``url`` for messages: a query may hold a signature, and a user name stands before a password."""
    text = re.sub(r"[\x00-\x20\x7f]", "?", url.partition("?")[0].partition("#")[0])
    return re.sub(r"//[^/]*@", "//", text)[:200]


def _split(url: str) -> SplitResult:
    _check_text(url)
    try:
        split = urlsplit(url)
    except ValueError:
        raise InvalidArgumentError(f"the URL {shown_url(url)} cannot be read") from None
    if split.scheme not in _PORTS:
        raise InvalidArgumentError(f"the URL {shown_url(url)} has the scheme '{split.scheme[:20]}'; expected https")
    return split


def _check_text(url: str) -> None:
    if len(url) > _LONGEST or any(character <= " " or character == "\x7f" for character in url):
        raise InvalidArgumentError(f"the URL {shown_url(url)} is too long or holds a character that no URL can hold")
