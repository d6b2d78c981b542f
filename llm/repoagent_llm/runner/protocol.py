"""What the engine asks of a runner.

Sequences are opaque handles; rows, slabs, pages and streams stay inside the runner. One thread calls it.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NewType, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Seq = NewType("Seq", int)
TokenArray = npt.NDArray[np.int32]
KvBlob = Any  # what export_kv gave; only import_kv of the same runner reads it
# Of each layer that an adapter changes: a [inputs, rank], b [rank, outputs]; x @ a @ b is added to what it gives.
AdapterWeights = Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]


class Logits(enum.Enum):
    """For which tokens of a segment logits are wanted."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class LoraShape:
    """Where a model takes LoRA adapters.

    ``sites``: (inputs, outputs) of linear layers by name ("layers.0.qkv", "layers.0.mlp_out"). ``kv_size``: columns
    of the keys, and of the values, in a "qkv".
    """

    layers: int
    kv_size: int
    sites: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What a runner can do. Lengths and counts are in tokens and sequences, sizes in bytes.

    ``hidden_size``: None where embeddings cannot be given with a segment.
    """

    vocab_size: int
    max_seq_len: int
    max_sequences: int
    kv_bytes_per_token: int
    dtype: str
    device: str = "cpu"
    max_step_tokens: int | None = None
    end_ids: tuple[int, ...] = ()
    extra_outputs: tuple[str, ...] = ()
    lora: LoraShape | None = None
    hidden_size: int | None = None


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Rows [n, hidden] that stand in for the embeddings of a segment's tokens number ``places`` [n]."""

    places: npt.NDArray[np.int64]
    rows: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens (int32, at least one) that are appended to a sequence in one step.

    ``embeddings`` only for runners that know their ``info.hidden_size``.
    """

    seq: Seq
    tokens: TokenArray
    logits: Logits = Logits.LAST
    extras: tuple[str, ...] = ()
    embeddings: Embeddings | None = None


class DecodeRound(tuple[Segment, ...]):
    """Segments of one token each that want its logits and nothing else. The same round is stepped again and again.

    ``tokens`` int32 [n]: the segments' tokens are views of it, so it is filled again before each step. Row i of the
    step's logits belongs to segment i.
    """

    tokens: TokenArray

    @classmethod
    def of(cls, seqs: Sequence[Seq]) -> "DecodeRound":
        """A round of these sequences; its tokens are to be filled in."""
        tokens = np.zeros(len(seqs), np.int32)
        made = cls(Segment(seq, tokens[place : place + 1]) for place, seq in enumerate(seqs))
        made.tokens = tokens
        return made


@dataclass(slots=True)
class StepResult:
    """What a step computed.

    ``logits``: float32 [R, vocabulary], overwritten by the next step. ``rows``: for each segment the slice of its
    rows, empty when it wanted none. ``argmax``: the largest token of each row, where the graph computes it.
    ``extras``: for each segment the named tensors, first axis the segment's tokens; copies, safe to keep.
    """

    logits: npt.NDArray[np.float32]
    rows: list[slice]
    argmax: npt.NDArray[np.int64] | None = None
    extras: list[dict[str, npt.NDArray[Any]]] = field(default_factory=list)


@runtime_checkable
class ModelRunner(Protocol):
    """A model with its KV cache. Every method may raise; then the state of the sequences in the call is unknown."""

    @property
    def info(self) -> RunnerInfo:
        """What the runner can do; does not change."""

    def open(self) -> Seq | None:
        """A new, empty sequence; None if no row is free."""

    def free(self, seq: Seq) -> None:
        """Give the sequence's memory back. The handle is invalid afterwards."""

    def length(self, seq: Seq) -> int:
        """How many tokens the sequence holds."""

    def truncate(self, seq: Seq, length: int) -> None:
        """Forget all but the first ``length`` tokens."""

    def fork(self, seq: Seq) -> Seq | None:
        """A new sequence with the same content; None if no row is free."""

    def reorder(self, seqs: Sequence[Seq], parents: Sequence[int], common: int) -> None:
        """Make ``seqs[i]`` hold what ``seqs[parents[i]]`` held; the first ``common`` tokens are known to be equal."""

    def step(self, segments: Sequence[Segment]) -> StepResult:
        """Append every segment's tokens to its sequence, each sequence at most once, and compute."""

    def export_kv(self, seq: Seq, start: int, stop: int) -> KvBlob:
        """A copy of the cache of tokens [start, stop)."""

    def import_kv(self, seq: Seq, blob: KvBlob, tokens: int) -> None:
        """Append the first ``tokens`` tokens of an exported piece to the sequence."""

    def close(self) -> None:
        """Release everything. May be called twice."""


@runtime_checkable
class EndableRunner(ModelRunner, Protocol):
    """A runner whose steps can be ended from another thread."""

    def end(self) -> None:
        """Let the step that runs, and every one after it, fail soon. From any thread, at any time."""

    def renew(self) -> None:
        """After :meth:`end`: let steps come to their ends again."""


@runtime_checkable
class AdaptableRunner(ModelRunner, Protocol):
    """A runner whose ``info.lora`` is set."""

    def adapt(self, seq: Seq, weights: AdapterWeights) -> None:
        """Send an empty sequence, and all that are forked from it, through an adapter."""
