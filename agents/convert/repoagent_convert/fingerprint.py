"""The name under which a result is kept: a digest of everything that it depends on."""

import hashlib
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from repoagent.api import AgentModel, CancelledError

__all__ = ["cache_key", "digest_parts", "machine"]

_CPU_INFO: Final = Path("/proc/cpuinfo")
_BUFFER_BYTES: Final = 1 << 20


def digest_parts(root: Path, paths: Iterable[str], model: AgentModel) -> str:
    """SHA-256 over names and contents of files, in hexadecimal digits; tells ``model`` of the progress.

    Raises:
        CancelledError: nobody waits for the model any more.
    """
    total = hashlib.sha256()
    for path in paths:
        content = hashlib.sha256()
        size = (root / path).stat().st_size
        done = 0
        with (root / path).open("rb", buffering=0) as file:
            while data := file.read(_BUFFER_BYTES):
                content.update(data)
                done += len(data)
                model.progress(done, size, f"reading {path}")
                if model.cancelled:
                    raise CancelledError("the conversion was given up: the load was cancelled")
        total.update(f"{content.hexdigest()}  {path.partition('/')[2]}\n".encode())
    return total.hexdigest()


def machine() -> list[str]:
    """The kind of processor and what it can do; the same on machines between which results may be exchanged."""
    features: list[str] = []
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                features = sorted(value.split())
                break
    return [platform.machine(), *features]


def cache_key(**depends_on: Any) -> str:
    """A name made of all that ``depends_on`` says; its values go through JSON."""
    text = json.dumps(depends_on, sort_keys=True)
    return f"convert-{hashlib.sha256(text.encode()).hexdigest()}"
