"""One sequence of tokens of a request. A request has several with beams or several returned sequences."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from repoagent_llm.engine.guide import Guide
from repoagent_llm.engine.logits import SeenTokens
from repoagent_llm.engine.sampler import Sampler
from repoagent_llm.runner.protocol import Seq
from repoagent_llm.types.enums import FinishReason


@dataclass(slots=True, eq=False)
class TokenSequence:
    """``tokens``: the prompt and what was generated. ``computed``: how many of them the runner holds.
    ``handed_back``: it ends without a reason, the caller goes on with it.

    After each choice exactly one token is not computed yet; more are while a prompt is read or after a pause.
    """

    index: int
    tokens: list[int]
    prompt_length: int
    sampler: Sampler
    guide: Guide | None = None
    seq: Seq | None = None
    computed: int = 0
    reason: FinishReason = FinishReason.NOT_FINISHED
    handed_back: bool = False
    answered: bool = False
    cum_log_prob: float = 0.0
    log_probs: list[float] = field(default_factory=list)
    alternatives: list[list[tuple[int, float]]] = field(default_factory=list)
    """For each generated token that was not sent the likeliest ones with their log-probabilities, if wanted."""
    generation_logits: list[npt.NDArray[np.float32]] = field(default_factory=list)
    extras: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    sent: int = 0
    seen: SeenTokens = field(default_factory=SeenTokens)

    @property
    def generated(self) -> int:
        """How many tokens were generated."""
        return len(self.tokens) - self.prompt_length

    @property
    def pending(self) -> int:
        """How many tokens the runner has not seen."""
        return len(self.tokens) - self.computed

    @property
    def finished(self) -> bool:
        """Whether nothing more is generated."""
        return self.handed_back or self.reason is not FinishReason.NOT_FINISHED

    def generated_tokens(self, start: int = 0) -> list[int]:
        """Generated tokens from number ``start`` on."""
        return self.tokens[self.prompt_length + start :]

    def forget_prompt(self) -> None:
        """It has ended and was answered, and others of its request go on."""
        del self.tokens[: self.prompt_length]
        self.prompt_length = 0

    def fork(self, index: int, seq: Seq | None, sampler: Sampler) -> "TokenSequence":
        """A sequence with the same history in another sequence of the runner."""
        return TokenSequence(
            index,
            list(self.tokens),
            self.prompt_length,
            sampler,
            guide=None if self.guide is None else self.guide.fork(),
            seq=seq,
            computed=self.computed,
            cum_log_prob=self.cum_log_prob,
            log_probs=list(self.log_probs),
            alternatives=list(self.alternatives),
            generation_logits=list(self.generation_logits),
            extras={name: list(parts) for name, parts in self.extras.items()},
        )
