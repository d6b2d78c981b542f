"""Where a ``model.py`` sends its responses."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from repoagent.errors import RepoAgentError
from repoagent.serving.backends.python.model.errors import TritonModelException, raising_tritons
from repoagent.serving.backends.python.model.response import InferenceResponse, response_of
from repoagent.serving.requests.request import InferRequest, InferResponse

__all__ = ["FINAL", "InferenceResponseSender"]

FINAL: Final = 1


class InferenceResponseSender:
    """Where a model sends the responses to one request, from any thread.

    ``wanted``: see :func:`response_of`; ``over`` hears of the final response. A model that is not ``decoupled`` sends
    exactly one response, with the final flag or before it; the server gets it with the flag.
    """

    __slots__ = ("_decoupled", "_held", "_lock", "_open", "_over", "_request", "_sent", "_version", "_wanted")

    def __init__(
        self,
        request: InferRequest,
        version: str,
        wanted: Sequence[str] = (),
        over: "Callable[[InferenceResponseSender], object] | None" = None,
        *,
        decoupled: bool = True,
    ) -> None:
        self._request = request
        self._version = version
        self._wanted = wanted
        self._over = over
        self._decoupled = decoupled
        self._lock = threading.Lock()
        self._open = True
        self._sent = False
        self._held: InferResponse | None = None
        """The one response of a model that is not decoupled, which has still to send the final flag."""

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send one response; with ``TRITONSERVER_RESPONSE_COMPLETE_FINAL`` it is the last, and may be None.

        Raises:
            TritonModelException: neither a response nor the final flag was given, or the last one has gone.
        """
        if flags not in (0, FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags != FINAL:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"response must be an InferenceResponse or None, not {type(response).__name__}")
        final = flags == FINAL
        with self._lock:
            self._check(response is not None)
            answer = None if response is None else response_of(self._request, self._version, response, self._wanted)
            self._sent = True
            if self._decoupled or (final and answer is not None):
                self._send(answer, final=final)
            elif final:
                self._send(self._held, final=True)
            else:
                self._held = answer

    def _check(self, with_response: bool) -> None:
        """Raise what Triton's sender would."""
        if not self._decoupled and with_response and self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )
        if not self._decoupled and not with_response and not self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )
        if not self._open:
            raise TritonModelException("Unable to send response. Response sender has been closed.")

    def reschedule(self) -> bool:
        """Have the request executed again, unless it has had its final response; not part of Triton's interface."""
        with self._lock:
            if self._open and self._held is None:
                self._request.rescheduled = True
                self._send(None, final=True)
                return True
            return False

    def fail(self, error: RepoAgentError) -> None:
        """Answer the request with ``error``, unless it has had its final response; not part of Triton's interface.

        A response that waits for its final flag is sent instead.
        """
        with self._lock:
            if self._open:
                answer = InferResponse(self._request.model_name, self._version, id=self._request.asked.id, error=error)
                self._send(self._held or answer, final=True)

    def _send(self, answer: InferResponse | None, *, final: bool) -> None:
        if final:
            self._open = False
            self._held = None
            if self._over is not None:
                self._over(self)
        self._request.send(answer, final)

    @raising_tritons
    def is_cancelled(self) -> bool:
        return self._request.cancelled

    @property
    def open(self) -> bool:
        """Whether the final response is still to come."""
        return self._open
