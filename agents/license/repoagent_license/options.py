"""The agent's parameters."""

import math
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from repoagent.api import InvalidArgumentError, Parameters, UnsafePathError

__all__ = ["PARAMETERS", "Options", "parse_parameters"]

PARAMETERS: Final = ("license", "public_key", "timeout", "token", "trust_root", "url")
_DEFAULT_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """Exactly one of ``url`` and ``license`` is set; with a license, exactly one of the two ways to name its key."""

    url: str | None
    license: str | None
    token: str | None
    public_key: str | None
    trust_root: str | None
    timeout: float


def parse_parameters(parameters: Parameters) -> Options:
    """Check the parameters of one chain entry; of repeats the last counts.

    Raises:
        InvalidArgumentError: an unknown one, a bad value, or a combination that is not possible.
        UnsafePathError: ``license`` leads out of the model.
    """
    parameters.check(PARAMETERS)
    options = Options(
        url=_url(parameters["url"]) if "url" in parameters else None,
        license=_path(parameters["license"]) if "license" in parameters else None,
        token=parameters.get("token"),
        public_key=parameters.get("public_key"),
        trust_root=parameters.get("trust_root"),
        timeout=_timeout(parameters["timeout"]) if "timeout" in parameters else _DEFAULT_TIMEOUT,
    )
    if (options.url is None) == (options.license is None):
        raise InvalidArgumentError("give one of the parameters 'url' and 'license'")
    if options.license is not None and (options.public_key is None) == (options.trust_root is None):
        raise InvalidArgumentError("the license's key is missing: give one of 'trust_root' and 'public_key'")
    return options


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(parts.hostname or "")):
        raise InvalidArgumentError("the parameter 'url' must begin with https:// (http:// for this machine only)")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgumentError("the parameter 'url' holds a user name or password; use 'token', a key reference")
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _path(text: str) -> str:
    if not text or text.startswith("/") or "\0" in text or any(part in ("", ".", "..") for part in text.split("/")):
        raise UnsafePathError("the parameter 'license' must be a plain path in the model's directory")
    return text


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 60:
        raise InvalidArgumentError(f"the parameter 'timeout' must be seconds above 0 and at most 60, not '{text}'")
    return seconds
