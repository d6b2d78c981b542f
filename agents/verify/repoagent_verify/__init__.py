"""A model repository agent that refuses a model that is not what a trusted signer signed.

The agent class is loaded on first use, because the command-line plug-in of this package is imported at every start.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repoagent_verify.agent import VerifyAgent

__all__ = ["VerifyAgent"]


def __getattr__(name: str) -> Any:
    if name == "VerifyAgent":
        from repoagent_verify.agent import VerifyAgent

        return VerifyAgent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
