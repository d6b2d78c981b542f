"""Receipts of loads: what they state beside the report, and the plug-in that signs them."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Protocol

from repoagent.api.attesting import Attestation, AttestedLoad, Attestor, AttestorOptions
from repoagent.errors import RepoAgentError, UnavailableError, UnsupportedError
from repoagent.installing import install_hint
from repoagent.loader.discovery import AgentInfo
from repoagent.loader.plugins import PluginManager
from repoagent.storage.workspaces.private import check_parents


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestSettings:
    """The operator's wish for receipts."""

    key: str
    """The reference of the private key."""
    directory: Path | None = None
    required: bool = False
    """Whether a model is refused when its receipt cannot be made."""
    plaintext: bool = False
    """Whether receipts have digests of the plaintext of confidential models: they show who holds a file."""
    verifier: str = "urn:repoagent:server"


class _Finds(Protocol):
    def find(self, name: str) -> AgentInfo: ...


@dataclass(frozen=True, slots=True)
class Attesting:
    """Makes the receipts of a loader. Safe to use from any thread."""

    attestor: Attestor
    settings: AttestSettings
    agents: _Finds
    rule: Callable[[str], Mapping[str, Any]]
    """The policy, and which of its rules is for a model; empty without one."""

    def code(self, agent: str) -> Mapping[str, str]:
        """Where the code of ``agent`` comes from: its distribution, version and SHA-256 of the RECORD of that."""
        try:
            info = self.agents.find(agent)
        except RepoAgentError:
            return {}
        found = {"distribution": info.distribution, "version": info.version, "record_sha256": _record(info)}
        return {name: value for name, value in found.items() if value}

    def attest(self, load: AttestedLoad) -> Attestation:
        """The receipt of ``load``.

        Raises:
            UnavailableError: it cannot be made.
        """
        try:
            return self.attestor.attest(load)
        except Exception as error:  # whatever a plug-in raises, the load goes on to its end
            known = str(error) if isinstance(error, RepoAgentError) else type(error).__name__
            reason = error.strerror if isinstance(error, OSError) else known
            raise UnavailableError(f"the receipt of this load cannot be made: {reason}") from error


def open_attesting(
    settings: AttestSettings,
    key: bytes,
    plugins: PluginManager,
    agents: _Finds,
    rule: Callable[[str], Mapping[str, Any]],
) -> Attesting:
    """What makes receipts by ``settings``, with the plug-in that is installed for it.

    Raises:
        UnsupportedError: none is.
        InvalidArgumentError: another user owns the directory, or one above it, and could put old receipts there.
        RepoAgentError: it does not take the key, or the directory.
    """
    registered = plugins.registry("attestors")
    if not registered:
        hint = install_hint("repoagent-attest")
        raise UnsupportedError(f"--attest-key needs the package repoagent-attest, which is not installed; {hint}")
    if settings.directory is not None:
        check_parents(settings.directory / "receipt", purpose="receipt")
    module, _, attribute = next(iter(registered.values())).partition(":")
    make = getattr(import_module(module), attribute)
    attestor = make(AttestorOptions(key=key, directory=settings.directory, verifier=settings.verifier))
    return Attesting(attestor, settings, agents, rule)


def _record(info: AgentInfo) -> str:
    return _record_of(info.distribution) if info.distribution else ""


@cache
def _record_of(name: str) -> str:
    try:
        text = distribution(name).read_text("RECORD")
    except PackageNotFoundError:
        return ""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""
