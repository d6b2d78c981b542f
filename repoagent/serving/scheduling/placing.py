"""A request on its way through a slot: with control inputs and states, and a sender that tells when it is over."""

from collections.abc import Callable

from repoagent.serving.requests.request import InferRequest, InferResponse, ResponseSender
from repoagent.serving.scheduling.sequence_controls import SequenceControls
from repoagent.serving.scheduling.sequence_states import SequenceStates
from repoagent.serving.scheduling.sequence_table import Slot

__all__ = ["put_into_slot"]


class _SlotSender:
    """Takes the control inputs out again before the final answer goes on, and calls ``over`` after it.

    The states that come with an answer stay in ``slot``.
    """

    def __init__(
        self, request: InferRequest, slot: Slot, states: SequenceStates | None, over: Callable[[], None]
    ) -> None:
        self._request = request
        self._slot = slot
        self._states = states
        self._inputs = request.inputs
        self._requested = request.requested_outputs
        self._inner: ResponseSender | None = request.sender
        self._over = over

    def send(self, response: InferResponse | None, final: bool) -> None:
        inner = self._inner
        if response is not None and response.error is None and self._states is not None:
            held = self._states.take(response, self._requested)
            if not self._request.sequence_end:  # After an end the slot belongs to another sequence.
                self._slot.states = held
        if final:
            # The caller may use the request again, as it was.
            self._request.inputs = self._inputs
            self._request.requested_outputs = self._requested
            self._request.sender = inner
        try:
            if inner is not None:
                inner.send(response, final)
        finally:
            if final:
                self._over()


def put_into_slot(
    request: InferRequest, slot: Slot, controls: SequenceControls, over: Callable[[], None]
) -> InferRequest:
    """Make ``request`` ready for execution; ``over`` is called after its final answer, by whoever gives it."""
    states = controls.states
    request.sender = _SlotSender(request, slot, states, over)
    request.inputs = request.inputs | controls.of(request)
    if states is not None:
        request.inputs |= states.inputs(slot.states, request)
        request.requested_outputs = states.wanted(request.requested_outputs)
    return request
