"""DraftTargetDecodingConfig: a small model that drafts for the executor's own."""

from dataclasses import dataclass
from pathlib import Path

from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.types.executor_config import ExecutorConfig
from repoagent_llm.types.executor_errors import CheckError


@dataclass(frozen=True, slots=True)
class DraftTargetDecodingConfig:
    """A draft model; set it as ``ExecutorConfig.speculative_config``. The names are those of TensorRT-LLM's LLM API.

    ``max_draft_len``: tokens that are guessed for one step of the model. ``speculative_model_dir``: the draft model's
    decoder folder, of the same vocabulary. ``max_concurrency``: while more requests run, nothing is drafted.
    ``runner_options``: how the draft model uses the machine (None: as the model does).
    """

    max_draft_len: int
    speculative_model_dir: str | Path | None = None
    max_concurrency: int = 1
    runner_options: RunnerOptions | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without the models."""
        for name in ("max_draft_len", "max_concurrency"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise CheckError(f"DraftTargetDecodingConfig.{name} must be an integer > 0, not {value!r}")


def speculation_of(config: ExecutorConfig) -> DraftTargetDecodingConfig | None:
    """The draft model of a configuration."""
    wanted = getattr(config, "speculative_config", None)
    if wanted is not None and not isinstance(wanted, DraftTargetDecodingConfig):
        raise TypeError(
            f"ExecutorConfig.speculative_config must be DraftTargetDecodingConfig, not {type(wanted).__name__}"
        )
    return wanted


def check_vocabularies(size: int, draft_model: str, draft_size: int) -> None:
    """Raise unless both models have tokens of the same numbers."""
    if size != draft_size:
        raise CheckError(
            f"{draft_model} has a vocabulary of {draft_size} tokens, the model that it drafts for one of {size}; "
            "they must be the same"
        )
