"""What the processor of this machine can do, for results that depend on it."""

import hashlib
import platform
from pathlib import Path
from typing import Final

__all__ = ["has_vnni", "processor"]

_CPU_INFO: Final = Path("/proc/cpuinfo")


def processor() -> str:
    """The same text on machines between which results may be exchanged."""
    digest = hashlib.sha256(" ".join(sorted(_features())).encode()).hexdigest()
    return f"{platform.machine()} with the features {digest[:16]}"


def has_vnni() -> bool:
    """Whether products of eight bits are added in 32: else pairs of them are added in 16, and may saturate."""
    return any("vnni" in feature for feature in _features())


def _features() -> set[str]:
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return set(value.split())
    return set()
