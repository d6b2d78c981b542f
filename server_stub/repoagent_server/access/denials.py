"""Requests that were not let in: counted for the metrics page, and noted in the audit log."""

import threading
from collections.abc import Iterable
from itertools import product
from typing import Final

from repoagent.audit import NO_AUDIT, Actor, Audit
from repoagent.server.exposition.text import Family
from repoagent_server.access.access import Denied
from repoagent_server.access.errors import Cause

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
