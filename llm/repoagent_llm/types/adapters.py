"""Request parts that bring tensors of their own: draft tokens, prompt tables, LoRA, multimodal input."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from repoagent_llm.types import rules
from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.record import Record

_ints = rules.list_of(rules.integer())
_hash_lists = rules.list_of(_ints)


@dataclass(eq=False)
class ExternalDraftTokensConfig(Record, readonly=True, pickled=3, lost=("fast_logits",)):
    """Tokens that a drafter guessed; the engine verifies them in one step and keeps the correct prefix.

    ``logits``: [number of tokens, vocabulary] of the drafter; with them acceptance is by rejection sampling.
    """

    tokens: Annotated[list[int], rules.tokens]
    logits: Annotated[Any, rules.maybe(rules.tensor(ndim=2))] = None
    acceptance_threshold: Annotated[float | None, rules.maybe(rules.float32(above=0, high=1))] = None
    fast_logits: Annotated[bool | None, rules.maybe(rules.boolean)] = None

    def _check_together(self) -> None:
        if not self.tokens:
            raise CheckError("ExternalDraftTokensConfig.tokens must not be empty")
        rows = 1 if self.fast_logits else len(self.tokens)
        if self.logits is not None and self.logits.shape[0] != rows:
            raise CheckError(
                f"ExternalDraftTokensConfig.logits must have {rows} row(s), not the shape {self.logits.shape}"
            )


@dataclass(eq=False)
class PromptTuningConfig(Record, readonly=True, pickled=2):
    """A table [virtual tokens, hidden]: a prompt token >= the vocabulary's size picks its row."""

    embedding_table: Annotated[Any, rules.tensor(ndim=2)]
    input_token_extra_ids: Annotated[list[int] | None, rules.maybe(rules.list_of(rules.unsigned64))] = None


@dataclass(eq=False)
class LoraConfig(Record, readonly=True, pickled=3):
    """Adapter weights by task: the first request of a task brings ``weights`` and ``config``, later ones the id.

    weights: [modules, flattened in and out matrices]; config: int32 [modules, 3], (module id, layer, rank) per row.
    """

    task_id: Annotated[int, rules.unsigned64]
    weights: Annotated[Any, rules.maybe(rules.tensor(ndim=2))] = None
    config: Annotated[Any, rules.maybe(rules.tensor(ndim=2, dtype=np.int32))] = None

    def _check_together(self) -> None:
        if self.weights is None:
            return
        if self.config is None:
            raise CheckError("LoraConfig.weights need LoraConfig.config, which lists what each row adapts")
        if self.weights.shape[0] != self.config.shape[0]:
            raise CheckError(
                f"LoraConfig.weights and config must have equal first dimensions, not {self.weights.shape[0]} "
                f"and {self.config.shape[0]}"
            )


@dataclass(eq=False)
class MultimodalInput(Record, readonly=True, pickled=3):
    """Where images or sounds stand in a prompt, and their hashes."""

    multimodal_hashes: Annotated[list[list[int]], _hash_lists]
    multimodal_positions: Annotated[list[int], _ints]
    multimodal_lengths: Annotated[list[int], _ints]


@dataclass(eq=False)
class MropeConfig(Record, readonly=True, pickled=2):
    """Rotary embedding over several axes."""

    mrope_rotary_cos_sin: Annotated[Any, rules.tensor()]
    mrope_position_deltas: Annotated[int, rules.integer()]


@dataclass(eq=False)
class ContextPhaseParams(Record, readonly=True, pickled=4):
    """What the context phase hands to the generation phase when two servers share a request."""

    first_gen_tokens: Annotated[list[int], rules.tokens]
    req_id: Annotated[int, rules.unsigned64]
    opaque_state: Annotated[bytes | None, rules.maybe(rules.raw_bytes)]
    draft_tokens: Annotated[list[int] | None, rules.maybe(rules.tokens)]


@dataclass(eq=False)
class EagleConfig(Record, readonly=True, pickled=5):
    """How EAGLE drafts."""

    eagle_choices: Annotated[list[list[int]] | None, rules.maybe(_hash_lists)] = None
    greedy_sampling: Annotated[bool, rules.boolean] = True
    posterior_threshold: Annotated[float | None, rules.maybe(rules.float32(low=0, below=1))] = None
    use_dynamic_tree: Annotated[bool, rules.boolean] = False
    dynamic_tree_max_topK: Annotated[int | None, rules.maybe(rules.integer())] = None  # noqa: N815

    def _check_together(self) -> None:
        if self.use_dynamic_tree and self.eagle_choices is not None:
            raise CheckError("EagleConfig: a dynamic tree makes its own choices; eagle_choices must be None")
