"""A model repository agent that refuses models with files that run code, or of unknown formats.

This module is the plug-in, which adds to the command line. Every start of the program imports it, so it imports nothing
heavy; the agent is :mod:`~repoagent_scan.agent`.
"""

from collections.abc import Mapping

from repoagent.api.hooks import CommandSpec, hookimpl


@hookimpl
def register_commands() -> Mapping[str, CommandSpec]:
    return {"scan": CommandSpec("repoagent_scan.cli:scan_command", "Look for files of a model that run code.")}
