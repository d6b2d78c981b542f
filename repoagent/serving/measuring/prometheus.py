"""Prometheus' text format, version 0.0.4.

Written by hand because the client library appends ``_total`` to the names of counters, and dashboards made for Triton
look for names without it. A test reads what this writes with that library.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from repoagent.public_text import writable

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[Sequence[tuple[str, str]], float]
"""Labels with their values, and the value."""

Part = tuple[str, Sequence[tuple[str, str]], float]
"""The same after what is appended to the family's name: ``_sum``, ``_bucket`` and so on, or nothing."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, what it counts, and its values by label.

    ``kind`` is "counter" or "gauge", with ``samples``; or "summary" or "histogram", with ``parts``.
    """

    name: str
    kind: str
    help: str
    samples: Sequence[Sample] = ()
    parts: Sequence[Part] = ()


def render(families: Iterable[Family]) -> str:
    """All families with at least one sample."""
    return "".join(_family(family) for family in families if family.samples or family.parts)


def _family(family: Family) -> str:
    lines = [f"# HELP {family.name} {_escape(family.help)}", f"# TYPE {family.name} {family.kind}"]
    lines += [f"{family.name}{_labels(labels)} {number(value)}" for labels, value in family.samples]
    lines += [f"{family.name}{suffix}{_labels(labels)} {number(value)}" for suffix, labels, value in family.parts]
    return "\n".join(lines) + "\n"


def _labels(labels: Sequence[tuple[str, str]]) -> str:
    if not labels:
        return ""
    quoted = ((name, _escape(value).replace('"', '\\"')) for name, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for name, value in quoted) + "}"


def _escape(text: str) -> str:
    return writable(text).replace("\\", "\\\\").replace("\n", "\\n")


def number(value: float) -> str:
    """A value, or the upper bound of a bucket."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
