"""EngineConfig: the settings that TensorRT-LLM's ``ExecutorConfig`` does not have, a draft model among them."""

from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

from repoagent.turns import Turns
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.types import rules
from repoagent_llm.types.executor_config import ExecutorConfig
from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.record import Record


def _positive(value: object, where: str) -> int:
    if type(value) is not int or value < 1:
        raise CheckError(f"{where} must be an integer > 0, not {value!r}")
    return value


def _bytes(value: object, where: str) -> int:
    if type(value) is not int or value < 0:
        raise CheckError(f"{where} must be an integer >= 0, not {value!r}")
    return value


def _seconds(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise CheckError(f"{where} must be a number > 0, not {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class DraftTargetDecodingConfig:
    """A draft model; set it as ``ExecutorConfig.speculative_config``. The names are those of TensorRT-LLM's LLM API.

    ``max_draft_len``: tokens that are guessed for one step of the model. ``speculative_model_dir``: the draft model's
    decoder folder, of the same vocabulary. ``max_concurrency``: while more requests run, nothing is drafted (None: one
    over a slab; on pages as many as the pool holds at full length). ``runner_options``: how the draft model uses the
    machine (None: as the model does).
    """

    max_draft_len: int
    speculative_model_dir: str | Path | None = None
    max_concurrency: int | None = None
    runner_options: RunnerOptions | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without the models."""
        _positive(self.max_draft_len, "DraftTargetDecodingConfig.max_draft_len")
        if self.max_concurrency is not None:
            _positive(self.max_concurrency, "DraftTargetDecodingConfig.max_concurrency")


@dataclass(eq=False)
class EngineConfig(ExecutorConfig, extensible=True, pickled=37):
    """An ``ExecutorConfig`` with settings of ours, which may as well be set as attributes of an ``ExecutorConfig``.

    ``runner_options``: how the runner uses the machine. ``speculative_config``: a draft model. ``turns``: among
    executors that share the cores. ``block_folder``: for retained blocks in files, ``block_folder_bytes`` at most.
    ``answer_ngrams``: of earlier answers, for lookahead. ``max_num_tokens_generating``: tokens of an iteration in which
    requests wait for their next token. ``token_gap_seconds``: an aim for the time between two of these.
    """

    runner_options: Annotated[RunnerOptions, rules.instance(RunnerOptions)] = field(default_factory=RunnerOptions)
    speculative_config: Annotated[
        DraftTargetDecodingConfig | None, rules.maybe(rules.instance(DraftTargetDecodingConfig))
    ] = None
    turns: Annotated[Turns | None, rules.maybe(rules.instance(Turns))] = None
    block_folder: Annotated[str | None, rules.maybe(rules.text)] = None
    block_folder_bytes: Annotated[int | None, rules.maybe(_bytes)] = None
    answer_ngrams: Annotated[int | None, rules.maybe(_positive)] = None
    max_num_tokens_generating: Annotated[int | None, rules.maybe(_positive)] = None
    token_gap_seconds: Annotated[float | None, rules.maybe(_seconds)] = None

    @classmethod
    def of(cls, config: ExecutorConfig) -> Self:
        """A copy that is checked: the caller may change ``config`` for another executor while this one runs."""
        own = cls()
        for name, value in vars(config).items():
            rule = None if name in ExecutorConfig.__record__.rules else cls.__record__.rules.get(name)
            if rule is None:
                vars(own)[name] = copy(value) if isinstance(value, Record) else value
            elif value is not None:
                vars(own)[name] = rule(value, f"ExecutorConfig.{name}")
        return own
