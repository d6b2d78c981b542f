"""An access file in force: read at the start, and again within a second of its last change."""

import hashlib
import logging
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from repoagent.errors import ConfigError, InvalidArgumentError, NotFoundError, RepoAgentError
from repoagent_server.access.access import Access
from repoagent_server.access.access_file_reader import MOST_BYTES, read_rules
from repoagent_server.access.key_sources import FetchedSets, is_url, read_source
from repoagent_server.access.rules import Rules
from repoagent_server.access.tokens import KeySet, TokenIssuer, read_key_set

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.2
"""Between two looks. New content must be the same twice, as an editor may still be writing it. So what is removed from
the file is refused after at most two pauses and the reading: within a second."""

_FIRST_SECONDS: Final = 5.0
"""For how long the start waits for key sets. The tokens of one that comes later are refused until then."""

_KIND: Final = "access file"

_Contents = dict[str, bytes | None]
"""What was found at each source, None for nothing; the access file's own path is one of them."""

_KeySets = Mapping[str, bytes | None]
"""The content of the key set of each issuer, by its name; None for one that its URL has not answered with."""

_NONE: Final[_KeySets] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AccessChange:
    """An access file, or a key set that it names, has been read again."""

    sources: Mapping[str, str]
    """The SHA-256 of what was read, by path or URL; empty text for what could not be read."""
    clients: int
    """How many there are by the rules in force."""
    error: str = ""
    """Why it cannot be used, so that the rules stay as they were, with the key sets that can be used; empty if all is
    in force."""


class AccessFile:
    """Follows a file on a thread of its own until :meth:`close`; a context manager. ``access`` goes to front ends."""

    def __init__(
        self, path: Path | str, *, sets: FetchedSets | None = None, pause: Callable[[float], bool] | None = None
    ) -> None:
        """Read the file at ``path`` and begin to follow it, and the key sets that it names.

        ``pause`` waits between two looks for the seconds that it is given; true from it is the end. By default it is a
        wait that :meth:`close` ends.

        Raises:
            ConfigError: it cannot be read, or is not an access file.
            UnsupportedError: it names issuers of tokens, and the library for these is not installed.
        """
        self._path = Path(path)
        self._sets = sets if sets is not None else FetchedSets()
        self._sources: set[str] = {str(self._path)}
        self.access: Final = Access()
        self.access.on_unknown_key = lambda issuer: self.refresh(issuer.source)
        self._stop = threading.Event()
        self._pause = pause or self._stop.wait
        self._observers: list[Callable[[AccessChange], None]] = []
        self._read: _Contents = {}
        self._before: _Contents = {}
        self._good: tuple[bytes, _KeySets] | None = None
        """What is in force: the content of the access file, and the key sets."""
        try:
            self._apply(self._look())
            if any(map(is_url, self._sources)):
                self._sets.wait(_FIRST_SECONDS)
                self._apply(self._look())
        except BaseException:
            self._sets.close()
            raise
        self._log("is in force")
        self._warn_of_writers()
        self._thread = threading.Thread(target=self._follow, name="access", daemon=True)
        self._thread.start()

    def __enter__(self) -> "AccessFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop following; the rules stay as they are. Again is fine."""
        self._stop.set()
        self._thread.join()
        self._sets.close()

    def observe(self, observer: Callable[[AccessChange], None]) -> None:
        """Have ``observer`` called each time that the file has been read again, on the thread that follows it. The log
        states a change when all have returned."""
        self._observers = [*self._observers, observer]

    @property
    def in_force(self) -> tuple[bytes, _KeySets]:
        """What the rules in force were read from, for :func:`rules_of` in another process."""
        assert self._good is not None
        return self._good

    def refresh(self, source: str) -> None:
        """A token names a key that the set of ``source`` does not have: have it fetched again. Other texts are fine."""
        if is_url(source):
            self._sets.refresh_soon(source)

    def _follow(self) -> None:
        while not self._pause(_LOOK_SECONDS):
            self._step()

    def _step(self) -> None:
        """One look. What could not be read stays in force until there is something else to read."""
        found = self._look()
        settled, self._before = found == self._before, found
        if found == self._read or not settled:
            return
        failure = ""
        try:
            self._apply(found)
        except RepoAgentError as error:
            failure = str(error)
            logger.error("the access file has changed and cannot be used; the rules stay as they were: %s", error)
        except Exception as error:
            failure = f"unexpected {type(error).__name__}"
            logger.exception("the access file has changed and cannot be used; the rules stay as they were")
        self._report(failure)
        if not failure:
            self._log("has been read again")
            self._warn_of_writers()

    def _log(self, event: str) -> None:
        """A file without clients is valid: it denies every request. It may also be one that a full disk emptied."""
        rules = self.access.rules
        level, more = (logging.INFO, "") if rules.clients else (logging.WARNING, ", so every key is refused")
        logger.log(level, "the access file '%s' %s: %s%s", self._path, event, count_of_clients(rules), more)

    def _warn_of_writers(self) -> None:
        with suppress(OSError):
            if self._path.stat().st_mode & stat.S_IWOTH:
                logger.warning("every user of this machine can change the access file '%s': chmod o-w it", self._path)

    def _report(self, failure: str) -> None:
        sources = {source: hashlib.sha256(data).hexdigest() if data else "" for source, data in self._read.items()}
        change = AccessChange(sources, len(self.access.rules.clients), failure)
        for observer in self._observers:
            try:
                observer(change)
            except Exception:  # The next change must be seen, whatever becomes of the report of this one.
                logger.exception("an observer of the access file failed")

    def _look(self) -> _Contents:
        return {source: self._content(source) for source in sorted(self._sources)}

    def _content(self, source: str) -> bytes | None:
        try:
            if is_url(source):
                return self._sets.data(source)
            return read_source(source, MOST_BYTES)
        except (InvalidArgumentError, NotFoundError):
            return None

    def _apply(self, found: _Contents) -> None:
        """Put the rules in ``found`` in force. What is followed from now on are the sources that they name, and those
        of the rules that stay where these cannot be used."""
        own = str(self._path)
        used: _Contents = {own: found.get(own)}
        try:
            # Read again where there was nothing: that raises what is wrong.
            self._use(used[own] or read_source(own, MOST_BYTES, what=_KIND), found, used)
        except InvalidArgumentError as error:
            if self._good is not None:
                self._use(self._good[0], found, used, self._good[1])
            raise error if isinstance(error, ConfigError) else ConfigError(error.message) from None
        finally:
            self._sources = set(used)
            self._read = self._before = used
            self._sets.keep({source for source in used if is_url(source)})

    def _use(self, text: bytes, found: _Contents, used: _Contents, otherwise: _KeySets = _NONE) -> None:
        """Put the rules in ``text`` in force, with the key sets in ``found``. One that cannot be used is an error, but
        for issuers that have another one in ``otherwise``. ``used`` gets what was found at each source."""
        sets: dict[str, bytes | None] = {}

        def key_set_of(issuer: TokenIssuer) -> KeySet:
            source = issuer.source
            content = used[source] = used.get(source) or found.get(source) or self._content(source)
            try:
                if content is None and not is_url(source):
                    content = used[source] = read_source(source)  # That raises what is wrong.
                keys = _key_set(issuer, content)
            except InvalidArgumentError:
                if issuer.name not in otherwise:
                    raise
                content = otherwise[issuer.name]
                keys = _key_set(issuer, content)
            sets[issuer.name] = content
            return keys

        rules = read_rules(text, self._path, key_set_of)
        if (text, sets) != self._good:
            self._good = text, sets
            self.access.replace(rules)


def _key_set(issuer: TokenIssuer, content: bytes | None) -> KeySet:
    """The keys of an issuer. A URL that fails closes its issuer alone: other changes must not wait for it."""
    if content is None:
        return KeySet()
    try:
        return read_key_set(content, issuer.algorithms)
    except InvalidArgumentError as error:
        if not is_url(issuer.source):
            raise
        logger.error("the tokens of issuer '%s' are refused: %s", issuer.name, error)
        return KeySet()


def rules_of(text: bytes, sets: _KeySets, path: Path) -> Rules:
    """The rules of a file that another process has read from ``path`` and follows, see :attr:`AccessFile.in_force`."""
    return read_rules(text, path, lambda issuer: _key_set(issuer, sets.get(issuer.name)))


def count_of_clients(rules: Rules) -> str:
    """``1 client``, ``2 clients``."""
    count = len(rules.clients)
    return f"{count} client{'s' * (count != 1)}"
