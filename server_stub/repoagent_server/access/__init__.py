"""Who may do what: clients, their keys, tokens and certificates, and their rights."""

from repoagent_server.access.access import Access, Denied
from repoagent_server.access.clients import Caller, Client, Grant
from repoagent_server.access.errors import AccessError, Cause, NotAuthenticatedError, NotPermittedError
from repoagent_server.access.identity import PeerIdentity
from repoagent_server.access.rights import Need, Right, Scope

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
