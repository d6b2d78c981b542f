"""A model repository agent that loads a model only while a signed license or an HTTP endpoint allows it.

The agent class is loaded on first use, because the command-line plug-in of this package is imported at every start.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repoagent_license.agent import LicenseAgent

__all__ = ["LicenseAgent"]


def __getattr__(name: str) -> Any:
    if name == "LicenseAgent":
        from repoagent_license.agent import LicenseAgent

        return LicenseAgent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
