"""Which model some code belongs to, and what that model may ask of the server."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from repoagent.serving.backends.python.model.errors import TritonModelException
from repoagent.serving.requests.request import InferRequest

__all__ = ["CoreAccess", "ModelContext", "current", "entered", "running"]


class CoreAccess(Protocol):
    """What a Python model may ask of the server that it runs in."""

    def submit(self, request: InferRequest) -> None:
        """Answer ``request`` through its sender."""

    def cancel(self, request: InferRequest) -> None:
        """Give up a request that was submitted; it is still answered."""

    def load(self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None) -> object:
        """Load a model; raises a RepoAgentError."""

    def unload(self, name: str, *, unload_dependents: bool = False, wait: bool = True) -> None:
        """Unload a model; without ``wait`` return as soon as no new request reaches it."""

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether the model answers requests."""


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The model whose code runs. ``model_dir`` is the directory of the version that is loaded."""

    model_name: str
    model_version: str
    model_dir: Path
    core: CoreAccess


running: Final[ContextVar[ModelContext]] = ContextVar("repoagent_python_model")
"""Set while code of a model runs."""


def current() -> ModelContext:
    """The model that the calling thread works for.

    Raises:
        TritonModelException: it works for none.
    """
    try:
        return running.get()
    except LookupError:
        raise TritonModelException(
            "the model that calls this is not known on this thread; import triton_python_backend_utils at the top of "
            "model.py rather than inside a function"
        ) from None


@contextmanager
def entered(context: ModelContext) -> Iterator[None]:
    """Run a block as the code of the model of ``context``."""
    token = running.set(context)
    try:
        yield
    finally:
        running.reset(token)
