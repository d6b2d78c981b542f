"""SequenceCache: opens and closes a task's sequences in the runner, reusing what the prefix pool has."""

import logging

from repoagent_llm.engine.prefix_pool import PrefixPool
from repoagent_llm.engine.task import Task, retention_of
from repoagent_llm.engine.token_sequence import TokenSequence
from repoagent_llm.runner.block_pool import BLOCK_TOKENS, blocks_for
from repoagent_llm.runner.paged import PagedRunner
from repoagent_llm.runner.protocol import AdaptableRunner, ModelRunner
from repoagent_llm.types.executor_errors import EngineError

logger = logging.getLogger(__name__)


class CacheTotals:
    """Blocks since the executor's start."""

    def __init__(self) -> None:
        self.allocated = 0
        self.reused = 0
        self.missed = 0


class SequenceCache:
    """What lies between the scheduler and the runner's cache."""

    def __init__(self, runner: ModelRunner, pool: PrefixPool | None) -> None:
        self.totals = CacheTotals()
        self._runner = runner
        self._pool = pool
        self._pages = runner if isinstance(runner, PagedRunner) else None

    @property
    def _adaptable(self) -> AdaptableRunner:
        assert isinstance(self._runner, AdaptableRunner), (
            f"{type(self._runner).__name__}.info.lora is set, adapt missing"
        )
        return self._runner

    def open(self, task: Task) -> None:
        """Open as many of the sequences that still grow as may run; what the pool knows need not be computed."""
        for sequence in task.active()[: task.rows]:
            self.open_sequence(task, sequence)

    def open_sequence(self, task: Task, sequence: TokenSequence) -> None:
        """Open one of them. On pages one that has generated nothing shares what another has of the prompt."""
        shares = self._pages is not None and not sequence.generated and bool(task.open())
        sequence.seq = self._runner.open()
        if sequence.seq is None:
            raise EngineError("the runner has no free sequence for a request that was admitted")
        sequence.computed = 0
        if task.lease is not None:
            self._adaptable.adapt(sequence.seq, task.lease.adapter.weights)
        if not shares:
            self._reuse(task, sequence)

    def shared_blocks(self, task: Task) -> int:
        """How many blocks of a request that waits are there, because running sequences hold them."""
        if self._pages is None or self._pool is None or task.reads_whole_context:
            return 0
        # Between two of its texts it has none that grows: the next one begins with the prompt.
        tokens = next((sequence.tokens for sequence in task.active()), task.request.input_token_ids)
        found = self._pool.match(task.marked(tokens), task.key)
        pool = self._pages.pool
        return sum(match.tokens == BLOCK_TOKENS and pool.is_busy(match.page.blob.blocks[0]) for match in found)

    def readable(self, task: Task) -> list[TokenSequence]:
        """The sequences of a task that may take tokens now.

        Where none has the prompt, one reads it once more, and the others share its blocks.
        """
        found = task.open()
        if self._pages is None or len(found) < 2:
            return found
        shared = found[0].prompt_length // BLOCK_TOKENS * BLOCK_TOKENS
        behind = [sequence for sequence in found if sequence.computed < shared]
        if not behind:
            return found
        source = next((each.seq for each in found if each.seq and self._pages.keeps(each.seq, shared)), None)
        if source is None:
            return [sequence for sequence in found if sequence not in behind[1:]]
        piece = self._pages.export_kv(source, 0, shared)
        try:
            for sequence in behind:
                self._pages.truncate(sequence.seq, 0)  # type: ignore[arg-type]
                self._pages.import_kv(sequence.seq, piece, shared)  # type: ignore[arg-type]
                sequence.computed = shared
        finally:
            self._pages.drop_kv(piece)
        return found

    def _reuse(self, task: Task, sequence: TokenSequence) -> None:
        pages = 0
        if self._pool is not None and not task.reads_whole_context:
            for match in self._pool.match(task.marked(sequence.tokens), task.key):
                self._runner.import_kv(sequence.seq, match.page.blob, match.tokens)  # type: ignore[arg-type]
                sequence.computed += match.tokens
                pages += 1
        if not task.started:
            missed = blocks_for(len(sequence.tokens)) - pages
            task.blocks.allocated, task.blocks.reused, task.blocks.missed = missed, pages, missed
            task.blocks.tokens = sequence.computed
            self.totals.allocated += missed
            self.totals.reused += pages
            self.totals.missed += missed

    def keep(self, task: Task, sequence: TokenSequence, *, whole_pages: bool = False) -> None:
        """Put what the runner has computed of a sequence into the pool."""
        if self._pool is None or sequence.seq is None:
            return
        if self._pages is not None and self._pages.start(sequence.seq) > 0:
            return  # its start is behind the window, and nothing is found without it
        seq, computed = sequence.seq, sequence.computed
        if whole_pages:
            computed -= computed % BLOCK_TOKENS
        tokens = sequence.tokens[:computed]
        if not tokens:
            return
        try:
            self._pool.store(
                task.marked(tokens),
                task.key,
                lambda start, stop: self._runner.export_kv(seq, start, stop),
                lambda start: retention_of(task, start),
            )
        except Exception:  # whatever a runner raises; the text is right all the same
            logger.warning("the KV blocks of request %d are not retained", task.id, exc_info=True)

    def finish(self) -> None:
        """The executor ends: write what waits for a disk."""
        if self._pool is not None:
            self._pool.close()

    def close(self, task: Task) -> None:
        """Free all sequences of a task."""
        for sequence in task.group.sequences:
            self.close_sequence(sequence)

    def close_sequence(self, sequence: TokenSequence) -> None:
        """Free the sequence of one sequence."""
        seq, sequence.seq, sequence.computed = sequence.seq, None, 0
        if seq is None:
            return
        try:
            self._runner.free(seq)
        except Exception:  # whatever a runner raises; its request is to be answered all the same
            logger.warning("the runner could not free a sequence", exc_info=True)
