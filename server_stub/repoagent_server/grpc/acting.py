"""Who makes a call, for the audit log."""

from typing import Any

from repoagent.audit import Actor
from repoagent_server.access import Caller
from repoagent_server.grpc.request_ids import request_id

__all__ = ["acting_client"]


def acting_client(context: Any, caller: Caller | None) -> Actor:
    """The client of a call."""
    name = caller.name if caller is not None else ""
    return Actor("client", name, "grpc", request_id(context))
