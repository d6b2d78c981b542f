"""A request on its way through a slot: with control inputs and states, and a sender that sees its end."""

from collections.abc import Callable

from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import LayerSender
from repoagent.serving.scheduling.sequence_controls import SequenceControls
from repoagent.serving.scheduling.sequence_states import SequenceStates
from repoagent.serving.scheduling.sequence_table import Slot

__all__ = ["put_into_slot"]


class _SlotSender(LayerSender):
    """Keeps the states that come with an answer in ``slot``, and calls ``over`` after the final one."""

    __slots__ = ("_over", "_requested", "_slot", "_states")

    def __init__(
        self, request: InferRequest, slot: Slot, states: SequenceStates | None, over: Callable[[], None]
    ) -> None:
        super().__init__(request)
        self._slot = slot
        self._states = states
        self._requested = request.requested_outputs
        self._over = over

    def send(self, response: InferResponse | None, final: bool) -> None:
        if response is not None and response.error is None and self._states is not None:
            held = self._states.take(response, self._requested)
            if not self._request.asked.sequence_end:  # After an end the slot belongs to another sequence.
                self._slot.states = held
        try:
            super().send(response, final)
        finally:
            if final:
                self._over()


def put_into_slot(
    request: InferRequest, slot: Slot, controls: SequenceControls, over: Callable[[], None]
) -> InferRequest:
    """Make ``request`` ready for execution; ``over`` is called after its final answer, on the thread that sends it."""
    states = controls.states
    _SlotSender(request, slot, states, over)
    inputs = {**request.inputs, **controls.of(request)}
    if states is not None:
        inputs |= states.inputs(slot.states, request)
        request.requested_outputs = states.wanted(request.requested_outputs)
    request.inputs = inputs
    return request
