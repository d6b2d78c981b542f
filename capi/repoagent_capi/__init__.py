"""repoagent in C: native agents in this server, and this server in C programs."""

from pathlib import Path
from typing import Final

__all__ = ["INCLUDE", "LIBRARY"]

_HERE: Final = Path(__file__).parent

INCLUDE: Final = _HERE / "include"
"""Where the headers are."""

LIBRARY: Final = _HERE / "lib" / "libtritonserver.so"
"""The C layer: what C programs link, and native agents call."""
