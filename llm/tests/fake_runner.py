"""FakeRunner: a model that is a function of the tokens it has seen. Exact, fast, and without weights.

Its "cache" is the token list itself, so a scheduler that copies, truncates or reuses wrongly gets wrong logits. An
adapter adds to each token that it sees a number of its own, so tokens computed under another one are wrong as well.
"""

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from repoagent_llm.runner.protocol import (
    AdapterWeights,
    Logits,
    LoraShape,
    RunnerInfo,
    Segment,
    Seq,
    StepResult,
)
from repoagent_llm.types.executor_errors import EngineError

LogitsFunction = Callable[[list[int]], npt.NDArray[np.float32]]


def hashed_logits(vocab_size: int) -> LogitsFunction:
    """Logits that depend on every token of the history and on their order."""

    def logits(history: list[int]) -> npt.NDArray[np.float32]:
        seed = zlib.crc32(np.asarray(history, np.int32).tobytes())
        mixed = (np.arange(1, vocab_size + 1, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(seed)) ** 2
        return (((mixed >> np.uint64(16)) % np.uint64(65521)).astype(np.float32) / 6552.1).astype(np.float32)

    return logits


def table_logits(table: dict[int, int], vocab_size: int) -> LogitsFunction:
    """After token ``t`` comes ``table[t]`` with a logit of 10; all other logits are 0."""

    def logits(history: list[int]) -> npt.NDArray[np.float32]:
        row = np.zeros(vocab_size, np.float32)
        row[table.get(history[-1], 0)] = 10.0
        return row

    return logits


def adapter_number(weights: AdapterWeights | None) -> int:
    """What an adapter adds to each token: the first number of its first matrix; 0 without one."""
    return 0 if weights is None else round(1000 * next(iter(weights.values()))[0].flat[0])


class FakeRunner:
    """A runner over a logits function. ``before_step`` is called with the segments of each step and may raise."""

    def __init__(
        self,
        *,
        vocab_size: int = 32,
        max_seq_len: int = 256,
        max_sequences: int = 8,
        logits: LogitsFunction | None = None,
        before_step: Callable[[Sequence[Segment]], None] | None = None,
        extra_outputs: tuple[str, ...] = ("history",),
        end_ids: tuple[int, ...] = (),
        lora: LoraShape | None = None,
    ) -> None:
        self.info = RunnerInfo(
            vocab_size,
            max_seq_len,
            max_sequences,
            4,
            "float32",
            end_ids=end_ids,
            extra_outputs=extra_outputs,
            lora=lora,
        )
        self._logits = logits or hashed_logits(vocab_size)
        self._before_step = before_step
        self._next = 0
        self._tokens: dict[Seq, list[int]] = {}
        self._adapted: dict[Seq, int] = {}

    @property
    def open_sequences(self) -> int:
        """How many sequences are open."""
        return len(self._tokens)

    def open(self) -> Seq | None:
        """See ModelRunner."""
        if len(self._tokens) >= self.info.max_sequences:
            return None
        self._next += 1
        seq = Seq(self._next)
        self._tokens[seq] = []
        return seq

    def free(self, seq: Seq) -> None:
        """See ModelRunner."""
        del self._tokens[seq]
        self._adapted.pop(seq, None)

    def adapt(self, seq: Seq, weights: AdapterWeights) -> None:
        """See AdaptableRunner."""
        if self._tokens[seq]:
            raise EngineError("adapt: the sequence is not empty")
        self._adapted[seq] = adapter_number(weights)

    def length(self, seq: Seq) -> int:
        """See ModelRunner."""
        return len(self._tokens[seq])

    def truncate(self, seq: Seq, length: int) -> None:
        """See ModelRunner."""
        del self._tokens[seq][length:]

    def fork(self, seq: Seq) -> Seq | None:
        """See ModelRunner."""
        copy = self.open()
        if copy is not None:
            self._tokens[copy] = list(self._tokens[seq])
            if seq in self._adapted:
                self._adapted[copy] = self._adapted[seq]
        return copy

    def reorder(self, seqs: Sequence[Seq], parents: Sequence[int], common: int) -> None:
        """See ModelRunner; holds the caller to its word about the common part."""
        before = [list(self._tokens[seq]) for seq in seqs]
        if any(tokens[:common] != before[0][:common] for tokens in before):
            raise EngineError("reorder: the sequences are not equal in their common part")
        for seq, parent in zip(seqs, parents, strict=True):
            self._tokens[seq] = list(before[parent])

    def step(self, segments: Sequence[Segment]) -> StepResult:
        """See ModelRunner."""
        if self._before_step is not None:
            self._before_step(segments)
        rows: list[slice] = []
        logits: list[npt.NDArray[np.float32]] = []
        extras = []
        for segment in segments:
            start, first = len(self._tokens[segment.seq]), len(logits)
            logits += self._append(segment)
            rows.append(slice(first, len(logits)))
            positions = np.arange(start, start + len(segment.tokens), dtype=np.float32)[:, None]
            extras.append(dict.fromkeys(segment.extras, positions))
        stacked = np.stack(logits) if logits else np.zeros((0, self.info.vocab_size), np.float32)
        return StepResult(stacked, rows, np.argmax(stacked, axis=1) if len(stacked) else None, extras)

    def _append(self, segment: Segment) -> list[npt.NDArray[np.float32]]:
        history = self._tokens[segment.seq]
        if len(history) + len(segment.tokens) > self.info.max_seq_len:
            raise EngineError(f"sequence {segment.seq} would exceed {self.info.max_seq_len} tokens")
        wanted = []
        for token in segment.tokens.tolist():
            history.append(token + self._adapted.get(segment.seq, 0))
            if segment.logits is Logits.ALL:
                wanted.append(self._logits(history))
        return [self._logits(history)] if segment.logits is Logits.LAST else wanted

    def export_kv(self, seq: Seq, start: int, stop: int) -> list[int]:
        """See ModelRunner."""
        return self._tokens[seq][start:stop]

    def import_kv(self, seq: Seq, blob: list[int], tokens: int) -> None:
        """See ModelRunner."""
        self._tokens[seq] += blob[:tokens]

    def close(self) -> None:
        """See ModelRunner."""
        self._tokens.clear()
        self._adapted.clear()
