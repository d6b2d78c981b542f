"""What this package adds to the program ``repoagent``."""

from collections.abc import Mapping

from repoagent.api.hooks import CommandSpec, hookimpl


@hookimpl
def register_commands() -> Mapping[str, CommandSpec]:
    """``repoagent bridge``."""
    return {"bridge": CommandSpec("repoagent_capi.command:bridge", "Use agents of this environment in a stock Triton.")}
