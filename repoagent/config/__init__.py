"""Model configurations: reading, writing, checking and completing ``config.pbtxt``.

``ModelConfig`` is a protobuf message with the field names and numbers of Triton's; the other messages and the enums
are in :mod:`repoagent.config.model_config_pb2`. Nothing here touches a file: callers bring text and take text away.
"""

from repoagent.config.backends import (
    BACKEND_OF_PLATFORM,
    PLATFORM_OF_BACKEND,
    backend_of,
    executed_by,
    model_filename,
    platform_of,
)
from repoagent.config.checks import check, problems
from repoagent.config.defaults import AgentEntry, agent_entries, default_config, no_version, normalize, select_versions
from repoagent.config.json_form import read_json, write_json
from repoagent.config.model_config_pb2 import ModelConfig
from repoagent.config.pbtxt import read_text, write_text
from repoagent.config.redaction import redact

__all__ = [
    "BACKEND_OF_PLATFORM",
    "PLATFORM_OF_BACKEND",
    "AgentEntry",
    "ModelConfig",
    "agent_entries",
    "backend_of",
    "check",
    "copy",
    "default_config",
    "executed_by",
    "model_filename",
    "no_version",
    "normalize",
    "platform_of",
    "problems",
    "read_json",
    "read_text",
    "redact",
    "select_versions",
    "write_json",
    "write_text",
]


def copy(config: ModelConfig) -> ModelConfig:
    """A configuration of its own with the same content."""
    duplicate = ModelConfig()
    duplicate.CopyFrom(config)
    return duplicate
