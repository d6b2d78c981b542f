"""What the audit log gets of a load: its start, its end with what every agent saw, and its unload."""

import hashlib
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from repoagent.api.report import LoadReport
from repoagent.audit import OPERATOR, Audit, current_actor
from repoagent.beneath.digests import tree_digest
from repoagent.config import ModelConfig

_VARIABLE: Final = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_MOST_DIGESTS: Final = 50


class LoadAudit:
    """Records one load of ``model``. Used by one thread at a time."""

    def __init__(self, audit: Audit, model: str) -> None:
        self._audit = audit
        self._model = model
        self._what: dict[str, Any] = {"model": model}
        self._attested = False
        self._leaving = OPERATOR

    def started(self) -> None:
        """The load begins: nothing of the model has been read. It must not if this raises ``AuditError``."""
        self._audit.demand("load", "started", self._what)

    def prepared(self, location: str, config_text: str | None, override: ModelConfig | None) -> None:
        """Keep, for the line at the end, what the load goes by."""
        self._what["location"] = location
        if config_text is not None:
            self._what["config_sha256"] = _sha256(config_text.encode("utf-8", "surrogateescape"))
        if override is not None:
            self._what["override_sha256"] = _sha256(override.SerializeToString(deterministic=True))

    @property
    def facts(self) -> dict[str, Any]:
        """The digests of what the load goes by, and the last line of the audit log, where there is one."""
        head = getattr(self._audit, "head", None)  # that of one server's own file
        line = {} if head is None else {"audit": {"seq": head.seq, "hash": head.hash}}
        return line | {name: value for name, value in self._what.items() if name.endswith("_sha256")}

    def attest(self, report: LoadReport, versions: Sequence[int] = ()) -> None:
        """The model is about to serve, in ``versions``. It must not if this raises ``AuditError``."""
        if versions:
            self._what["versions"] = list(versions)
        if not self._attested:
            self._audit.demand("load", "loaded", self._ended(report))
            self._attested = True

    def loaded(self, report: LoadReport) -> None:
        """The model serves, by the word of who did not :meth:`attest` it before."""
        if not self._attested:
            self._audit.record("load", "loaded", self._ended(report))
            self._attested = True

    def failed(self, report: LoadReport, *, cancelled: bool) -> None:
        """The load has ended without the model."""
        self._audit.record("load", "cancelled" if cancelled else "failed", self._ended(report))

    def leaving(self) -> None:
        """The model is about to go."""
        self._leaving = current_actor()
        self._audit.record("unload", "started", {"model": self._model}, self._leaving)

    def gone(self) -> None:
        self._audit.record("unload", "unloaded", {"model": self._model}, self._leaving)

    def builders_disagree(self, what: str) -> None:
        """Builders that are trusted made different results of the same."""
        self._audit.record("conversion", "disagreed", {"model": self._model, "error": what})

    def key_used(self, agent: str, shown: str) -> None:
        """An agent is about to get the key of a reference, shown as ``shown``; not if this raises ``AuditError``."""
        self._audit.demand("key", "used", {"model": self._model, "agent": agent, "reference": shown})

    def key_failed(self, agent: str, shown: str, error: Exception) -> None:
        """There is no key behind the reference."""
        what = {"model": self._model, "agent": agent, "reference": shown, "error": type(error).__name__}
        self._audit.record("key", "failed", what)

    def _ended(self, report: LoadReport) -> Mapping[str, Any]:
        what = self._what | {"milliseconds": round(report.seconds * 1000), "agents": _agents(report)}
        if "attestation" in report.details:
            what["attestation"] = report.details["attestation"]
        return what | ({"error": report.error} if report.error else {})


def shown_reference(reference: str, schemes: Container[str]) -> str:
    """A key reference without what could be a secret.

    What has none of the ``schemes`` may be the key itself; what follows a scheme of a plug-in, or a program's name, may
    hold a credential. Of those there is a digest, which distinguishes them.
    """
    scheme, colon, rest = reference.partition(":")
    if not colon or scheme not in schemes:
        return "not a reference"
    if _VARIABLE.fullmatch(reference) or (scheme == "file" and rest.startswith("/")):
        return reference
    return f"{scheme}:... (SHA-256 {_sha256(reference.encode('utf-8', 'surrogateescape'))})"


def _agents(report: LoadReport) -> list[dict[str, Any]]:
    return [
        {
            "agent": entry.agent,
            "origin": entry.origin,
            "outcome": next((a.outcome for a in entry.actions if a.outcome != "ok"), "ok"),
            "digests": _digests({name: digest for action in entry.actions for name, digest in action.digests.items()}),
            "signers": sorted({signer for action in entry.actions for signer in action.signers}),
            "notes": [note for action in entry.actions for note in action.notes],
            "evidence": [dict(record) for action in entry.actions for record in action.evidence],
        }
        for entry in report.entries
    ]


def _digests(digests: Mapping[str, str]) -> dict[str, str]:
    """All of them, or, of many files, one digest of the list that ``sha256sum`` would print."""
    if len(digests) <= _MOST_DIGESTS:
        return dict(digests)
    return {f"{len(digests)} files": tree_digest(digests)}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
