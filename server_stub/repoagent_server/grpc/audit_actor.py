"""Who makes a call, for the audit log."""

from typing import Any

from repoagent.audit import Actor
from repoagent_server.access import Caller
from repoagent_server.grpc.request_ids import request_id
from repoagent_server.shared.address import grpcio_address

__all__ = ["acting_client", "address"]


def address(context: Any) -> str:
    """Where the connection of a call comes from."""
    known: str | None = getattr(context, "address", None)
    return grpcio_address(context.peer()) if known is None else known


def acting_client(context: Any, caller: Caller | None) -> Actor:
    """The client of a call."""
    name = caller.name if caller is not None else ""
    manages = caller.manages if caller is not None else None
    return Actor("client", name, "grpc", request_id(context), address(context), manages)
