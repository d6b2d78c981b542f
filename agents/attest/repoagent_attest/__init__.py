"""Signed receipts of what a server loaded.

This module is the plug-in: it offers the attestor and a command. Every start of the program imports it, so it imports
nothing heavy; the attestor is :mod:`~repoagent_attest.attestor`.
"""

from collections.abc import Mapping

from repoagent.api.hooks import CommandSpec, hookimpl

__all__ = ["register_attestors", "register_commands", "register_key_providers"]


@hookimpl
def register_attestors() -> Mapping[str, str]:
    return {"dsse": "repoagent_attest.attestor:DsseAttestor"}


@hookimpl
def register_key_providers() -> Mapping[str, str]:
    """Keys that sign where they are."""
    return {"signer": "repoagent_attest.attestor:reference"}


@hookimpl
def register_commands() -> Mapping[str, CommandSpec]:
    return {"attest": CommandSpec("repoagent_attest.cli:attest_group", "Verify receipts of loads.")}
