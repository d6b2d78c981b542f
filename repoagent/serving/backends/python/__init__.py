"""Models written in Python, as for Triton's Python backend."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repoagent.serving.backends.python.backend import PythonBackend

__all__ = ["PythonBackend"]


def __getattr__(name: str) -> Any:
    # Not before someone asks: a model's own process needs the package, but not the backend and its libraries.
    if name == "PythonBackend":
        from repoagent.serving.backends.python.backend import PythonBackend

        return PythonBackend
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
