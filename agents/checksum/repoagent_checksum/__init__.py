"""A model repository agent that refuses a model whose files do not have the digests they should have.

The agent class is loaded on first use, because the command-line plug-in of this package is imported at every start.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repoagent_checksum.agent import ChecksumAgent

__all__ = ["ChecksumAgent"]


def __getattr__(name: str) -> Any:
    if name == "ChecksumAgent":
        from repoagent_checksum.agent import ChecksumAgent

        return ChecksumAgent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
