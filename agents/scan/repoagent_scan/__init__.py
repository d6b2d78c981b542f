"""A model repository agent that refuses models with files that run code, or of unknown formats.

The agent class is loaded on first use, because the command-line plug-in of this package is imported at every start.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repoagent_scan.agent import ScanAgent

__all__ = ["ScanAgent"]


def __getattr__(name: str) -> Any:
    if name == "ScanAgent":
        from repoagent_scan.agent import ScanAgent

        return ScanAgent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
