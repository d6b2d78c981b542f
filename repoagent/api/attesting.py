"""Receipts of loads: what the loader gives to a plug-in that signs one, and what it takes back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from repoagent.api.report import LoadReport


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestorOptions:
    """What the operator gave: the private key behind ``--attest-key``, and where receipts are written, if anywhere."""

    key: bytes = field(repr=False)
    directory: Path | None = None
    verifier: str
    """A URI that names this server in receipts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestedLoad:
    """A load that is over but for serving.

    ``trees`` has SHA-256 of the files of each tree, by path. The tree ``model`` is the model as it came, before any
    agent. ``served`` is what the agents left, where that differs and may be stated.

    What agents from the entry ``confidential_from`` on reported may be about plaintext that must not be stated. It is
    None where there is none.
    """

    report: LoadReport
    passed: bool
    trees: Mapping[str, Mapping[str, str]]
    confidential_from: int | None = None


@dataclass(frozen=True, slots=True)
class Attestation:
    """A receipt. ``document`` is what a client is sent; ``digest`` is SHA-256 of the payload of its summary."""

    document: bytes
    digest: str
    in_answers: bool = False
    """Whether answers to requests name the digest; the server sets it."""


class Attestor(Protocol):
    """What a plug-in registers a factory of: ``(AttestorOptions) -> Attestor``. Called by several threads at once."""

    def attest(self, load: AttestedLoad) -> Attestation:
        """Sign and write a receipt. It states that the load was judged, not that the model serves.

        Raises:
            RepoAgentError: it cannot be signed or written.
        """
