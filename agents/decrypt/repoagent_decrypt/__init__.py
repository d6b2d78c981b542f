"""A model repository agent that decrypts age files into memory or tmpfs, with keys given by reference.

:mod:`~repoagent_decrypt.agent` is the agent, :mod:`~repoagent_decrypt.age` the file format (it knows nothing of
agents), :mod:`~repoagent_decrypt.providers` where keys come from, :mod:`~repoagent_decrypt.cli` the commands.

This module is the plug-in, which every start of the program imports: it imports nothing heavy itself.
"""

from collections.abc import Mapping

from repoagent.api.hooks import CommandSpec, hookimpl


@hookimpl
def register_key_providers() -> Mapping[str, str]:
    """Where keys can be besides ``env:``, ``file:`` and ``exec:``."""
    schemes = ("awskms", "azurekv", "gcpkms", "kbs", "tpm", "vault")
    return {scheme: f"repoagent_decrypt.providers.{scheme}:fetch" for scheme in schemes}


@hookimpl
def register_commands() -> Mapping[str, CommandSpec]:
    """The author's side: encrypting what the agent decrypts."""
    return {
        "decrypt": CommandSpec("repoagent_decrypt.cli.commands:decrypt", "Decrypt an encrypted model directory."),
        "encrypt": CommandSpec("repoagent_decrypt.cli.commands:encrypt", "Encrypt a model directory with age."),
        "keygen": CommandSpec(
            "repoagent_decrypt.cli.commands:keygen", "Make an age key pair, or show its public half."
        ),
        "rekey": CommandSpec("repoagent_decrypt.cli.commands:rekey", "Give an encrypted model new recipients."),
    }
