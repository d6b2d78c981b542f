"""What a load did: a value that can be printed, logged and sent as JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ActionReport", "EntryReport", "LoadReport"]


@dataclass(frozen=True, slots=True)
class ActionReport:
    """One call of one agent.

    ``action`` is the name of an :class:`~repoagent.api.Action`. A failed ``initialize``, ``model_initialize``,
    ``model_finalize`` or ``finalize`` appears too, under that name in capitals. ``outcome`` is "ok", "failed" or
    "cancelled". ``seconds`` is wall time. Bytes, digests, notes, signers and evidence are what the agent itself
    reported.

    Each record of ``evidence`` describes one check of the model for an auditor. It names what was checked
    (``digest``), and where that comes from (``source``, ``revision``). It also has who checked it (``verifier``,
    ``version``), the ``time``, and the ``result``.
    """

    action: str
    outcome: str
    seconds: float
    bytes_read: int = 0
    bytes_written: int = 0
    digests: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str | None = None
    signers: tuple[str, ...] = ()
    evidence: tuple[Mapping[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        return {
            "action": self.action,
            "outcome": self.outcome,
            "seconds": self.seconds,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "digests": dict(self.digests),
            "notes": list(self.notes),
            "error": self.error,
            "signers": list(self.signers),
            "evidence": [dict(record) for record in self.evidence],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ActionReport":
        """The inverse of :meth:`to_dict`."""
        lists = {name: tuple(values.get(name, ())) for name in ("notes", "signers", "evidence")}
        return cls(**{**values, **lists})


@dataclass(frozen=True, slots=True)
class EntryReport:
    """One entry of the chain. ``index`` counts from 0; ``origin`` is who asked for it: "config" or a policy."""

    index: int
    agent: str
    origin: str
    actions: tuple[ActionReport, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        return {
            "index": self.index,
            "agent": self.agent,
            "origin": self.origin,
            "actions": [action.to_dict() for action in self.actions],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EntryReport":
        """The inverse of :meth:`to_dict`."""
        actions = tuple(ActionReport.from_dict(action) for action in values["actions"])
        return cls(values["index"], values["agent"], values["origin"], actions)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One load of one model, from its start to now.

    ``outcome`` is "loading", "loaded", "failed", "unloading" or "unloaded"; ``seconds`` is how long the load took, or
    has taken so far; ``error`` is why it failed.
    """

    model: str
    outcome: str
    seconds: float
    entries: tuple[EntryReport, ...] = ()
    error: str | None = None

    @property
    def summary(self) -> str:
        """One line: the model, how it ended, after how long, and why."""
        reason = f": {' '.join(self.error.split())}" if self.error else ""
        return f"model '{self.model}' {self.outcome} after {self.seconds:.3f} s{reason}"

    def lines(self) -> list[str]:
        """One line per agent and action, with seconds and bytes, in the order of the chain."""
        rows = [(entry.agent, action) for entry in self.entries for action in entry.actions]
        width = max((len(agent) for agent, _ in rows), default=0)
        return [_line(agent, width, action) for agent, action in rows]

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        return {
            "model": self.model,
            "outcome": self.outcome,
            "seconds": self.seconds,
            "error": self.error,
            "entries": [entry.to_dict() for entry in self.entries],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LoadReport":
        """The report that :meth:`to_dict` described, for example one that a server sent."""
        entries = tuple(EntryReport.from_dict(entry) for entry in values["entries"])
        return cls(values["model"], values["outcome"], values["seconds"], entries, values["error"])

    def to_json(self) -> str:
        """The report as one line of JSON."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"  {line}" for line in self.lines())])


def _line(agent: str, width: int, action: ActionReport) -> str:
    amounts = f"read {_size(action.bytes_read):>8}  written {_size(action.bytes_written):>8}"
    line = f"{agent:<{width}}  {action.action:<15}  {action.outcome:<9}  {action.seconds:8.3f} s  {amounts}"
    remarks = [*action.notes, *([action.error] if action.error else [])]
    return f"{line}  {'; '.join(remarks)}" if remarks else line


def _size(count: int) -> str:
    """Bytes for a reader: ``999 B``, ``1.5 kB``, ``2.0 GB``."""
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} TB"
