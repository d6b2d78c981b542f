"""What a process that builds and the server write to each other: one order, then a line of JSON per event."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from repoagent.api.converters import Product
from repoagent.errors import ErrorCode, RepoAgentError, error_of
from repoagent.nested_text import read_json

LINE_BYTES: Final = 4 << 20
"""The longest line that is read: what a build has to report is small."""


_WHAT_CHARACTERS: Final = 200
_NOTE_CHARACTERS: Final = 2000
_MOST_NOTES: Final = 100


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """What is to be built: the converter as ``"module:attribute"``, and the job of its ``build``."""

    converter: str
    source: str
    target: str
    settings: Mapping[str, Any]
    confidential: bool
    environment: str = ""
    """The virtual environment that the process runs in; empty for that of this process."""
    inputs: Sequence[str] = ()
    """The files beneath ``source`` that may be read in a jail: there may be others beside them."""
    jail_bytes: int = 0
    """How much memory the process may take in a :mod:`~repoagent.beneath.jail`; 0 for no jail."""

    def to_json(self) -> str:
        """As text for :meth:`from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "BuildOrder":
        """The inverse of :meth:`to_json`."""
        return cls(**read_json(text))


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """How far the build is."""

    done: int
    total: int | None
    what: str


@dataclass(frozen=True, slots=True)
class FailureEvent:
    """The build raised. ``trace`` is empty where the converter raised on purpose."""

    error: RepoAgentError
    trace: str


def progress_line(done: int, total: int | None, what: str) -> str:
    """The line of a :class:`ProgressEvent`."""
    return json.dumps({"progress": [done, total, what]})


def product_line(product: Product) -> str:
    """The line of a :class:`~repoagent.api.converters.Product`, the last one."""
    return json.dumps({"annotations": dict(product.annotations), "notes": list(product.notes)}, allow_nan=False)


def error_line(code: int, message: str, trace: str) -> str:
    """The line of a :class:`FailureEvent`, the last one."""
    return json.dumps({"code": code, "message": message, "trace": trace})


def parse(line: bytes) -> ProgressEvent | FailureEvent | Product:
    """The event of a line. Raises ``ValueError`` if it is none: something else writes where only the converter's
    process should."""
    try:
        body = read_json(line)
        if "progress" in body:
            done, total, what = body["progress"]
            return ProgressEvent(
                _count(done), None if total is None else _count(total), one_line(what, _WHAT_CHARACTERS)
            )
        if "code" in body:
            trace = "\n".join(one_line(line, _NOTE_CHARACTERS) for line in str(body["trace"]).splitlines())
            return FailureEvent(error_of(ErrorCode(body["code"]), one_line(body["message"], _NOTE_CHARACTERS)), trace)
        notes = [one_line(note, _NOTE_CHARACTERS) for note in body["notes"][:_MOST_NOTES]]
        return Product(dict(body["annotations"]), tuple(notes))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"a line of a converter's process cannot be read: {error}") from error


def _count(value: Any) -> int:
    if not 0 <= (count := int(value)) < 1 << 63:
        raise ValueError("progress without end")
    return count


def one_line(text: object, most: int) -> str:
    """``text`` as one line of a report or a log: a model may have put its names into it."""
    return "".join(one if one.isprintable() else " " for one in str(text)[:most])
