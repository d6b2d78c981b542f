"""RunnerOptions: how a runner uses the machine."""

from dataclasses import dataclass
from typing import Any, Final

from repoagent_llm.types.executor_errors import CheckError

DEFAULT_SEQ_LEN: Final = 2048
"""Tokens that a sequence may hold where no one says."""
CACHE_TYPES: Final = ("f32", "bf16", "f16", "u8")
"""What keys and values are rounded to; only paged attention has a choice."""
MOST_GRAPH_BYTES: Final = (1 << 31) - 1
"""What protobuf can read."""


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How a runner uses the machine.

    ``threads``: of one step (None: ONNX Runtime decides). ``spinning``: threads busy-wait between steps, which is
    faster while they own their cores and much slower when they do not. ``yielding``: they stop when a step ends, for
    another session's sake; always so for both models where one drafts. ``max_seq_len``: None takes the model's context
    length, at most 2048. ``max_sequences``: rows of the cache. ``lora``: take LoRA adapters, also where the graph was
    not built for them. ``mixed``: one run for a piece of a prompt and the rows that go on meanwhile; only without
    adapters and extra outputs. ``own_weights``: the session keeps copies of all weights, so that the folder may go when
    it is loaded; otherwise it maps the file that holds them. ``max_graph_bytes``: of the graph's file, without
    weights that lie beside it. ``run_options``: ``onnxruntime.RunOptions`` for one executor; once their ``terminate``
    is set, what its models run fails soon, also while they are loaded.
    """

    threads: int | None = None
    spinning: bool = True
    max_seq_len: int | None = None
    max_sequences: int = 16
    extra_outputs: tuple[str, ...] = ()
    lora: bool = False
    yielding: bool = False
    mixed: bool = False
    own_weights: bool = False
    max_graph_bytes: int = MOST_GRAPH_BYTES
    run_options: Any = None
    cache_tokens: int | None = None
    cache_type: str | None = None
    exact: bool = True

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("threads", "max_seq_len", "max_sequences", "max_graph_bytes", "cache_tokens"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise CheckError(f"RunnerOptions.{name} must be an integer > 0, not {value!r}")
        if self.cache_type not in (None, *CACHE_TYPES):
            known = ", ".join(CACHE_TYPES)
            raise CheckError(f"RunnerOptions.cache_type must be one of {known}, not {self.cache_type!r}")
