"""Who makes a call, for the audit log."""

from typing import Any, Final

from repoagent.audit import Actor
from repoagent_server.access import Caller

__all__ = ["acting_client", "request_id"]

_REQUEST_ID: Final = "x-request-id"


def acting_client(context: Any, caller: Caller | None) -> Actor:
    """The client of a call."""
    name = caller.name if caller is not None else ""
    return Actor("client", name, "grpc", request_id(context.invocation_metadata() or ()))


def request_id(metadata: Any) -> str:
    """The id that the client gave its call; empty if it gave none."""
    given = next((value for name, value in metadata if name == _REQUEST_ID), "")
    return given if isinstance(given, str) else ""
