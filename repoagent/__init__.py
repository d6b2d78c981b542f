"""Model repository agents: code that runs when a model is loaded or unloaded.

Importing this package is cheap on purpose: it pulls in none of the heavy libraries. Authors of agents import
:mod:`repoagent.api`; people who embed the server import :mod:`repoagent.server`.
"""

from typing import Final

__version__: Final = "0.1.0"

__all__ = ["__version__"]
