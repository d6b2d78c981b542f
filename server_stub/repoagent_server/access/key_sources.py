"""Where key sets come from: files beside the access file, and URLs that the operator names in it."""

import ipaddress
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repoagent.beneath.opening import read_small_file
from repoagent.errors import InvalidArgumentError, NotFoundError, RepoAgentError
from repoagent.web import WebClient, WebError, origin_of
from repoagent_server.access.tokens import ALGORITHMS, MOST_BYTES, read_key_set

logger = logging.getLogger(__name__)

_REFRESH_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 10.0
"""Between two requests for a set that does not answer, or that may have a new key."""
_KEPT_SECONDS: Final = 3600.0
"""For how long keys are used after the last time that their URL answered."""
_CLOSE_SECONDS: Final = 1.0
_LOCAL: Final = "localhost"
_OK: Final = 200


def is_url(source: str) -> bool:
    """Whether a key set is fetched, not read from a file."""
    return "://" in source


def check_source(text: str, base: Path) -> str:
    """The source that ``text`` names: an https URL, or a file relative to ``base``.

    Raises:
        InvalidArgumentError: it is another kind of URL. Plain http, with which others on the way could change the keys,
            is accepted for this machine itself.
    """
    if not is_url(text):
        return str(base / text)
    origin = origin_of(text)
    if origin.scheme != "https" and not _is_loopback(origin.host):
        raise InvalidArgumentError(f"the URL of {origin} must begin with https: others on the way could change keys")
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == _LOCAL


def read_source(path: str, limit: int = MOST_BYTES, *, what: str = "key set") -> bytes:
    """The content of a file; ``what`` it is goes into the error.

    Raises:
        InvalidArgumentError: it cannot be read, is not a regular file, or is too large.
    """
    try:
        return read_small_file(path, limit=limit)
    except (OSError, RepoAgentError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgumentError(f"the {what} '{path}' cannot be read: {reason}") from None


def fetch(url: str) -> bytes:
    """The key set at ``url``.

    Redirects lead to public https addresses, to hosts that the operator names for fetches, or to the same origin.

    Raises:
        RepoAgentError: there is no answer, a bad one, a redirect that is not followed, or what comes is not a key set.
    """
    client = WebClient.of_operator(url)
    try:
        answer = client.fetch(url, headers={"Accept": "application/jwk-set+json, application/json"}, limit=MOST_BYTES)
    finally:
        client.close()
    if answer.status != _OK:
        raise WebError(f"the server of the key set answered with status {answer.status}", answer.status)
    read_key_set(answer.body, tuple(ALGORITHMS))
    return answer.body


@dataclass(slots=True)
class _Fetched:
    data: bytes = b""
    answered: float = 0.0
    """When it was fetched last, by the monotonic clock."""
    due: float = 0.0
    """When it is to be fetched again."""
    soonest: float = 0.0
    """When it may be fetched again, if a token asks for that."""
    failing: bool = False
    fetching: bool = False


class FetchedSets:
    """Key sets of URLs, fetched again every five minutes; none waits for another one's server. Thread-safe."""

    def __init__(self, get: Callable[[str], bytes] = fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._get = get
        self._clock = clock
        self._sets: dict[str, _Fetched] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def data(self, url: str) -> bytes:
        """The newest content. A URL that is new is fetched soon.

        Raises:
            NotFoundError: there is none: the URL has not answered yet, or not for an hour.
        """
        with self._changed:
            one = self._sets.get(url)
            if one is None:
                one = self._sets[url] = _Fetched()
                self._follow()
        if not one.data or self._clock() > one.answered + _KEPT_SECONDS:
            raise NotFoundError(f"the key set at {origin_of(url)} has not answered")
        return one.data

    def wait(self, seconds: float) -> None:
        """Return when each URL has been asked once, at the latest after ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: all(one.soonest for one in self._sets.values()), seconds)

    def refresh_soon(self, url: str) -> None:
        """A token names a key that is not in the set: fetch it, unless that was done a moment ago."""
        with self._changed:
            one = self._sets.get(url)
            if one is not None:
                one.due = min(one.due, max(one.soonest, self._clock()))
                self._changed.notify_all()

    def keep(self, urls: set[str]) -> None:
        """Forget all others."""
        with self._changed:
            for url in set(self._sets) - urls:
                del self._sets[url]

    def close(self) -> None:
        """Fetch no more; what waits for an answer is left alone."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _follow(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="key-sets", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = self._clock()
                resting = [(url, one) for url, one in self._sets.items() if not one.fetching]
                due = [(url, one) for url, one in resting if one.due <= now]
                if self._closed:
                    return
                if not due:
                    next_due = min((one.due for _, one in resting), default=now + _REFRESH_SECONDS)
                    self._changed.wait(max(0.0, next_due - now))
                for _, one in due:
                    one.fetching = True
            for url, one in due:
                threading.Thread(target=self._refresh, args=(url, one), name="key-set", daemon=True).start()

    def _refresh(self, url: str, one: _Fetched) -> None:
        try:
            data = self._get(url)
        except Exception as error:  # whatever a server makes a library raise: it is asked again
            data = b""
            if not one.failing:
                logger.error("a key set cannot be fetched, its keys so far are used for an hour: %s", error)
        now = self._clock()
        with self._changed:
            one.fetching = False
            one.failing = not data
            one.soonest = now + _RETRY_SECONDS
            one.due = now + (_REFRESH_SECONDS if data else _RETRY_SECONDS)
            if data:
                one.data, one.answered = data, now
            self._changed.notify_all()
