"""The one thread that waits for the executor's answers and hands them on."""

import itertools
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from repoagent.errors import UnavailableError
from repoagent.serving.instances.instance import as_repoagent_error
from repoagent.serving.measuring.custom_metrics import REGISTRY
from repoagent_llm import Executor, IterationStats, Response
from repoagent_llm.backend.generation import Generation, Reply
from repoagent_llm.backend.llm_metrics import LlmMetrics
from repoagent_llm.types.executor_errors import ExecutorStoppedError

_PERIOD: Final = 0.1
"""Seconds for which statistics that were shown are recent enough."""


class Dispatcher:
    """Sends generations into ``executor``, and its responses to where they belong. Owns both that and ``metrics``."""

    def __init__(self, executor: Executor, model_name: str, metrics: LlmMetrics) -> None:
        self._executor = executor
        self._model_name = model_name
        self._metrics = metrics
        self._changed = threading.Condition()
        self._pending: dict[int | None, Generation] = {}
        """By the numbers that their requests carry."""
        self._numbers = itertools.count(1)
        self._closed = False
        self._showing = threading.Lock()
        self._shown = 0.0
        self._stats: list[IterationStats] = []
        """Those that were shown last, if any were."""
        REGISTRY.refresh_by(self._show)
        self._thread = threading.Thread(target=self._run, name=f"repoagent-{model_name}-llm", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether generations are taken."""
        return not self._closed and self._executor.can_enqueue_requests()

    def submit(self, reply: Reply, generations: Sequence[Generation]) -> None:
        """Send the generations of ``reply``; they are answered from here on, or all of them refused at once."""
        now = time.monotonic()
        with self._changed:
            for generation in generations:
                generation.course.sent = now
                generation.request.client_id = next(self._numbers)
                self._pending[generation.request.client_id] = generation
            self._changed.notify()
        try:  # Not under the lock: to read a grammar takes a while, and others are answered meanwhile.
            ids = self._executor.enqueue_requests([generation.request for generation in generations])
        except BaseException as error:
            ours = [self._let_go(generation) for generation in generations]
            if any(ours):
                reply.fail(as_repoagent_error(error, self._model_name))
        else:
            reply.begin(partial(self._cancel, ids), partial(self._hold, ids))

    def _let_go(self, generation: Generation) -> bool:
        """Whether it was still to be answered; now it is not."""
        with self._changed:
            return self._pending.pop(generation.request.client_id, None) is not None

    def _cancel(self, ids: Sequence[int]) -> None:
        with suppress(ExecutorStoppedError):
            for request_id in ids:  # The executor leaves alone what has ended.
                self._executor.cancel_request(request_id)

    def _hold(self, ids: Sequence[int], held: bool) -> None:
        with suppress(ExecutorStoppedError):
            for request_id in ids:
                self._executor.hold_request(request_id, held=held)

    def close(self) -> None:
        """Stop the executor; what is unanswered gets an error."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._executor.shutdown()
        self._thread.join()
        REGISTRY.refresh_no_more(self._show)
        with self._showing:  # a reader may be in there still
            self._metrics.close()

    def _run(self) -> None:
        with suppress(ExecutorStoppedError):  # By close, or it broke down.
            while (self._pending and not self._closed) or self._wait():
                for response in self._executor.await_responses():
                    self._hand_on(response)
        error = UnavailableError(f"model '{self._model_name}' is unloaded, or its executor broke down: see the log")
        with self._changed:
            self._closed = True
            left = list(self._pending.values())
        for generation in left:
            if self._let_go(generation):
                generation.reply.fail(error)

    def _wait(self) -> bool:
        """Wait until there is something to wait for; False when all is over."""
        with self._changed:
            self._changed.wait_for(self._busy)
            return not self._closed

    def _busy(self) -> bool:
        return bool(self._pending) or self._closed

    def _hand_on(self, response: Response) -> None:
        generation = self._pending.get(response.client_id)
        if generation is None:
            return  # It ended at a word of its text, and is cancelled.
        course = generation.course
        if not course.first:
            course.first = time.monotonic()
        if self._taken(generation, response) or response.is_last:
            self._let_go(generation)
            if not response.has_error():
                prompt = len(generation.request.input_token_ids)
                self._metrics.count(prompt, generation.generated, course, streamed=generation.streamed)
            if not response.is_last:
                self._cancel([response.request_id])

    def _taken(self, generation: Generation, response: Response) -> bool:
        """Let ``generation`` have a response; True if it wants no more."""
        try:
            if (streamed := response.streamed_tokens) is not None:
                return generation.take_tokens(*streamed)
            if not response.has_error():
                return generation.take(response.result)
            generation.reply.fail(response.error)
        except BaseException as error:  # One request must not end the thread of all; libraries in Rust panic.
            generation.reply.fail(as_repoagent_error(error, self._model_name))
        return True

    def _show(self) -> None:
        """Show the last statistics, for a reader of metrics."""
        with self._showing, suppress(ExecutorStoppedError):
            if self._closed or time.monotonic() - self._shown < _PERIOD:
                return
            self._stats = (self._executor.get_latest_iteration_stats() or self._stats)[-1:]
            self._shown = time.monotonic()
            for stats in self._stats:
                if self._pending:
                    self._metrics.show(stats)
                else:
                    self._metrics.rest(stats)
            if most := self._executor.most_adapters:
                self._show_adapters(most)

    def _show_adapters(self, most: int) -> None:
        """Which adapters have requests that run, and which have some that wait."""
        with self._changed:
            pending = [each for each in self._pending.values() if each.adapter]
        ids = self._executor.running_client_ids() if pending else set()
        found = {each.adapter for each in pending if each.request.client_id in ids}
        waiting = {each.adapter for each in pending if each.request.client_id not in ids}
        self._metrics.show_adapters(found, waiting, most)
