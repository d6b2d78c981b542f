"""Time limits for the connections of the filesystems that come as extras."""

from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["limit_attempts", "with_timeouts"]

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
