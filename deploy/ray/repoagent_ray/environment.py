"""Ray's own switches, without which a request through it takes several times as long."""

from collections.abc import Mapping
from typing import Any, Final

PROXY: Final = "RAY_SERVE_ENABLE_HA_PROXY"
CLUSTER: Final[Mapping[str, str]] = {PROXY: "1"}
"""For every process of Ray's, before it starts: HAProxy, which Ray brings along, takes requests and passes them to the
ingresses, in the place of a proxy in Python."""

_PROCESS: Final[Mapping[str, str]] = {
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str((1 << 31) - 1),
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
}
"""For the processes of this application: one event loop in each, as what blocks runs on threads here anyway; and
messages of any size between them."""


def in_process_of(actor: Mapping[str, Any]) -> dict[str, Any]:
    """Ray's options for ``actor``, whose process gets the switches that these do not set."""
    environment = actor.get("runtime_env", {})
    variables = {**_PROCESS, **environment.get("env_vars", {})}
    return {**actor, "runtime_env": {**environment, "env_vars": variables}}
