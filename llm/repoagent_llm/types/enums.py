"""The enumerations; names and numbers as in TensorRT-LLM's bindings."""

import enum

from repoagent_llm.types.executor_errors import CheckError


class ModelType(enum.IntEnum):
    """Which halves a model has."""

    DECODER_ONLY = 0
    ENCODER_ONLY = 1
    ENCODER_DECODER = 2


class CapacitySchedulerPolicy(enum.IntEnum):
    """When a waiting request may start."""

    MAX_UTILIZATION = 0
    GUARANTEED_NO_EVICT = 1
    STATIC_BATCH = 2


class ContextChunkingPolicy(enum.IntEnum):
    """How the token budget of an iteration is shared by prompts that are being read."""

    FIRST_COME_FIRST_SERVED = 0
    EQUAL_PROGRESS = 1


class CommunicationType(enum.IntEnum):
    """How the processes of one executor communicate."""

    MPI = 0


class CommunicationMode(enum.IntEnum):
    """Which process accepts requests."""

    LEADER = 0
    ORCHESTRATOR = 1


class BatchingType(enum.IntEnum):
    """Static batching is deprecated and refused by ``Executor``."""

    STATIC = 0
    INFLIGHT = 1


class RequestStage(enum.IntEnum):
    """The stage of a request."""

    QUEUED = 0
    ENCODER_IN_PROGRESS = 1
    CONTEXT_IN_PROGRESS = 2
    GENERATION_IN_PROGRESS = 3
    GENERATION_COMPLETE = 4


class RequestType(enum.IntEnum):
    """Which phases of a request run here; only both together are served."""

    REQUEST_TYPE_CONTEXT_AND_GENERATION = 0
    REQUEST_TYPE_CONTEXT_ONLY = 1
    REQUEST_TYPE_GENERATION_ONLY = 2


class FinishReason(enum.IntEnum):
    """Why a sequence ended."""

    NOT_FINISHED = 0
    END_ID = 1
    STOP_WORDS = 2
    LENGTH = 3
    TIMED_OUT = 4
    CANCELLED = 5


class KvCacheTransferMode(enum.IntEnum):
    """How blocks travel to a second cache level."""

    DRAM = 0
    GDS = 1
    POSIX_DEBUG_FALLBACK = 2


class CacheTransceiverBackendType(enum.IntEnum):
    """How disaggregated servers transfer blocks."""

    DEFAULT = 0
    MPI = 1
    UCX = 2
    NIXL = 3

    @classmethod
    def from_string(cls, name: str) -> "CacheTransceiverBackendType":
        """``"ucx"`` or ``"UCX"`` and so on; anything else raises."""
        if name in (name.lower(), name.upper()) and name.upper() in cls.__members__:
            return cls[name.upper()]
        raise CheckError(f"Invalid backend type: {name}")
