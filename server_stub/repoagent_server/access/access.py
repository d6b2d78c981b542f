"""Who may do what on one server: the rules in force, and the requests that they deny, counted and noted."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from repoagent.audit import NO_AUDIT, Actor, Audit
from repoagent.serving.measuring.prometheus import Family
from repoagent_server.access.clients import Asker, Caller
from repoagent_server.access.credentials import Given, PeerIdentity
from repoagent_server.access.rights import (
    AccessError,
    Cause,
    Need,
    NotAuthenticatedError,
    NotPermittedError,
    Right,
    Scope,
    for_model,
)
from repoagent_server.access.rules import Rules
from repoagent_server.access.tokens import TokenIssuer, UnknownKeyError

logger = logging.getLogger(__name__)

_INFERS: Final = for_model(Right.INFER)


@dataclass(frozen=True, slots=True)
class Denied:
    """A request that was not let in."""

    client: str
    """Its name in the access file; empty if the client is not known."""
    right: str
    """What it lacks; empty where it has no valid key."""
    model: str
    """As the client wrote it, with any character, shortened. Empty where no model was named."""
    route: str
    """Method and path of HTTP, as the client wrote them, shortened; or the path of a method of gRPC."""
    reason: str
    """What the client is answered."""
    protocol: str = "http"
    """``http`` or ``grpc``."""
    cause: Cause = Cause.NO_RIGHT
    """The reason, as metrics count it."""
    address: str = ""
    """Where the connection comes from; empty if that is not known."""
    request: str = ""
    """The client's ``x-request-id``, if it has sent one that is valid."""


Observer = Callable[[Denied], None]


class Access:
    """The access control of one server, for all of its front ends and threads.

    A front end finds out who asks with :meth:`caller` or :meth:`current`, checks with :meth:`require`, and reports what
    it refuses with :meth:`denied`.
    """

    def __init__(self, rules: Rules | None = None) -> None:
        """Begin with ``rules``; without them every request is denied."""
        self._rules: Rules = rules or Rules()
        self._observers: list[Observer] = []
        self._lock: Final = threading.Lock()
        self.on_unknown_key: Callable[[TokenIssuer], None] | None = None
        """Called when a token names a key that its issuer's set does not have: there may be a newer set."""

    @property
    def rules(self) -> Rules:
        """Those in force."""
        return self._rules

    def replace(self, rules: Rules) -> None:
        """Put ``rules`` in force: the next request of every client is judged by them."""
        self._rules = rules

    def observe(self, observer: Observer) -> None:
        """Have ``observer`` called for each denied request, on the thread that answers it, so it must be quick."""
        with self._lock:
            self._observers = [*self._observers, observer]

    def denied(
        self, error: AccessError, route: str, protocol: str = "http", *, address: str = "", request: str = ""
    ) -> None:
        """Report that a request to ``route`` is answered with ``error``: once for each error. Never raises."""
        if error.reported:
            return
        error.reported = True
        logger.debug("%s is denied: %s", route, error)
        event = Denied(
            error.client, error.right, error.model, route, error.message, protocol, error.cause, address, request
        )
        for observer in self._observers:
            try:
                observer(event)
            except Exception:  # The answer must not depend on who listens.
                logger.exception("an observer of denied requests failed")

    def caller(self, given: Given) -> Caller:
        """The client that ``given`` belongs to.

        Raises:
            NotAuthenticatedError: there is none.
        """
        try:
            return self._rules.caller(given)
        except UnknownKeyError as error:
            if self.on_unknown_key is not None:
                self.on_unknown_key(error.issuer)
            raise

    def current(self, caller: Caller) -> Caller:
        """``caller`` itself as long as it is good, else whom its key belongs to now. Raises as :meth:`caller`."""
        if caller.mark is self._rules.mark and (caller.expires is None or time.time() < caller.expires):
            return caller
        return self.caller(caller.given).at(caller.address, caller.request)

    def opens(self, need: Need) -> bool:
        """Whether an operation with ``need`` is for everybody."""
        return need.scope is Scope.OPEN or (need.opened_by != "" and need.opened_by in self._rules.opened)

    def require(self, caller: Caller, need: Need | None, model: str = "") -> None:
        """Check that ``caller`` has what an operation needs. ``model``: the one that the request names, if any.

        Raises:
            NotPermittedError: it lacks a right; or it is not stated what the operation needs.
        """
        if need is None:
            raise NotPermittedError("this operation is not open to clients of the access file", client=caller.name)
        scope, right = need.scope_for(model), need.right
        if right is None:
            return
        if scope is Scope.MODEL and not caller.may(right, model):
            raise NotPermittedError.lacks(caller.name, right, model)
        if scope is Scope.SERVER:
            self.require_all(caller, right)

    def judge(self, credential: Any, model: str) -> Actor:
        """Check what another process has passed on with a request for ``model``: what :func:`credential_of` made.

        Returns the client.

        Raises:
            AccessError: it is no client's that may infer with the model.
        """
        match credential:
            case [str(secret), list(names)] if all(isinstance(name, str) for name in names):
                given = Given(secret.encode(errors="replace"), PeerIdentity(tuple(names)) if names else None)
            case _:
                raise NotAuthenticatedError("a request of no client", given=False)
        caller = self.caller(given)
        self.require(caller, _INFERS, model)
        return caller.asker

    @staticmethod
    def require_all(caller: Caller, right: Right) -> None:
        """Check that ``caller`` has ``right`` for all models. Raises as :meth:`require`."""
        if not caller.may_all(right):
            raise NotPermittedError.lacks(caller.name, right, None)


def credential_of(asker: Actor | None) -> list[Any] | None:
    """What the client of a request has given, for another process of this server; None if it is no client's."""
    if not isinstance(asker, Asker):
        return None
    peer = asker.given.peer
    return [asker.given.secret.decode(), list(peer.names) if peer is not None else []]


_NAME: Final = "repoagent_denied_requests_total"
_HELP: Final = "Requests that were not let in, by protocol and reason"
_PROTOCOLS: Final = ("grpc", "http")


class Denials:
    """Thread-safe. An observer of :class:`Access`; front ends report what they refuse for other reasons."""

    def __init__(self, audit: Audit = NO_AUDIT) -> None:
        self._audit = audit
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(product(_PROTOCOLS, Cause), 0)

    def report(self, denied: Denied) -> None:
        """Take note of one; never waits."""
        with self._lock:
            self._counts[denied.protocol, denied.cause] += 1
        what = {"model": denied.model, "right": denied.right, "route": denied.route, "reason": denied.reason}
        actor = Actor("client", denied.client, denied.protocol, denied.request, denied.address)
        self._audit.note("denied", "denied", what, actor)

    def families(self) -> Iterable[Family]:
        """The counts. All of them are there from the start: an alert does not see a counter begin."""
        with self._lock:
            counts = list(self._counts.items())
        samples = [((("protocol", protocol), ("reason", cause.value)), count) for (protocol, cause), count in counts]
        return [Family(_NAME, "counter", _HELP, samples)]
