"""Adds ``repoagent sign`` and ``repoagent verify`` to the command line."""

from collections.abc import Mapping

from repoagent.api.hooks import CommandSpec, hookimpl

__all__ = ["register_commands"]


@hookimpl
def register_commands() -> Mapping[str, CommandSpec]:
    return {
        "sign": CommandSpec("repoagent_verify.cli:sign_command", "Sign a model with a key or a certificate."),
        "verify": CommandSpec("repoagent_verify.cli:verify_command", "Verify the signature of a model."),
    }
