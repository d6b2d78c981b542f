"""``/v1/models``: the models that these routes can ask."""

import time
from typing import Any

from repoagent.errors import NotFoundError, RepoAgentError
from repoagent_server.access import Caller
from repoagent_server.handlers.visible import visible
from repoagent_server.openai.embeddings import makes_embeddings
from repoagent_server.openai.errors import ModelNotFoundError
from repoagent_server.openai.tensors import makes_text
from repoagent_server.shared.core import Core

__all__ = ["ModelList", "metadata_of"]


def metadata_of(core: Core, model: str) -> dict[str, Any]:
    """The metadata of a model.

    Raises:
        ModelNotFoundError: there is no such model.
    """
    try:
        return core.model_metadata(model, "")
    except NotFoundError as error:
        raise ModelNotFoundError(f"The model '{model}' does not exist: {error.message}") from None


class ModelList:
    """What a core serves."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._created = int(time.time())

    def all(self, caller: Caller | None = None) -> dict[str, Any]:
        """The models that are ready, make texts or embeddings, and are for the eyes of ``caller``, if there is one."""
        rows = visible(self._core.index(ready_only=True), caller)
        names = dict.fromkeys(row["name"] for row in rows)
        return {"object": "list", "data": [self._entry(name) for name in names if self._fits(name)]}

    def one(self, model: str) -> dict[str, Any]:
        """One of them.

        Raises:
            ModelNotFoundError: it is not there, or not ready.
        """
        metadata_of(self._core, model)
        if not self._core.model_ready(model):
            raise ModelNotFoundError(f"The model '{model}' is not ready")
        return self._entry(model)

    def _fits(self, model: str) -> bool:
        try:
            metadata = self._core.model_metadata(model, "")
        except RepoAgentError:
            return False  # It is being unloaded.
        return makes_text(metadata) or makes_embeddings(metadata)

    def _entry(self, model: str) -> dict[str, Any]:
        return {"id": model, "object": "model", "created": self._created, "owned_by": "repoagent"}
