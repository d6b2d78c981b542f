"""The five moments of a model's life at which an agent is called, and the two kinds of location of a model."""

import enum


class Action(enum.IntEnum):
    """What the server is doing with the model; numbers as in ``TRITONREPOAGENT_ActionType``."""

    LOAD = 0
    LOAD_COMPLETE = 1
    LOAD_FAIL = 2
    UNLOAD = 3
    UNLOAD_COMPLETE = 4


class ArtifactType(enum.IntEnum):
    """Where ``AgentModel.location`` points; numbers as in ``TRITONREPOAGENT_ArtifactType``."""

    FILESYSTEM = 0
    """A directory on this machine."""
    REMOTE_FILESYSTEM = 1
    """An fsspec URL such as ``s3://bucket/model``; ``AgentModel.localize()`` brings it here."""
