"""The agent: loads a model only while it is allowed to, and asks for its unload when that ends."""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from repoagent.api import (
    Agent,
    AgentModel,
    ArtifactType,
    InvalidArgumentError,
    NotFoundError,
    Parameters,
    UnsafePathError,
    read_beneath,
    read_key,
    read_token,
)
from repoagent_license.endpoint import ask
from repoagent_license.host import host_id, model_digest
from repoagent_license.license_file import LARGEST, read_license, read_public_key
from repoagent_license.terms import Grant, Terms, now

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

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


_LONGEST_WAIT: Final = 30.0
"""Seconds after which the clock is looked at again: someone may have set it, or the machine may have slept."""


class Watch:
    """Calls ``at_end`` once, on a thread of its own, when ``clock`` reaches ``until``; never after :meth:`stop`."""

    def __init__(self, until: datetime, at_end: Callable[[], None], *, clock: Callable[[], datetime]) -> None:
        self._until = until
        self._at_end = at_end
        self._clock = clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="license-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait no more, and return when the thread has ended; again is fine."""
        self._stopped.set()
        self._thread.join()

    def _wait(self) -> None:
        while (left := (self._until - self._clock()).total_seconds()) > 0:
            if self._stopped.wait(min(left, _LONGEST_WAIT)):
                return
        if not self._stopped.is_set():
            self._at_end()


_OLDER: Final = (
    "the model's owner can put back an older license of the same vendor that has not expired yet; the clock of this "
    "machine decides what has expired"
)


@dataclass(slots=True)
class _State:
    grant: Grant
    watch: Watch | None = None


class LicenseAgent(Agent):
    """Loads a model only while a signed license or an HTTP endpoint allows it; asks for its unload when that ends."""

    api_version = 1
    guard = True

    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        self._clock = clock

    @classmethod
    def weaknesses(cls, parameters: Parameters) -> Sequence[str]:
        """What the owner of a model could still do if the operator demanded the agent with ``parameters``."""
        options = parse_parameters(parameters)
        if options.license is None:
            return []
        return [_OLDER]

    def load(self, model: AgentModel) -> None:
        """Refuse the model unless it is allowed now, on this machine and with this content."""
        options = parse_parameters(model.parameters)
        moment = self._clock()
        grant = _endpoint_grant(model, options) if options.license is None else _license_grant(model, options, moment)
        grant.check(moment)
        model.state = _State(grant)
        model.report(note=f"{grant.by} {'has no end' if grant.until is None else f'ends at {grant.until.isoformat()}'}")

    def load_complete(self, model: AgentModel) -> None:
        """From now on, notice when it ends."""
        state: _State = model.state
        grant = state.grant
        if grant.until is not None:
            reason = f"{grant.by} ended at {grant.until.isoformat()}"
            state.watch = Watch(grant.until, lambda: model.request_unload(reason), clock=self._clock)

    def unload(self, model: AgentModel) -> None:
        """The model goes, for whatever reason: there is nothing left to notice."""
        state: _State = model.state
        if state.watch is not None:
            state.watch.stop()
            state.watch = None


def _endpoint_grant(model: AgentModel, options: Options) -> Grant:
    assert options.url is not None
    token = read_token(model.key, options.token) if options.token is not None else None
    return ask(options.url, model.name, token=token, timeout=options.timeout)


def _license_grant(model: AgentModel, options: Options, moment: datetime) -> Grant:
    assert options.license is not None
    key = _public_key(model, options)
    root = model.localize()
    try:
        content = read_beneath(root, options.license, limit=LARGEST, follow=False)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise NotFoundError(f"the model has no license file {options.license}") from None
    terms = read_license(content, key)
    terms.check(model.name, moment)
    if terms.hosts:
        terms.check_host(host_id())
    if terms.digest:
        _check_content(model, terms)
    if model.artifact_type is not ArtifactType.FILESYSTEM:
        # What was licensed is this copy, so this copy is what goes on.
        model.update_location(root)
    return Grant(f"the license for {terms.licensee}" if terms.licensee else "the license", terms.expires)


def _check_content(model: AgentModel, terms: Terms) -> None:
    digest = model_digest(model.localize(), model)
    model.report(digests={"model": digest})
    terms.check_content(digest)


def _public_key(model: AgentModel, options: Options) -> "Ed25519PublicKey":
    if options.public_key is not None:
        return read_key(model.key, options.public_key, read_public_key)
    root = model.trust_roots.get(options.trust_root or "")
    if root is None:
        raise InvalidArgumentError(f"the operator's policy has no trust root '{options.trust_root}' for this model")
    return read_public_key(root.read_bytes())
