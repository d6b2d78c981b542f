"""A model repository agent that refuses a model that is not what a trusted signer signed.

This module is the plug-in, which adds to the command line. Every start of the program imports it, so it imports nothing
heavy; the agent is :mod:`~repoagent_verify.agent`.
"""

from collections.abc import Mapping

from repoagent.api.hooks import CommandSpec, hookimpl


@hookimpl
def register_commands() -> Mapping[str, CommandSpec]:
    return {
        "sign": CommandSpec("repoagent_verify.cli:sign_command", "Sign a model with a key or a certificate."),
        "verify": CommandSpec("repoagent_verify.cli:verify_command", "Verify the signature of a model."),
    }
