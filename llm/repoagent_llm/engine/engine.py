"""Engine: one thread that runs iterations until it is stopped.

An iteration: take what arrived, end what was cancelled or is late, let the scheduler plan, run one step, give every
sequence that is ready its next token, answer, note statistics.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from repoagent.errors import InvalidArgumentError
from repoagent.turns import Seat
from repoagent_llm.engine.batch_sampler import BatchSampler
from repoagent_llm.engine.blocks import Budget
from repoagent_llm.engine.debug_tensors import DebugTensors
from repoagent_llm.engine.drafting import Drafting
from repoagent_llm.engine.inbox import NO_MAIL, Inbox, Mail
from repoagent_llm.engine.iteration_stats import IterationCounts, StatsKeeper
from repoagent_llm.engine.pooling import HIDDEN
from repoagent_llm.engine.processors import PostProcessors, Ready, reason_of
from repoagent_llm.engine.response_board import ResponseBoard
from repoagent_llm.engine.results import ResultMaker
from repoagent_llm.engine.sampling_group import add_token
from repoagent_llm.engine.scheduler import Others, Plan, Scheduler, Work
from repoagent_llm.engine.sequence_cache import SequenceCache
from repoagent_llm.engine.step_budget import StepCost
from repoagent_llm.engine.task import Task
from repoagent_llm.engine.token_sampling import likeliest, log_softmax, rank_of
from repoagent_llm.engine.token_sequence import TokenSequence
from repoagent_llm.runner.protocol import EndableRunner, ModelRunner, Segment, StepResult
from repoagent_llm.types.enums import FinishReason, RequestStage
from repoagent_llm.types.executor_errors import CheckError, text_of
from repoagent_llm.types.result import Response

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 5.0
"""For the rest of the last step when the engine is stopped."""


class Engine:
    """Runs tasks over a runner. Everything but ``start`` and ``stop`` happens on its own thread."""

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        cache: SequenceCache,
        budget: Budget,
        results: ResultMaker,
        processors: PostProcessors,
        stats: StatsKeeper,
        inbox: Inbox,
        board: ResponseBoard,
        debug: DebugTensors,
        drafting: Drafting,
        cost: StepCost,
        seat: Seat | None = None,
    ) -> None:
        """``seat``: among executors that share the cores."""
        self._runner = runner
        self._endable = runner if isinstance(runner, EndableRunner) else None
        self._scheduler = scheduler
        self._cache = cache
        self._budget = budget
        self._results = results
        self._processors = processors
        self._stats = stats
        self._inbox = inbox
        self._board = board
        self._debug = debug
        self._drafting = drafting
        self._cost = cost
        self._seat = seat
        self._choice = BatchSampler(runner.info.vocab_size)
        self._live: dict[int, Task] = {}
        self._with_deadline: set[int] = set()
        self._iteration = 0
        self._outgoing: list[Response] = []
        self._ended: list[Task] = []
        self._completed = 0  # requests since the last iteration that the statistics have
        self._counts = IterationCounts(0)
        self._thread = threading.Thread(target=self._run, name="repoagent-executor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the step that runs, and wait for the thread to end. The thread itself does not wait.

        A step that does not end keeps its thread and the model, which are left behind; no one waits for responses.
        """
        self._inbox.stop()
        if self._thread is threading.current_thread():
            return
        if self._endable is not None:
            self._endable.end()
        self._drafting.end()
        self._thread.join(_PATIENCE_SECONDS)
        if self._thread.is_alive():
            logger.warning("a step of the decoder does not end: it keeps its thread and its memory")
            self._board.stop()

    def _run(self) -> None:
        try:
            self._iterate_until_stopped()
        finally:  # whatever ends this thread, nothing may wait for it without end
            self._leave()
            self._board.stop()
            self._cache.finish()
            self._runner.close()
            self._drafting.close()

    def _iterate_until_stopped(self) -> None:
        while True:
            self._post()
            if idle := self._scheduler.idle:  # while it waits the engine holds nothing of those that were here
                mail = NO_MAIL
                self._choice.forget()
                self._leave()
            mail = self._inbox.take(wait=idle, seconds=self._seconds_left() if idle else None)
            if mail.stopping:
                break
            try:
                self._iterate(mail)
            except Exception as error:  # a fault of the engine itself must not leave callers waiting
                # Nor may it end what has not started; but if nothing runs, the same fault would come again forever.
                self._fail(list(self._scheduler.running or self._live.values()), f"the engine failed: {text_of(error)}")
            self._ended.clear()
        for task in list(self._live.values()):
            self._drop(task)

    def _iterate(self, mail: Mail) -> None:
        counts = self._counts = IterationCounts(self._iteration, time.monotonic())
        if mail is not NO_MAIL:
            self._accept(mail)
        if self._with_deadline:
            self._expire()
        self._post()  # what was cancelled or is late need not wait for the step
        if self._seat is None:
            computed = self._compute(counts)
        else:
            self._seat.take(generates=self._scheduler.generates)
            try:
                computed = self._compute(counts)
            finally:
                self._seat.rest()
        if computed is None:
            return
        plan, result = computed
        self._advance(plan, result)
        counts.seconds = time.monotonic() - counts.started
        counts.completed, self._completed = self._completed, 0
        self._stats.record(counts, self._scheduler, self._budget, self._cache.totals)
        if self._stats.keeps_requests:
            self._stats.record_requests(self._iteration, [*self._live.values(), *self._ended], plan.works)
        self._iteration += 1

    def _compute(self, counts: IterationCounts) -> tuple[Plan, StepResult] | None:
        """Plan a step and run it; None if there was none, or it failed."""
        self._drafting.propose(self._scheduler.running, counts)
        plan = self._scheduler.plan(self._others())
        for task, error in self._scheduler.take_failures():
            self._fail([task], f"the runner failed: {text_of(error)}")
        if not plan.works:
            self._check_progress()
            return None
        segments = plan.segments
        if self._debug.active:  # no round then: its rows lie where the runner puts them
            plan, segments = Plan(plan.works), self._debug.ask(segments)
        result = self._step(plan, segments)
        if result is None:
            return None
        if self._debug.active:
            self._debug.keep(self._iteration, plan.works, result)
        return plan, result

    def _step(self, plan: Plan, segments: Sequence[Segment]) -> StepResult | None:
        """Run a step; None if it failed, or was ended because nobody wants any of it."""
        tasks = {work.task.id: work.task for work in plan.works}
        if self._endable is not None:
            self._inbox.begin_step(tasks.keys(), self._endable.end)
        failure: BaseException | None = None
        began = time.monotonic()
        try:
            result = self._runner.step(segments)
        except BaseException as error:  # whatever a runner raises fails this iteration's requests, and nothing else
            failure = error
        ended = self._endable is not None and self._inbox.step_over()
        if ended:
            self._renew()
        if failure is None:
            tokens = len(segments) if plan.round is not None else sum(len(segment.tokens) for segment in segments)
            self._cost.note(tokens, time.monotonic() - began)
            return result
        if ended:  # the next iteration takes the cancellations
            for work in plan.works:
                work.sequence.computed = 0  # what the runner holds of it may be half written
        elif not self._inbox.stopping:  # else the step has been ended, and they get no answer
            self._fail(list(tasks.values()), f"the runner failed: {text_of(failure)}")
        return None

    def _renew(self) -> None:
        if self._endable is not None:
            self._endable.renew()
            if self._inbox.stopping:
                self._endable.end()

    def _others(self) -> Others:
        if self._seat is None or not self._seat.contended:
            return Others.IDLE
        return Others.GENERATE if self._seat.awaited else Others.READ

    def _leave(self) -> None:
        if self._seat is not None:
            self._seat.leave()

    def _check_progress(self) -> None:
        """When nothing runs, the first that waits must be able to start; if not, it never will."""
        if self._scheduler.waiting and not self._scheduler.running:
            self._fail([self._scheduler.waiting[0]], "the request does not fit into the KV cache")

    def _accept(self, mail: Mail) -> None:
        for task in mail.tasks:
            self._live[task.id] = task
            self._scheduler.add(task)
            if task.deadline is not None:
                self._with_deadline.add(task.id)
        for request_id in mail.cancelled:
            if request_id in self._live:
                self._end(self._live[request_id], FinishReason.CANCELLED)
        for request_id, held in mail.held.items():
            if request_id in self._live:
                self._scheduler.hold(self._live[request_id], held)

    def _seconds_left(self) -> float | None:
        """Until the first deadline of those that stand aside; None if there is none."""
        found = [task.deadline for task in self._scheduler.aside if task.deadline is not None]
        return max(0.0, min(found) - time.monotonic()) if found else None

    def _expire(self) -> None:
        now = time.monotonic()
        for request_id in list(self._with_deadline):
            task = self._live[request_id]
            if task.deadline is not None and now >= task.deadline:
                self._end(task, FinishReason.TIMED_OUT)

    def _end(self, task: Task, reason: FinishReason) -> None:
        """Answer a request with what it has."""
        task.group.stop(reason)
        self._answer([task])

    def _advance(self, plan: Plan, result: StepResult) -> None:
        """Hand the rows of logits to the sequences they are for."""
        touched: list[Task] = []
        ready: dict[int, Ready] = {}
        now = time.monotonic()
        if plan.round is None:
            self._note_pieces(plan.works, result)
        else:
            self._note_round(plan.works)
        for number, (work, token) in enumerate(zip(plan.works, self._choice.choose(plan, result), strict=True)):
            task, sequence = work.task, work.sequence
            if token is not None:
                add_token(task, sequence, token)
                self._note_token(task, now)
                if sequence.reason is not FinishReason.NOT_FINISHED:
                    touched.append(task)
                elif task.streams_tokens:
                    self._outgoing.append(self._results.streamed(task, sequence))
                elif task.request.streaming:
                    touched.append(task)
            elif work.complete and task.pooled is not None:
                task.group.stop(FinishReason.LENGTH)
                self._note_token(task, now)
                touched.append(task)
            elif work.complete:
                self._collect(work, result, number, ready)
        if ready:
            touched += self._choose(list(ready.values()), now)
        self._answer(touched)

    def _note_round(self, works: Sequence[Work]) -> None:
        """The same as ``_note_pieces`` for one token of each, but faster."""
        for work in works:
            work.sequence.computed += 1
        self._counts.generation_requests += len(works)
        self._counts.generated_tokens += len(works)

    def _note_pieces(self, works: Sequence[Work], result: StepResult) -> None:
        """What was computed, and what is kept of prompts."""
        for number, work in enumerate(works):
            task, sequence = work.task, work.sequence
            self._count(work)
            sequence.computed += len(work.segment.tokens)
            if task.started:
                continue
            self._note_start(task)
            if task.extra_names or task.reads_whole_context:
                self._collect_context(work, result, number)
            if work.complete:
                self._begin(task, sequence)

    def _note_start(self, task: Task) -> None:
        if task.times.first_iteration is None:
            self._counts.new += 1
            self._counts.queue_seconds += self._counts.started - task.times.arrival
            task.times.first_scheduled = self._counts.started
            task.times.first_iteration = self._iteration

    def _count(self, work: Work) -> None:
        counts, tokens = self._counts, len(work.segment.tokens)
        if work.task.group.width > 1 and not counts.first_of(work.task.id):
            counts.context_tokens += tokens if tokens > 1 else 0
        elif tokens > 1 + len(work.task.drafts) or not work.task.started:
            counts.context_requests += 1
            counts.context_tokens += tokens
        else:
            counts.generation_requests += 1
            counts.generated_tokens += 1

    def _begin(self, task: Task, sequence: TokenSequence) -> None:
        """The prompt has been read for the first time: let others reuse it."""
        task.started = True
        task.stage = RequestStage.GENERATION_IN_PROGRESS
        self._cache.keep(task, sequence, whole_pages=True)

    def _note_token(self, task: Task, now: float) -> None:
        task.iterations += 1
        times = task.times
        times.first_token = times.first_token or now
        times.last_token = now
        times.last_iteration = self._iteration

    def _collect_context(self, work: Work, result: StepResult, number: int) -> None:
        """Keep logits and tensors of prompt tokens, the first time they are computed."""
        task, rows = work.task, result.rows[number]
        if task.pooled is not None:
            task.pooled.add(result.extras[number][HIDDEN])
            return
        prompt = work.sequence.prompt_length - (work.sequence.computed - len(work.segment.tokens))
        if task.request.output_config.return_context_logits:
            task.context_logits.append(result.logits[rows][:prompt].copy())
        if task.prompt_alternatives is not None:
            said = task.request.input_token_ids[len(task.prompt_log_probs) + 1 :]
            for row, token in zip(result.logits[rows], said, strict=False):
                values = log_softmax(row)
                found = likeliest(values, task.prompt_alternatives)
                task.prompt_log_probs.append((float(values[token]), rank_of(values, token), found))
        for name in task.context_extra_names:
            task.context_extras.setdefault(name, []).append(result.extras[number][name][:prompt])

    def _collect(self, work: Work, result: StepResult, number: int, ready: dict[int, Ready]) -> None:
        """Note the last rows of a sequence: one, and one for each draft."""
        task, sequence = work.task, work.sequence
        drafts = len(task.drafts)
        rows = result.logits[result.rows[number]][-1 - drafts :]
        if task.request.output_config.return_generation_logits:
            sequence.generation_logits += list(rows.copy())
        for name in task.extra_names:
            sequence.extras.setdefault(name, []).extend(result.extras[number][name][-1 - drafts :])
        item = ready.setdefault(task.id, Ready(task, [], []))
        item.sequences.append(sequence)
        item.rows.append(rows)

    def _choose(self, ready: list[Ready], now: float) -> list[Task]:
        """Post-processors, then each group's own way to the next tokens."""
        failed = {task.id: error for task, error in self._processors.run(ready)}
        chosen = []
        for item in ready:
            task = item.task
            if task.id in failed:
                self._fail([task], f"the logits post-processor failed: {reason_of(failed[task.id])}")
                continue
            try:
                task.group.advance(task, self._runner, item.sequences, item.rows)
                if task.drafts:
                    self._drafting.settle(task, item.sequences[0], self._counts)
            except BaseException as error:  # a grammar, or a fault in choosing: fails this request only
                self._refuse(task, f"choosing a token failed: {text_of(error)}", error)
                continue
            self._note_token(task, now)
            chosen.append(task)
        return chosen

    def _answer(self, tasks: Sequence[Task]) -> None:
        """Prepare what is owed, and let go of what is done."""
        for task in tasks:
            try:
                owed = self._results.collect(task, self._iteration) if _owes(task) else []
            except Exception as error:  # what cannot be answered with is no reason to end others
                self._fail([task], f"the engine failed: {text_of(error)}")
                continue
            self._outgoing += owed
            if owed and owed[-1].result.is_final:
                for sequence in task.group.sequences:
                    self._cache.keep(task, sequence)
                self._drop(task)
            elif task.group.width > 1 and not task.group.together:
                self._close_finished(task)

    def _post(self) -> None:
        if self._outgoing:
            self._board.post(self._outgoing)
            self._outgoing = []

    def _close_finished(self, task: Task) -> None:
        for sequence in task.group.sequences:
            if sequence.finished and sequence.seq is not None:
                self._cache.keep(task, sequence)
                self._cache.close_sequence(sequence)
                sequence.forget_prompt()

    def _fail(self, tasks: Sequence[Task], text: str) -> None:
        """Answer requests with an error."""
        for task in tasks:
            self._drop(task)
        self._outgoing += [Response(task.id, text, task.request.client_id) for task in tasks]

    def _refuse(self, task: Task, text: str, error: BaseException) -> None:
        """Answer a request with an error, which is its own fault if ``error`` is one of an argument."""
        if not isinstance(error, InvalidArgumentError):
            self._fail([task], text)
            return
        self._drop(task)
        self._outgoing.append(Response.refused(task.id, task.request.client_id, CheckError(text)))

    def _drop(self, task: Task) -> None:
        self._live.pop(task.id, None)
        self._with_deadline.discard(task.id)
        task.stage = RequestStage.GENERATION_COMPLETE
        self._scheduler.finish(task)
        self._drafting.forget(task)
        if task.lease is not None:
            task.lease.release()
        self._completed += 1
        self._ended.append(task)


def _owes(task: Task) -> bool:
    """Whether a response is due: something new for a stream, or something that ended."""
    return (
        task.request.streaming
        or task.group.done()
        or any(sequence.finished and not sequence.answered for sequence in task.group.sequences)
    )
