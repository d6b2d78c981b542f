"""Iterative sequences: models that reschedule requests, as Triton's documentation shows them."""

import queue
import threading
from typing import Any

import numpy as np
import pytest

from repoagent.errors import CancelledError, InternalError
from repoagent.serving.requests.request import DISCARD, Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from tests.serving.core_kit import Answers

pytestmark = pytest.mark.slow

TENSORS = """
name: "m" backend: "python"
input [{ name: "IN" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "OUT" data_type: TYPE_INT32 dims: [1] }]
"""
ITERATIVE = "sequence_batching { iterative_sequence: true }"
DECOUPLED = "model_transaction_policy { decoupled: true }"

STREAM = """
class TritonPythonModel:
    def initialize(self, args):
        self.reset_flag = True

    def execute(self, requests):
        for request in requests:
            in_input = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if self.reset_flag:
                self.remaining_response = in_input[0]
                self.reset_flag = False
            response_sender = request.get_response_sender()
            self.remaining_response -= 1
            out_output = pb_utils.Tensor("OUT", np.array([self.remaining_response], np.int32))
            response = pb_utils.InferenceResponse(output_tensors=[out_output])
            if self.remaining_response <= 0:
                response_sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                self.reset_flag = True
            else:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                response_sender.send(response)
        return None
"""

COUNT = """
class TritonPythonModel:
    def initialize(self, args):
        self.turns = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            wanted = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().ravel()[0])
            name = request.correlation_id()
            if not name:  # An empty slot of a batch of the direct strategy, which nobody waits for.
                responses.append(pb_utils.InferenceResponse([]))
                continue
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                assert name not in self.turns
                self.turns[name] = 0
            self.turns[name] += 1
            if self.turns[name] < wanted:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
            else:
                shape = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().shape
                out = np.full(shape, self.turns.pop(name), np.int32)
                parameters = {"id": str(name), "open": len(self.turns)}
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)], parameters=parameters))
        return responses
"""


def request(value: int, *, batched: bool = False, sender: Any = DISCARD, **fields: Any) -> InferRequest:
    shape = (1, 1) if batched else (1,)
    return InferRequest(Asked("m", {"IN": Tensor.of(np.full(shape, value, np.int32))}, **fields), sender)


def test_a_decoupled_model_answers_in_every_execution(core_of: Any) -> None:
    core = core_of(STREAM, TENSORS + ITERATIVE + DECOUPLED)
    for wanted in (1, 2, 5):
        sender = Answers()
        core.submit(request(wanted, sender=sender))
        outputs = [int(response.outputs["OUT"].array[0]) for response in sender.wait()]
        assert outputs == list(range(wanted - 1, -1, -1))


def test_a_model_that_is_not_decoupled_answers_in_the_last_execution(core_of: Any) -> None:
    core = core_of(COUNT, TENSORS + ITERATIVE)
    assert [int(core.infer(request(wanted)).outputs["OUT"].array[0]) for wanted in (1, 3, 10)] == [1, 3, 10]
    (entry,) = core.statistics("m")["model_stats"]
    assert entry["execution_count"] == 14


def test_an_execution_is_counted_before_its_answer_goes_out(core_of: Any) -> None:
    """Else a client that has its answer, and asks at once, might not find it."""
    core = core_of(COUNT, TENSORS)
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()

    class Looking:
        def send(self, response: Any, final: bool) -> None:
            seen.put(core.statistics("m")["model_stats"][0]["execution_count"])

    for expected in (1, 2):
        core.submit(request(1, sender=Looking()))
        assert seen.get(timeout=60) == expected


@pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 2 }"])
def test_requests_share_batches_and_slots(core_of: Any, strategy: str) -> None:
    """Eight requests over few slots: each of them has its own sequence, and every slot is given on."""
    config = (TENSORS + ITERATIVE).replace("iterative_sequence", f"{strategy} iterative_sequence")
    core = core_of(COUNT, config + "max_batch_size: 2")
    senders = [Answers() for _ in range(8)]
    for number, sender in enumerate(senders):
        core.submit(request(1 + number % 4, batched=True, sender=sender, correlation_id=7 if number < 2 else 0))
    answers = [sender.wait() for sender in senders]
    assert [int(answer.outputs["OUT"].array[0, 0]) for (answer,) in answers] == [1, 2, 3, 4, 1, 2, 3, 4]
    names = [answer.parameters["id"] for (answer,) in answers]
    assert names[0] == "7", "the client's own, as no other request had it"
    assert len(set(names)) >= 7, "the second one had it only if the first one was over"


def test_control_inputs_are_those_of_the_sequence(core_of: Any) -> None:
    config = (
        TENSORS
        + """
    sequence_batching { iterative_sequence: true
      control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
      control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } }
    """
    )
    body = """
class TritonPythonModel:
    def initialize(self, args):
        self.seen = []

    def execute(self, requests):
        responses = []
        for request in requests:
            start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy()[0]
            name = pb_utils.get_input_tensor_by_name(request, "ID").as_numpy()[0].decode()
            self.seen.append(f"{start}{name}")
            if len(self.seen) < 3:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
            else:
                out = pb_utils.Tensor("OUT", np.zeros(1, np.int32))
                responses.append(pb_utils.InferenceResponse([out], parameters={"seen": " ".join(self.seen)}))
        return responses
"""
    assert core_of(body, config).infer(request(1)).parameters["seen"] == "11 01 01"


WRONG = """
class TritonPythonModel:
    def execute(self, requests):
        {statement}
        out = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.int32))])
        return [{returned}]
"""
RESCHEDULE = "requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)"


@pytest.mark.parametrize(
    ("statement", "returned", "config", "text"),
    [
        (RESCHEDULE, "None", "", "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, but the "),
        (RESCHEDULE, "out", ITERATIVE, "return list for reschduled request, found type '<class "),
        ("requests[0].set_release_flags(7)", "out", ITERATIVE, "Invalid request release flag"),
        ("raise ValueError('x')", "None", ITERATIVE, "ValueError: x"),
    ],
)
def test_what_makes_no_sense_is_an_error_and_ends_the_sequence(
    core_of: Any, statement: str, returned: str, config: str, text: str
) -> None:
    body = WRONG.replace("{statement}", statement).replace("{returned}", returned)
    core = core_of(body, TENSORS + config)
    for _ in range(2):  # The second one has the only slot.
        with pytest.raises(InternalError) as caught:
            core.infer(request(1))
        assert text in str(caught.value)


ENDLESS = """
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_info("turn")
        for request in requests:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return [None for _ in requests]
"""


def test_a_cancelled_request_is_not_executed_again(core_of: Any) -> None:
    core = core_of(ENDLESS, TENSORS + ITERATIVE)
    senders = [Answers(), Answers()]
    requests = [request(1, sender=sender) for sender in senders]
    for one in requests:
        core.submit(one)
    for one in requests:
        one.cancel()
    for sender in senders:
        assert isinstance(sender.wait()[-1].error, CancelledError)


def test_a_model_that_is_unloaded_finishes_what_it_has_rescheduled(core_of: Any) -> None:
    core = core_of(COUNT, TENSORS + ITERATIVE)
    senders = [Answers() for _ in range(4)]
    for sender in senders:
        core.submit(request(50, sender=sender))
    thread = threading.Thread(target=core.unload, args=("m",))
    thread.start()
    assert [int(sender.wait()[0].outputs["OUT"].array[0]) for sender in senders] == [50] * 4
    thread.join(60)
