"""A model repository agent that refuses a model whose files do not have the digests they should have.

This module is the plug-in, which adds to the command line. Every start of the program imports it, so it imports nothing
heavy; the agent is :mod:`~repoagent_checksum.agent`.
"""

from collections.abc import Mapping

from repoagent.api.hooks import CommandSpec, hookimpl

__all__ = ["register_commands"]


@hookimpl
def register_commands() -> Mapping[str, CommandSpec]:
    """``repoagent checksum write`` and ``repoagent checksum verify``."""
    target = "repoagent_checksum.cli:checksum"
    return {"checksum": CommandSpec(target, "Write and verify the digests of a model's files.")}
