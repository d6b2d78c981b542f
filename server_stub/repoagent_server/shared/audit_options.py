"""Settings of the audit log."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["AuditOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Where the audit log is, and how much depends on it. Without a ``file`` there is none."""

    file: Path | None = None
    required: bool = False
    """Whether loads and changes of settings are refused when no line can be written."""
    sync: bool = True
    """Whether a line is on the disk before what it records goes on."""
    rotate_bytes: int = 0
    """The size after which a new file is begun; 0 is no limit."""
    key: str | None = None
    """The reference of a key: with it every line carries an HMAC."""
