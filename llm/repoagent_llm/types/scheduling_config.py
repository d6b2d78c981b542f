"""How requests are scheduled and where they run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from repoagent_llm.types import rules
from repoagent_llm.types.enums import (
    CapacitySchedulerPolicy,
    CommunicationMode,
    CommunicationType,
    ContextChunkingPolicy,
)
from repoagent_llm.types.errors import CheckError
from repoagent_llm.types.record import Record

__all__ = ["DynamicBatchConfig", "OrchestratorConfig", "ParallelConfig", "SchedulerConfig"]

_flag = Annotated[bool, rules.boolean]
# (up to this many requests, use this batch size): the steps on which a tuner may settle.
_BATCH_SIZES = ((144, 128), (336, 256), (672, 512), (832, 768), (1280, 1024), (1664, 1536))


@dataclass(eq=False)
class DynamicBatchConfig(Record, readonly=True, pickled=3):
    """Tuning of batch size and token budget at run time."""

    enable_batch_size_tuning: _flag
    enable_max_num_tokens_tuning: _flag
    dynamic_batch_moving_average_window: Annotated[int, rules.integer()]

    def __getstate__(self) -> tuple[Any, ...]:
        return (*super().__getstate__(), _BATCH_SIZES)

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 4:
            raise CheckError("Invalid DynamicBatchConfig state!")
        super().__setstate__(state[:3])


@dataclass(eq=False)
class SchedulerConfig(Record, readonly=True, pickled=3):
    """Admission and chunking."""

    capacity_scheduler_policy: Annotated[CapacitySchedulerPolicy, rules.instance(CapacitySchedulerPolicy)] = (
        CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    )
    context_chunking_policy: Annotated[
        ContextChunkingPolicy | None, rules.maybe(rules.instance(ContextChunkingPolicy))
    ] = None
    dynamic_batch_config: Annotated[DynamicBatchConfig | None, rules.maybe(rules.instance(DynamicBatchConfig))] = None


@dataclass(eq=False)
class OrchestratorConfig(Record):
    """A process that hands requests to workers."""

    is_orchestrator: _flag = True
    worker_executable_path: Annotated[str, rules.text] = ""
    orch_leader_comm: Any = None
    spawn_processes: _flag = True

    def _check_together(self) -> None:
        path = self.worker_executable_path
        if self.is_orchestrator and self.spawn_processes and not Path(path).is_file():
            raise CheckError(f"Worker executable at {path} does not exist.")


def _device_ids(value: object, where: str) -> list[int]:
    ids: list[int] = rules.list_of(rules.integer())(value, where)
    if not ids:
        raise CheckError(f"{where} must not be empty")
    return ids


@dataclass(eq=False)
class ParallelConfig(Record, pickled=6):
    """Several devices or processes for one model."""

    communication_type: Annotated[CommunicationType, rules.instance(CommunicationType)] = CommunicationType.MPI
    communication_mode: Annotated[CommunicationMode, rules.instance(CommunicationMode)] = CommunicationMode.LEADER
    device_ids: Annotated[list[int] | None, rules.maybe(_device_ids)] = None
    participant_ids: Annotated[list[int] | None, rules.maybe(rules.list_of(rules.integer()))] = None
    orchestrator_config: Annotated[OrchestratorConfig | None, rules.maybe(rules.instance(OrchestratorConfig))] = None
    num_nodes: Annotated[int | None, rules.maybe(rules.integer())] = None
