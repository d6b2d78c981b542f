"""What this package adds to repoagent: the commands ``serve``, ``reload`` and ``access``."""

from collections.abc import Mapping

from repoagent.api.hooks import CommandSpec, hookimpl


@hookimpl
def register_commands() -> Mapping[str, CommandSpec]:
    return {
        "access": CommandSpec(
            "repoagent_server.program.access_command:access", "Make keys for clients, and check an access file."
        ),
        "reload": CommandSpec(
            "repoagent_server.program.reload_command:reload", "Replace the worker processes of a server that runs."
        ),
        "serve": CommandSpec(
            "repoagent_server.program.serve_command:serve", "Serve model repositories over HTTP and gRPC."
        ),
    }
