"""What this package adds to repoagent: the ``serve`` command."""

from collections.abc import Mapping

from repoagent.api.hooks import CommandSpec, hookimpl

__all__ = ["register_commands"]


@hookimpl
def register_commands() -> Mapping[str, CommandSpec]:
    return {
        "serve": CommandSpec(
            "repoagent_server.program.serve_command:serve", "Serve model repositories over HTTP and gRPC."
        )
    }
