"""Adds ``repoagent checksum`` to the command line."""

from collections.abc import Mapping

from repoagent.api.hooks import CommandSpec, hookimpl

__all__ = ["register_commands"]


@hookimpl
def register_commands() -> Mapping[str, CommandSpec]:
    """``repoagent checksum write`` and ``repoagent checksum verify``."""
    target = "repoagent_checksum.cli:checksum"
    return {"checksum": CommandSpec(target, "Write and verify the digests of a model's files.")}
