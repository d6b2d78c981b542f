"""Models that are not decoupled and answer through response senders, while ``execute`` runs or later."""

import threading
from typing import Any

import numpy as np
import pytest

from repoagent.errors import InternalError
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor

pytestmark = pytest.mark.slow

LATER = """
import threading

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            thread = threading.Thread(target=self.answer, args=(request.get_response_sender(), x.copy()))
            thread.start()
        return {returned}

    def answer(self, sender, x):
        response = pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 2)])
        sender.send(response{flags})
"""
FINAL = ", flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"
TWO_STEPS = ")\n        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"


@pytest.mark.parametrize("returned", ["None", "[None] * len(requests)"])
@pytest.mark.parametrize("flags", [FINAL, TWO_STEPS])
def test_a_request_may_be_answered_after_execute_has_returned_none(
    run_anywhere: Any, returned: str, flags: str
) -> None:
    model = run_anywhere(LATER.replace("{returned}", returned).replace("{flags}", flags))
    first, second = model.ask([1.0], [2.0, 3.0])
    assert first.wait()[0].outputs["y"].array.tolist() == [2.0]
    assert second.wait()[0].outputs["y"].array.tolist() == [4.0, 6.0]
    assert [len(answers.responses) for answers in (first, second)] == [1, 1]


KEPT = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        self.kept += requests
        if len(self.kept) < 3:
            return None
        for request in self.kept:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("y", x + len(self.kept))])
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.kept = []
        return [None]
"""


def test_a_request_that_the_model_keeps_may_be_answered_with_a_later_batch(run_anywhere: Any) -> None:
    model = run_anywhere(KEPT)
    answers = [model.ask([float(value)])[0] for value in range(3)]
    assert [a.wait()[0].outputs["y"].array.tolist() for a in answers] == [[3.0], [4.0], [5.0]]


def test_a_mixed_batch_is_answered_by_return_and_by_sender(run_anywhere: Any) -> None:
    model = run_anywhere(
        """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for number, request in enumerate(requests):
            response = pb_utils.InferenceResponse([pb_utils.Tensor("y", request.inputs()[0].as_numpy())])
            if number % 2:
                request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            responses.append(None if number % 2 else response)
        return responses
"""
    )
    answers = model.ask([1.0], [2.0], [3.0])
    assert [a.wait()[0].outputs["y"].array.tolist() for a in answers] == [[1.0], [2.0], [3.0]]


SENDS = """
class TritonPythonModel:
    def execute(self, requests):
        sender = requests[0].get_response_sender()
        response = pb_utils.InferenceResponse([pb_utils.Tensor("y", requests[0].inputs()[0].as_numpy())])
        FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            {statement}
        except pb_utils.TritonModelException as error:
            answer = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
            if sender.is_cancelled() is False and "{statement}".startswith("sender.send(flags"):
                sender.send(answer, FINAL)
            pb_utils.Logger.log_info("refused: " + str(error))
            self.text = str(error)
        return None

    def finalize(self):
        pb_utils.Logger.log_info(self.text)
"""


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (
            "sender.send(flags=FINAL)",
            "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
        ),
        (
            "sender.send(response); sender.send(response, FINAL)",
            "Unable to send response. Non-decoupled model cannot send more than one response.",
        ),
        (
            "sender.send(response, FINAL); sender.send(response)",
            "Unable to send response. Non-decoupled model cannot send more than one response.",
        ),
        ("sender.send(response, FINAL); sender.send(flags=FINAL)", "Response sender has been closed."),
        ("sender.send(response, 2)", "Unable to send response. Unsupported flag provided."),
        ("sender.send()", "Inference Response object must be provided when the response flags is set to zero."),
    ],
)
def test_what_triton_refuses_is_refused_in_its_words(
    run_anywhere: Any, caplog: pytest.LogCaptureFixture, statement: str, text: str
) -> None:
    caplog.set_level("INFO")
    model = run_anywhere(SENDS.replace("{statement}", statement))
    model.ask([1.0])
    model.close()
    assert text in caplog.text


def test_a_response_whose_final_flag_does_not_come_is_sent_when_the_model_is_unloaded(run_anywhere: Any) -> None:
    model = run_anywhere(LATER.replace("{returned}", "None").replace("{flags}", ""))
    (answers,) = model.ask([1.0])
    model.close()
    response = answers.wait()[0]
    # Whichever came first: the response, or the end.
    assert response.error is not None or response.outputs["y"].array.tolist() == [2.0]


NEVER = """
class TritonPythonModel:
    def execute(self, requests):
        self.senders = [request.get_response_sender() for request in requests]
        return None
"""


def test_what_is_never_answered_is_answered_when_the_model_is_unloaded(run_anywhere: Any) -> None:
    model = run_anywhere(NEVER)
    (answers,) = model.ask([1.0])
    assert not answers.finals
    model.close()
    assert str(answers.wait()[0].error) == "model 'm' is unloaded"


def test_what_a_process_still_owes_when_it_ends_is_an_error(run_in_process_of_its_own: Any) -> None:
    model = run_in_process_of_its_own(NEVER)
    (answers,) = model.ask([1.0])
    model.instance.supervisor.child.kill()
    error = answers.wait()[0].error
    assert isinstance(error, InternalError)
    assert "Stub process 'm_0_0' is not healthy" in str(error)


def test_returning_a_response_that_was_sent_already_fails_nothing(run_anywhere: Any) -> None:
    model = run_anywhere(
        """
class TritonPythonModel:
    def execute(self, requests):
        response = pb_utils.InferenceResponse([pb_utils.Tensor("y", requests[0].inputs()[0].as_numpy())])
        requests[0].get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return [response]
"""
    )
    (answers,) = model.ask([1.0])
    assert answers.finals == 1
    assert answers.responses[0].outputs["y"].array.tolist() == [1.0]


def test_a_decoupled_model_that_forgets_a_request_answers_it_with_an_error(run_anywhere: Any) -> None:
    config = """
    name: "m" backend: "python" model_transaction_policy { decoupled: true }
    input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }]
    output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]
    """
    body = "class TritonPythonModel:\n    def execute(self, requests):\n        return None\n"
    (answers,) = run_anywhere(body, config).ask([1.0])
    assert "execute returned no response for this request" in str(answers.wait()[0].error)


TOGETHER = """
name: "m" backend: "python"
input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]
"""


def test_who_waits_for_a_late_answer_does_not_keep_others_from_the_instance(core_of: Any) -> None:
    """KEPT answers three requests when the third is there: by ``infer`` that takes three threads and one instance."""
    core = core_of(KEPT, TOGETHER)
    results: dict[float, float] = {}

    def ask(value: float) -> None:
        results[value] = float(
            core.infer(InferRequest(Asked("m", {"x": Tensor.of(np.array([value], np.float32))}))).outputs["y"].array[0]
        )

    threads = [threading.Thread(target=ask, args=(float(value),)) for value in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {0.0: 3.0, 1.0: 4.0, 2.0: 5.0}
