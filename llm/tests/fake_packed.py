"""FakePacked: a packed model without weights, whose "keys" are the tokens themselves.

It reads each history out of the blocks, through the table that it is given: a block that was not copied, copied too
late or given to another gives wrong logits.
"""

from collections.abc import Callable

import numpy as np
from repoagent_llm.runner.paged import PackedResult, PackedStep
from repoagent_llm.runner.protocol import LoraShape, RunnerInfo
from repoagent_llm.types.executor_errors import EngineError

from llm.tests.fake_runner import LogitsFunction, adapter_number, hashed_logits

BLOCK = 32
NOTHING = -7


class FakePacked:
    """``before_run`` is called with each step, when its tokens have been written, and may raise."""

    def __init__(
        self,
        blocks: int = 9,
        *,
        vocab_size: int = 96,
        max_seq_len: int = 64,
        max_sequences: int = 4,
        logits: LogitsFunction | None = None,
        before_run: Callable[[PackedStep], None] | None = None,
        lora: LoraShape | None = None,
        end_ids: tuple[int, ...] = (),
        window: int = 0,
    ) -> None:
        self.blocks = blocks
        self.divisible = True
        self.window = window
        self.info = RunnerInfo(
            vocab_size,
            max_seq_len,
            max_sequences,
            4,
            "float32",
            end_ids=end_ids,
            extra_outputs=("history",),
            lora=lora,
        )
        self._logits = logits or hashed_logits(vocab_size)
        self._before_run = before_run
        self._ended = False
        self._pool = np.full((blocks, BLOCK), NOTHING)

    def run(self, step: PackedStep) -> PackedResult:
        """See PackedModel."""
        if self._ended:
            raise EngineError("the step was terminated")
        wanted = set(step.rows.tolist())
        logits = {}
        for number, past in enumerate(step.past.tolist()):
            start, stop = step.begins[number : number + 2].tolist()
            table = step.blocks[slice(*step.block_begins[number : number + 2])].tolist()
            assert len(table) == -(-(past + stop - start) // BLOCK)
            assert step.positions[start:stop].tolist() == list(range(past, past + stop - start))
            own = adapter_number(step.adapters[number]) if step.adapters else 0
            for place, token in enumerate(step.tokens[start:stop].tolist(), start):
                at = past + place - start
                self._pool[table[at // BLOCK], at % BLOCK] = token + own
                if place in wanted:
                    history = self._pool[table].reshape(-1)[: at + 1][-self.window :].tolist()
                    assert NOTHING not in history
                    logits[place] = self._logits(history)
        if self._before_run is not None:
            self._before_run(step)
        rows = [logits[place] for place in step.rows.tolist()]
        stacked = np.stack(rows) if rows else np.zeros((0, self.info.vocab_size), np.float32)
        positions = step.positions.astype(np.float32)[:, None]
        return PackedResult(stacked, stacked.argmax(axis=1) if rows else None, dict.fromkeys(step.extras, positions))

    def copy_block(self, source: int, target: int, start: int, stop: int) -> None:
        """See PackedModel."""
        self._pool[target, start:stop] = self._pool[source, start:stop]

    identity = "fake"
    block_bytes = 8 * BLOCK

    def read_block(self, block: int) -> bytes:
        """See PackedModel."""
        return bytes(self._pool[block].tobytes())

    def write_block(self, block: int, data: bytes) -> None:
        """See PackedModel."""
        self._pool[block] = np.frombuffer(data, self._pool.dtype)

    def clear_block(self, block: int) -> None:
        """See PackedModel."""
        self._pool[block] = NOTHING

    def end(self) -> None:
        """See EndableRunner."""
        self._ended = True

    def renew(self) -> None:
        """See EndableRunner."""
        self._ended = False

    def close(self) -> None:
        """See ModelRunner."""
