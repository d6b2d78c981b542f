"""What native agents ask about the model that they are called for."""

import json
from typing import Any, Final

from repoagent.api import AgentModel, ArtifactType
from repoagent.config import ModelConfig, write_json
from repoagent.loader.agent_model import EntryModel
from repoagent_capi._crossing import lib
from repoagent_capi.errors import as_bytes, as_text, crossing
from repoagent_capi.objects import Objects

MODELS: Final[Objects[AgentModel]] = Objects("model")
"""The models that native agents are called for, from their model_initialize to their model_finalize."""


def set_text(text: Any, value: str) -> None:
    """Hand ``value`` to C."""
    raw = as_bytes(value)
    lib.repoagent_text_set(text, raw, len(raw))


@crossing
def agent_location(model: int, kind: Any, location: Any) -> None:
    found = MODELS[model]
    kind[0] = int(found.artifact_type)
    set_text(location, found.location)


@crossing
def agent_acquire(model: int, location: Any) -> None:
    set_text(location, str(MODELS[model].acquire_location()))


@crossing
def agent_release(model: int) -> None:
    MODELS[model].release_location()


@crossing
def agent_update(model: int, kind: int, location: Any) -> None:
    MODELS[model].update_location(as_text(location), ArtifactType(kind))


@crossing
def agent_config(model: int, text: Any) -> None:
    found = MODELS[model]
    config = found.config
    if config is None or (isinstance(found, EntryModel) and found.left_its_config):
        config = ModelConfig()  # Of a place without a file, as Triton shows it.
    set_text(text, json.dumps(write_json(config)))
