"""A model repository agent that loads a model only while a signed license or an HTTP endpoint allows it.

This module is the plug-in, which adds to the command line. Every start of the program imports it, so it imports nothing
heavy; the agent is :mod:`~repoagent_license.agent`.
"""

from collections.abc import Mapping

from repoagent.api.hooks import CommandSpec, hookimpl

__all__ = ["register_commands"]


@hookimpl
def register_commands() -> Mapping[str, CommandSpec]:
    return {"license": CommandSpec("repoagent_license.cli:license_group", "Issue and show licenses of models.")}
