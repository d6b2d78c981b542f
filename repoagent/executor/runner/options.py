"""RunnerOptions: how a runner uses the machine."""

from dataclasses import dataclass

__all__ = ["RunnerOptions"]


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How a runner uses the machine.

    ``threads``: of one step (None: ONNX Runtime decides). ``spinning``: threads busy-wait between steps, which is
    faster while they own their cores and much slower when they do not. ``yielding``: they stop when a step ends, for
    another session's sake; always so for both models where one drafts. ``max_seq_len``: None takes the model's context
    length, at most 2048. ``max_sequences``: rows of the cache. ``lora``: take LoRA adapters, also where the graph was
    not built for them.
    """

    threads: int | None = None
    spinning: bool = True
    max_seq_len: int | None = None
    max_sequences: int = 16
    extra_outputs: tuple[str, ...] = ()
    lora: bool = False
    yielding: bool = False
