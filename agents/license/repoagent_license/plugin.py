"""Adds ``repoagent license`` to the command line."""

from collections.abc import Mapping

from repoagent.api.hooks import CommandSpec, hookimpl

__all__ = ["register_commands"]


@hookimpl
def register_commands() -> Mapping[str, CommandSpec]:
    return {"license": CommandSpec("repoagent_license.cli:license_group", "Issue and show licenses of models.")}
