"""The one thread that waits for the executor's answers and hands them on."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from repoagent.errors import UnavailableError
from repoagent.executor import Executor, Response
from repoagent.executor.errors import ExecutorStoppedError
from repoagent.serving.backends.llm.generation import Generation
from repoagent.serving.backends.llm.measures import Gauges
from repoagent.serving.instances import as_repoagent_error

__all__ = ["Dispatcher"]

_PERIOD: Final = 0.1
"""Seconds after which it looks for requests that were given up, and at the statistics."""


class Dispatcher:
    """Sends generations into ``executor``, and its responses to where they belong. Owns both that and ``gauges``."""

    def __init__(self, executor: Executor, model_name: str, gauges: Gauges) -> None:
        self._executor = executor
        self._model_name = model_name
        self._gauges = gauges
        self._changed = threading.Condition()
        self._pending: dict[int, Generation] = {}
        """By the executor's ids."""
        self._closed = False
        self._looked = 0.0
        self._thread = threading.Thread(target=self._run, name=f"repoagent-{model_name}-llm", daemon=True)
        self._thread.start()

    def submit(self, generations: Sequence[Generation]) -> None:
        """Send generations, all or none; they are answered from here on.

        Raises:
            UnavailableError: the executor takes no more.
        """
        with self._changed:  # An answer is looked at only when its id is known.
            ids = self._executor.enqueue_requests([generation.request for generation in generations])
            self._pending.update(zip(ids, generations, strict=True))
            self._changed.notify()

    def close(self) -> None:
        """Stop the executor; what is unanswered gets an error."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._executor.shutdown()
        self._thread.join()
        for generation in self._pending.values():
            generation.reply.fail(UnavailableError(f"model '{self._model_name}' is unloaded"))
        self._pending.clear()
        self._gauges.close()

    def _run(self) -> None:
        with suppress(ExecutorStoppedError):  # By close, which answers the rest.
            while self._wait():
                for response in self._executor.await_responses(timedelta(seconds=_PERIOD)):
                    self._hand_on(response)
                if time.monotonic() - self._looked >= _PERIOD:
                    self._look_around()

    def _wait(self) -> bool:
        """Wait until there is something to wait for; False when all is over."""
        with self._changed:
            if not self._changed.wait_for(self._busy, _PERIOD):
                self._look_around()  # The statistics of the last answer's iteration come a little after it.
                self._changed.wait_for(self._busy)
            return not self._closed

    def _busy(self) -> bool:
        return bool(self._pending) or self._closed

    def _hand_on(self, response: Response) -> None:
        with self._changed:
            generation = self._pending.get(response.request_id)
        if generation is None:
            return  # It ended at a word of its text, and is cancelled.
        final = response.has_error() or response.result.is_final
        if self._taken(generation, response) or final:
            with self._changed:
                del self._pending[response.request_id]
            if not final:
                self._executor.cancel_request(response.request_id)

    def _taken(self, generation: Generation, response: Response) -> bool:
        """Let ``generation`` have a response; True if it wants no more."""
        try:
            if not response.has_error():
                return generation.take(response.result)
            generation.reply.fail(response.error)
        except Exception as error:  # One request must not end the thread of all.
            generation.reply.fail(as_repoagent_error(error, self._model_name))
        return True

    def _look_around(self) -> None:
        """Cancel what nobody waits for, and show the last statistics."""
        self._looked = time.monotonic()
        with self._changed:
            pending = list(self._pending.items())
        for request_id, generation in pending:
            if generation.reply.unwanted:
                self._executor.cancel_request(request_id)
        for stats in self._executor.get_latest_iteration_stats()[-1:]:
            self._gauges.show(stats)
