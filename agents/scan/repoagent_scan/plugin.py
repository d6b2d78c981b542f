"""Adds ``repoagent scan`` to the command line."""

from collections.abc import Mapping

from repoagent.api.hooks import CommandSpec, hookimpl

__all__ = ["register_commands"]


@hookimpl
def register_commands() -> Mapping[str, CommandSpec]:
    return {"scan": CommandSpec("repoagent_scan.cli:scan_command", "Look for files of a model that run code.")}
