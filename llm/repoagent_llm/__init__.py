"""Language models: an executor with in-flight batching, in the manner of TensorRT-LLM's, and the backend ``llm``.

``from repoagent_llm import Executor, Request`` imports what it needs then. The plug-in of this package is looked at at
every start of the program, and must cost nothing.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repoagent_llm.interface import *  # noqa: F403 - what it names in __all__


def __getattr__(name: str) -> Any:
    if not name.startswith("__") and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    interface = import_module("repoagent_llm.interface")
    if name in ("__all__", "__version__") or name in interface.__all__:
        return getattr(interface, name)
    raise AttributeError(f"module 'repoagent_llm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(import_module("repoagent_llm.interface").__all__)
