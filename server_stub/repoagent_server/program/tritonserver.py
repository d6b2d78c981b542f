"""The console script ``tritonserver``: ``repoagent serve`` with the defaults of Triton's program.

So the command lines of charts, operators and images that were written for Triton start this server unchanged.
"""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

_EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - this is what the program is for

DEFAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {"--http-address": _EVERYWHERE, "--grpc-address": _EVERYWHERE, "--allow-open": "true"}
)
"""Flag -> Triton's default, where it is not that of ``repoagent serve``. ``--metrics-address`` follows HTTP in both."""

KEPT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--allow-load-parameters": "Triton accepts configurations and files of any client; here the flag allows it",
        "--allow-client-shm": "Triton lets any client register shared memory; here the flag allows it",
        "--grpc-max-message-size": "Triton accepts 2 GiB; here the default follows the memory of the container",
        "--cache-directory": "Triton looks there for libraries of response caches; here downloads are kept there",
        "--http-allowed-host": "Triton answers pages of other sites; here the flag allows it",
    }
)
"""Flag -> what Triton does, and why ``tritonserver`` keeps the default or the meaning of ``repoagent serve``."""

_VERTEX: Final = "PREDICTION"


def defaults(environment: Mapping[str, str]) -> dict[str, Any]:
    """Parameter of the command -> its default. On Vertex AI, its endpoint takes the place of the others."""
    found: dict[str, Any] = {_parameter(flag): value for flag, value in DEFAULTS.items()}
    if environment.get("AIP_MODE") == _VERTEX:
        found |= {"allow_vertex_ai": "true", "allow_http": "false", "allow_grpc": "false"}
    if environment.get("AIP_STORAGE_URI"):
        found["model_repository"] = [environment["AIP_STORAGE_URI"]]
    return found


def main() -> None:
    """Run the server; exit status and messages are those of ``repoagent serve``."""
    from repoagent.cli.main import load, run

    run(load("repoagent_server.program.serve_command:serve"), "tritonserver", default_map=defaults(os.environ))


def _parameter(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
