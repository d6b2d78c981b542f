"""Who makes a request, for the audit log."""

from contextlib import AbstractContextManager

from repoagent.audit import Actor, acting_as
from repoagent_server.http.messages import Request

__all__ = ["acting"]


def acting(request: Request) -> AbstractContextManager[None]:
    """For a ``with`` block: what happens in it is done by the client of ``request``."""
    name = request.caller.name if request.caller is not None else ""
    manages = request.caller.manages if request.caller is not None else None
    return acting_as(Actor("client", name, "http", request.id, request.address, manages))
