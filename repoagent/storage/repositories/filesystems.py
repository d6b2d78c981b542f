"""From a repository URL to an fsspec filesystem that sees changes at once."""

import importlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Final, TypeVar

from repoagent.errors import InvalidArgumentError, StoreUnavailableError, UnavailableError, UnsupportedError
from repoagent.installing import install_hint
from repoagent.storage.repositories.url import RepositoryUrl

T = TypeVar("T")

_GRACE: Final = 1.0
"""Seconds that a call still gets once the server stops: an agent's last look into a store that answers."""


class RemoteCalls:
    """The calls to one store. Each runs on a thread of its own, which its caller can leave behind.

    A limited call that takes longer than ``seconds`` raises. From then on the store counts as stalled: calls fail at
    once, except for one every now and then that looks whether it is back. The pause between those grows with the
    threads that were left behind and have not ended, so that a store without time-outs of its own collects few.
    """

    def __init__(self, where: str, seconds: float) -> None:
        self._where = where
        self._seconds = seconds
        self._changed = threading.Condition()
        self._left_behind = 0
        self._stalled_since = ""
        """The time of day, for messages; empty while the store answers."""
        self._next_try = 0.0
        self._end: float | None = None

    def run(self, call: Callable[[], T], *, limited: bool) -> T:
        """The result of ``call``, or what it raises; it may be left behind on its thread.

        A ``limited`` call gets the store's limit. Others, downloads, take as long as bytes arrive, by the limits of
        their sockets; those too are given up when the server stops. Raises ``UnavailableError`` then, or if the store
        does not answer in time or has not for a while.
        """
        self._admit()
        one = _Call(call)
        thread = threading.Thread(target=self._work, args=(one,), name="repoagent-remote", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise UnavailableError(f"{self._where} cannot be asked: {error}") from error
        with self._changed:
            while not one.ended:
                left = self._left(one, limited)
                if left is not None and left <= 0:
                    self._give_up(one)
                self._changed.wait(left)
        return one.outcome()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let no one wait for longer than a second from now on."""
        with self._changed:
            self._end = time.monotonic() + _GRACE
            self._changed.notify_all()

    def _admit(self) -> None:
        now = time.monotonic()
        with self._changed:
            if not self._stalled_since:
                return
            if now < self._next_try:
                raise StoreUnavailableError(f"{self._where} has not answered since {self._stalled_since}")
            self._plan_next_try(now)

    def _plan_next_try(self, now: float) -> None:
        self._next_try = now + self._seconds * (1 + self._left_behind)

    def _left(self, one: "_Call", limited: bool) -> float | None:
        deadlines = [one.started + self._seconds] if limited else []
        if self._end is not None:
            deadlines.append(max(self._end, one.started + _GRACE))
        return min(deadlines) - time.monotonic() if deadlines else None

    def _give_up(self, one: "_Call") -> None:
        now = time.monotonic()
        one.left_behind = True
        self._left_behind += 1
        if self._end is not None:
            raise UnavailableError(f"{self._where} does not answer, and the server is stopping")
        self._stalled_since = self._stalled_since or one.since
        self._plan_next_try(now)
        raise StoreUnavailableError(f"{self._where} does not answer within {self._seconds:g} s (--repository-timeout)")

    def _work(self, one: "_Call") -> None:
        one.run()
        with self._changed:
            one.ended = True
            if one.left_behind:
                self._left_behind -= 1
            if not one.left_behind or one.error is None:  # in time, if only with an error; or late, but with an answer
                self._stalled_since = ""
            self._changed.notify_all()


class _Call:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self.error: BaseException | None = None
        self.started: Final = time.monotonic()
        self.since: Final = time.strftime("%H:%M:%S")
        self.ended = False
        self.left_behind = False

    def run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self.error = error

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self._result


_CONNECT: Final = 5.0
"""Seconds for a connection, at most: a host that is there takes one as fast as the network is."""
_ATTEMPTS: Final = 2
"""Of the client library for each request. Whatever loads a model tries again by itself."""


def with_timeouts(protocol: str, options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """``options`` of the filesystem for ``protocol``, and time limits where they set none.

    ``seconds`` are the longest silence of a connection, not of a download. Other protocols than those of the extras
    keep the limits of their own packages.
    """
    add = _LIMITS.get(protocol)
    return add(options, seconds) if add is not None else dict(options)


def limit_attempts(fs: Any, protocol: str) -> None:
    """s3fs tries each request five times over what botocore does, and has no option for that."""
    if protocol in ("s3", "s3a"):
        fs.retries = 1


def _s3(options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    limits = {
        "connect_timeout": min(_CONNECT, seconds),
        "read_timeout": seconds,
        "retries": {"total_max_attempts": _ATTEMPTS, "mode": "standard"},
    }
    return {**options, "config_kwargs": {**limits, **options.get("config_kwargs", {})}}


def _http(options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    return {**options, "client_kwargs": {"timeout": _client_timeout(seconds), **options.get("client_kwargs", {})}}


def _gcs(options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    return {**options, "session_kwargs": {"timeout": _client_timeout(seconds), **options.get("session_kwargs", {})}}


def _azure(options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    whole = max(1, round(seconds))
    return {"connection_timeout": min(round(_CONNECT), whole), "read_timeout": whole, **options}


def _client_timeout(seconds: float) -> Any:
    import aiohttp

    return aiohttp.ClientTimeout(total=None, sock_connect=min(_CONNECT, seconds), sock_read=seconds)


_LIMITS: Final[Mapping[str, Callable[[Mapping[str, Any], float], dict[str, Any]]]] = {
    "s3": _s3,
    "s3a": _s3,
    "http": _http,
    "https": _http,
    "gs": _gcs,
    "gcs": _gcs,
    "az": _azure,
    "abfs": _azure,
    "abfss": _azure,
}


_LIMITED: Final = frozenset(
    {
        "checksum",
        "created",
        "du",
        "exists",
        "find",
        "glob",
        "info",
        "isdir",
        "isfile",
        "ls",
        "modified",
        "size",
        "sizes",
    }
)
"""What asks a store about names: the answer is small, so its time is limited."""
_HERE: Final = frozenset({"clear_instance_cache", "current", "invalidate_cache", "to_dict", "to_json", "walk"})
"""What asks nothing, or hands out answers one by one."""

TIMEOUT: Final = 15.0
"""Seconds that a remote filesystem has for an answer, unless the operator states otherwise."""

_GOOGLES_OWN: Final = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"
"""With it gcsfs asks Google over gRPC what kind of bucket it reads, before every range where it gets no answer. Its
users are those of zonal buckets; for all others its plain class is quicker, and does not hang where gRPC is blocked."""

_EXTRAS: Final[Mapping[str, str]] = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "hf": "hf",
    "http": "http",
    "https": "http",
}


def open_filesystem(
    url: RepositoryUrl,
    storage_options: Mapping[str, Any] | None = None,
    filesystems: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> Any:
    """Return the fsspec filesystem that ``url`` lies on.

    ``storage_options`` are keyword arguments of its class, and win over what the URL states. ``filesystems``, from
    plug-ins, win over fsspec's: protocol -> ``"module:attribute"``. ``timeout``: seconds of silence after which a
    connection is given up, unless an option has another limit.

    Raises ``UnsupportedError`` with the extra that brings the package that is missing, and ``InvalidArgumentError`` for
    a protocol that is not known, or whose filesystem cannot be made.
    """
    import fsspec

    if url.protocol == "oci" and "oci" not in (filesystems or {}):
        raise UnsupportedError(
            "'oci://' names a container registry here, not Oracle's object storage as in fsspec; the agent 'fetch' "
            "reads registries, and a plug-in can register another filesystem for oci"
        )
    # Listings are never cached: a polling server would not see a model arrive.
    options = {"use_listings_cache": False, **url.options, **(storage_options or {})}
    target = (filesystems or {}).get(url.protocol)
    if target is None:
        options = with_timeouts(url.protocol, options, timeout)
    try:
        kind = _class_of(url.protocol) if target is None else _import(target)
        fs = kind(**options)
    except ImportError as error:
        raise UnsupportedError(_missing(url.protocol, error)) from error
    except ValueError as error:
        if url.protocol in fsspec.available_protocols() or target is not None:
            raise InvalidArgumentError(f"cannot open the {url.protocol}:// filesystem: {error}") from error
        raise InvalidArgumentError(
            f"no filesystem for '{url.protocol}://'; expected a local path or one of s3, gs, az, as, hf, http, https, "
            "memory, or a plug-in that registers this protocol"
        ) from error
    except Exception as error:  # one that needs more than a path, such as a host, or that connects at once
        raise InvalidArgumentError(
            f"cannot open the {url.protocol}:// filesystem: {type(error).__name__}: {error}"
        ) from error
    if target is None:
        limit_attempts(fs, url.protocol)
    return fs


def open_patiently(
    url: RepositoryUrl,
    storage_options: Mapping[str, Any] | None = None,
    filesystems: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> tuple[Any, RemoteCalls | None]:
    """The same filesystem, whose calls no one waits for much longer than ``timeout``; what they go through.

    That is None for local directories and for memory, which answer at once.
    """
    fs = open_filesystem(url, storage_options, filesystems, timeout)
    if url.is_local or url.protocol == "memory":
        return fs, None
    calls = RemoteCalls(url.text, timeout)
    return PatientFilesystem(fs, calls), calls


def is_local(fs: Any) -> bool:
    """Whether ``fs`` is the machine's own filesystem."""
    protocol = fs.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


def _class_of(protocol: str) -> Any:
    import fsspec

    if protocol in ("gs", "gcs") and os.environ.get(_GOOGLES_OWN, "").lower() not in ("true", "1"):
        return _import("gcsfs.core:GCSFileSystem")
    return fsspec.get_filesystem_class(protocol)


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _missing(protocol: str, error: ImportError) -> str:
    extra = _EXTRAS.get(protocol)
    how = f"; {install_hint('repoagent-core', extra)}" if extra else f": {error}"
    return f"the {protocol}:// filesystem needs a package that is not installed{how}"


class PatientFilesystem:
    """An fsspec filesystem whose calls go through ``calls``. Everything else is that of ``fs``."""

    def __init__(self, fs: Any, calls: RemoteCalls) -> None:
        self._fs = fs
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._fs, name)
        if name.startswith("_") or name in _HERE or not callable(value):
            return value
        return self._through_calls(value, limited=name in _LIMITED)

    def _through_calls(self, method: Callable[..., Any], *, limited: bool) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            return self._calls.run(partial(method, *arguments, **options), limited=limited)

        return call
