"""Who may do what: clients, their keys, tokens and certificates, and their rights."""

from repoagent_server.access.access import Access, Denied
from repoagent_server.access.clients import Caller, Client, Grant
from repoagent_server.access.credentials import PeerIdentity
from repoagent_server.access.rights import (
    AccessError,
    Cause,
    Need,
    NotAuthenticatedError,
    NotPermittedError,
    Right,
    Scope,
)

__all__ = [
    "Access",
    "AccessError",
    "Caller",
    "Cause",
    "Client",
    "Denied",
    "Grant",
    "Need",
    "NotAuthenticatedError",
    "NotPermittedError",
    "PeerIdentity",
    "Right",
    "Scope",
]
