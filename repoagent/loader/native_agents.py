"""Agents that are shared libraries for Triton. They run where ``repoagent-capi`` is installed, which has the C part."""

import importlib
from pathlib import Path
from typing import Any

from repoagent.errors import AgentUnsupportedError
from repoagent.installing import install_hint

__all__ = ["native_agent"]


def native_agent(name: str, library: Path) -> Any:
    """An agent that opens ``library`` when it is initialised.

    Raises:
        AgentUnsupportedError: the C part is not installed here, or does not fit.
    """
    try:
        native: Any = importlib.import_module("repoagent_capi.native")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "repoagent_capi":
            raise
        raise AgentUnsupportedError(
            name,
            f"{library} is a native agent, which needs the package repoagent-capi and a C compiler to build it; "
            f"{install_hint('repoagent-capi')}",
        ) from None
    except ImportError as error:
        raise AgentUnsupportedError(
            name,
            f"repoagent-capi does not fit this program ({error}); build it again, {install_hint('repoagent-capi')}",
        ) from error
    return native.NativeAgent(name, library)
