"""The moments at which agents are called, and what a load did: a value that can be printed, logged and sent as JSON."""

import enum
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final


class Action(enum.IntEnum):
    """What the server is doing with the model; numbers as in ``TRITONREPOAGENT_ActionType``."""

    LOAD = 0
    LOAD_COMPLETE = 1
    LOAD_FAIL = 2
    UNLOAD = 3
    UNLOAD_COMPLETE = 4


class ArtifactType(enum.IntEnum):
    """Where ``AgentModel.location`` points; numbers as in ``TRITONREPOAGENT_ArtifactType``."""

    FILESYSTEM = 0
    """A directory on this machine."""
    REMOTE_FILESYSTEM = 1
    """An fsspec URL such as ``s3://bucket/model``; ``AgentModel.localize()`` brings it here."""


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
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ActionReport":
        """The inverse of :meth:`to_dict`."""
        read: Mapping[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**read)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class EntryReport:
    """One entry of the chain. ``index`` counts from 0; ``origin`` is who asked for it: "config" or a policy.

    ``code`` is where the agent's code comes from (``distribution``, ``version``, ``record_sha256``), where a receipt is
    made of the load. Without ``record_sha256``, RECORD may list other code than that which runs.
    """

    index: int
    agent: str
    origin: str
    actions: tuple[ActionReport, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        return {
            "index": self.index,
            "agent": self.agent,
            "origin": self.origin,
            **({"code": dict(self.code)} if self.code else {}),
            "actions": [action.to_dict() for action in self.actions],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EntryReport":
        """The inverse of :meth:`to_dict`."""
        actions = tuple(ActionReport.from_dict(action) for action in values["actions"])
        return cls(values["index"], values["agent"], values["origin"], actions, values.get("code", {}))


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One load of one model, from its start to now.

    ``outcome`` is "loading", "loaded", "failed", "unloading" or "unloaded"; ``seconds`` is how long the load took, or
    has taken so far; ``error`` is why it failed.

    ``size`` is the bytes of the model's files in its repository, 0 where that is not known.

    ``details`` are for an auditor: when the load ``started``, ``source`` and ``revision`` of the model,
    ``config_sha256``, ``override_sha256``, ``versions``. With receipts also the ``policy`` and the digest of the
    ``attestation``.
    """

    model: str
    outcome: str
    seconds: float
    entries: tuple[EntryReport, ...] = ()
    error: str | None = None
    size: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

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
            "size": self.size,
            **({"details": dict(self.details)} if self.details else {}),
            "entries": [entry.to_dict() for entry in self.entries],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LoadReport":
        """The report that :meth:`to_dict` described, for example one that a server sent."""
        entries = tuple(EntryReport.from_dict(entry) for entry in values["entries"])
        return cls(
            values["model"],
            values["outcome"],
            values["seconds"],
            entries,
            values["error"],
            values.get("size", 0),
            values.get("details", {}),
        )

    def to_json(self) -> str:
        """The report as one line of JSON."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"  {line}" for line in self.lines())])

    def _repr_html_(self) -> str:
        """What a notebook shows: the calls of the agents over time, with bytes, notes and errors."""
        actions = [(entry.agent, action) for entry in self.entries for action in entry.actions]
        whole = max(sum(action.seconds for _, action in actions), 1e-9)
        rows, start = [], 0.0
        for agent, action in actions:
            remarks = "; ".join([*action.notes, *([action.error] if action.error else [])])
            bar = _Bar(start / whole, action.seconds / whole, failed=action.outcome == "failed")
            read, written = size_text(action.bytes_read), size_text(action.bytes_written)
            rows.append([agent, action.action, action.outcome, bar, f"{action.seconds:.3f} s", read, written, remarks])
            start += action.seconds
        return html_table(self.summary, ("agent", "action", "outcome", "time", "", "read", "written", "notes"), rows)


@dataclass(frozen=True, slots=True)
class _Bar:
    """A cell with a bar from ``start`` on, of ``length``; both are shares of its width."""

    start: float
    length: float
    failed: bool

    def __str__(self) -> str:
        color = "#c0392b" if self.failed else "#2e7d6b"
        place = f"margin-left:{self.start * 100:.1f}%;width:{self.length * 100:.1f}%;min-width:1px"
        return f'<div style="width:12em"><div style="{place};height:.8em;background:{color}"></div></div>'


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for a notebook. Texts are escaped."""

    def row(cells: Sequence[object], kind: str) -> str:
        texts = (str(cell) if isinstance(cell, _Bar) else html.escape(str(cell)) for cell in cells)
        return "<tr>" + "".join(f'<{kind} style="text-align:left">{text}</{kind}>' for text in texts) + "</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    return f"<table><caption>{html.escape(caption)}</caption>{row(head, 'th')}{body}</table>"


def _line(agent: str, width: int, action: ActionReport) -> str:
    amounts = f"read {size_text(action.bytes_read):>8}  written {size_text(action.bytes_written):>8}"
    line = f"{agent:<{width}}  {action.action:<15}  {action.outcome:<9}  {action.seconds:8.3f} s  {amounts}"
    remarks = [*action.notes, *([action.error] if action.error else [])]
    return f"{line}  {'; '.join(remarks)}" if remarks else line


_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def size_text(count: int) -> str:
    """Bytes for a reader: ``999 B``, ``1.5 kB``, ``2.0 GB``."""
    power = _power(count)
    return f"{_in_unit(count, power)} {_UNITS[power]}"


def amount_text(done: int, total: int | None, what: str = "") -> str:
    """How far work is: ``1.2 of 4.1 GB``, or of the steps that ``what`` names: ``building the plan, 25%``."""
    if what:
        return f"{what}, {min(max(done / total, 0.0), 1.0):.0%}" if total else f"{what} {done or ''}".rstrip()
    return f"{_in_unit(done, _power(total))} of {size_text(total)}" if total else size_text(done)


def _power(count: int) -> int:
    power = 0
    while power < len(_UNITS) - 1 and count / 1000**power >= (999.95 if power else 1000):
        power += 1
    return power


def _in_unit(count: int, power: int) -> str:
    return f"{count / 1000**power:.1f}" if power else f"{count}"
