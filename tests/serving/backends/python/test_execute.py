"""What a model.py may do in execute, and what becomes of what it does wrong."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from repoagent.errors import InternalError, NotFoundError
from repoagent.serving.backends.python.model import instance
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor

pytestmark = pytest.mark.slow
DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 2)]))
        return answers
"""
DECOUPLED = """
name: "m" backend: "python" model_transaction_policy { decoupled: true }
input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]
"""


def failing(statement: str) -> str:
    return f"class TritonPythonModel:\n    def execute(self, requests):\n        {statement}\n"


def test_every_request_of_a_batch_gets_its_own_answer(run_anywhere: Any) -> None:
    answers = run_anywhere(DOUBLE).ask([1.0], [2.0, 3.0])
    assert [a.responses[0].outputs["y"].array.tolist() for a in answers] == [[2.0], [4.0, 6.0]]
    assert [a.finals for a in answers] == [1, 1]


IN_PLACE = """
class TritonPythonModel:
    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        x *= 2
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])]
"""


def test_a_model_that_writes_into_its_inputs_changes_nobody_elses(
    run_model: Any, run_in_process_of_its_own: Any
) -> None:
    given = np.ones(2, np.float32)
    text = run_model(IN_PLACE).error(given)
    assert "in process, inputs belong to others as well: copy them, or set EXECUTION to 'process'" in text
    assert run_in_process_of_its_own(IN_PLACE).value(given).tolist() == [2.0, 2.0]
    assert given.tolist() == [1.0, 1.0]


def test_only_requested_outputs_are_sent(run_anywhere: Any) -> None:
    model = run_anywhere(
        DOUBLE.replace('[pb_utils.Tensor("y", x * 2)]', '[pb_utils.Tensor("y", x), pb_utils.Tensor("z", x)]')
    )
    (answers,) = model.ask([1.0], requested_outputs=("z",))
    assert list(answers.responses[0].outputs) == ["z"]


def test_a_request_that_names_no_output_asks_for_all_of_the_configuration_and_gets_no_others(run_anywhere: Any) -> None:
    model = run_anywhere(
        """
class TritonPythonModel:
    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        outputs = [pb_utils.Tensor(name, x) for name in [*requests[0].requested_output_names(), "not_in_the_file"]]
        return [pb_utils.InferenceResponse(outputs)]
"""
    )
    (answers,) = model.ask([1.0])
    assert list(answers.responses[0].outputs) == ["y"]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("{'a': [1]}", "values to have type bool/int/str, found type <class 'list'>"),
        ("{'a': None}", "values to have type bool/int/str, found type <class 'NoneType'>"),
        ("{5: 'x'}", "keys to have type str, found type <class 'int'>"),
        ("{'a': np.int64(1)}", "values to have type bool/int/str, found type <class 'numpy.int64'>"),
        ("{'a': 1.5}", "values to have type bool/int/str, found type <class 'float'>"),
    ],
)
@pytest.mark.parametrize(
    "call", ["InferenceResponse([], parameters=%s)", "InferenceRequest('', 0, [], [], 'n', parameters=%s)"]
)
def test_parameters_that_no_protocol_can_send_are_refused_where_they_are_given(
    run_model: Any, call: str, parameters: str, expected: str
) -> None:
    text = run_model("import numpy as np\n" + failing(f"pb_utils.{call % parameters}")).error()
    assert f"TritonModelException: Expect parameters {expected}" in text


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("raise ValueError('too cold')", "model instance 'm_0_0', message: ValueError: too cold"),
        ("raise pb_utils.TritonModelException('no')", "TritonModelException: no"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import asyncio; raise asyncio.CancelledError('enough')", "CancelledError: enough"),
        ("return None", "execute returned no response for this request, and kept neither it nor its response sender"),
        ("return [None]", "execute returned no response for this request"),
        ("return {}", "Expected a list in the execute return, found type '<class 'dict'>'."),
        ("return []", "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0"),
        (
            "return [3]",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'.",
        ),
        ("return [pb_utils.InferenceResponse(error=pb_utils.TritonError('mine'))]", "mine"),
    ],
)
def test_what_goes_wrong_becomes_the_error_of_the_request(run_model: Any, statement: str, text: str) -> None:
    assert text in run_model(failing(statement)).error()


def test_the_code_of_an_error_is_kept(run_anywhere: Any) -> None:
    body = failing(
        "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('gone', pb_utils.TritonError.NOT_FOUND))]"
    )
    (answers,) = run_anywhere(body).ask([1.0])
    assert answers.responses[0].error.code.name == "NOT_FOUND"


def test_a_request_shows_what_the_client_sent(run_anywhere: Any) -> None:
    body = """
import json
class TritonPythonModel:
    def execute(self, requests):
        r = requests[0]
        self.seen = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.priority(),
                     json.loads(r.parameters()), r.requested_output_names(), r.is_cancelled(), r.model_name()]
        pb_utils.Logger.log_info(self.seen)
        return [pb_utils.InferenceResponse([], parameters={"seen": json.dumps(self.seen)})]
"""
    (answers,) = run_anywhere(body).ask(
        [1.0],
        id="r7",
        correlation_id="s",
        sequence_start=True,
        timeout_us=5,
        priority=2,
        parameters={"k": 1},
        requested_outputs=("y",),
    )
    assert answers.responses[0].parameters["seen"] == '["r7", "s", 1, 5, 2, {"k": 1}, ["y"], false, "m"]'


def test_a_decoupled_model_answers_as_often_as_it_likes_from_any_thread(run_anywhere: Any) -> None:
    body = """
import threading
class TritonPythonModel:
    def execute(self, requests):
        self.thread = threading.Thread(target=self.answer, args=(requests[0].get_response_sender(),))
        self.thread.start()
    def answer(self, sender):
        for i in range(3):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", __import__("numpy").float32([i]))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    def finalize(self):
        self.thread.join()
"""
    (answers,) = run_anywhere(body, DECOUPLED).ask([1.0])
    answers.wait()
    assert [r.outputs["y"].array.tolist() for r in answers.responses] == [[0.0], [1.0], [2.0]]
    assert answers.finals == 1


def test_a_decoupled_model_that_raises_fails_only_what_it_had_not_finished(run_anywhere: Any) -> None:
    body = failing("requests[0].get_response_sender().send(flags=1); raise RuntimeError('later')")
    first, second = run_anywhere(body, DECOUPLED).ask([1.0], [2.0])
    assert first.responses == []
    assert first.finals == 1
    assert "later" in str(second.responses[0].error)


def test_a_final_response_that_cannot_be_sent_is_not_the_final_one(run_anywhere: Any) -> None:
    body = failing("requests[0].get_response_sender().send('no response', 1)")
    (answers,) = run_anywhere(body, DECOUPLED).ask([1.0])
    assert "response must be an InferenceResponse or None, not str" in str(answers.wait()[0].error)


@pytest.mark.parametrize("keyword", ["", "async "])
def test_what_a_decoupled_model_has_not_answered_is_answered_when_it_is_unloaded(
    run_anywhere: Any, keyword: str
) -> None:
    body = failing("self.requests = requests").replace("def execute", f"{keyword}def execute")
    model = run_anywhere(body, DECOUPLED)
    (answers,) = model.ask([1.0])
    model.close()
    assert str(answers.wait()[0].error) == "model 'm' is unloaded"


def test_a_coroutine_that_does_not_end_is_cancelled_when_the_model_is_unloaded(
    run_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "_PATIENCE_SECONDS", 0.01)
    model = run_model(failing("await __import__('asyncio').Event().wait()").replace("def", "async def"), DECOUPLED)
    (answers,) = model.ask([1.0])
    model.close()
    assert answers.wait()[0].error is not None


def test_a_coroutine_of_a_decoupled_model_does_not_hold_up_the_next_batch(run_anywhere: Any) -> None:
    body = """
import asyncio
class TritonPythonModel:
    def initialize(self, args):
        self.gate = None
    async def execute(self, requests):
        self.gate = self.gate or asyncio.Event()
        sender = requests[0].get_response_sender()
        if pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()[0] == 0:
            await self.gate.wait()
        else:
            self.gate.set()
        sender.send(pb_utils.InferenceResponse([]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    model = run_anywhere(body, DECOUPLED)
    (waiting,) = model.ask([0.0])
    (passing,) = model.ask([1.0])
    passing.wait()
    waiting.wait()
    assert (passing.finals, waiting.finals) == (1, 1)


def test_a_coroutine_that_is_cancelled_is_an_error_of_its_requests(run_anywhere: Any) -> None:
    body = """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)
"""
    (answers,) = run_anywhere(body, DECOUPLED).ask([1.0])
    assert "CancelledError" in str(answers.wait()[0].error)


def test_a_sender_refuses_what_makes_no_sense(run_anywhere: Any) -> None:
    body = """
class TritonPythonModel:
    def execute(self, requests):
        sender = requests[0].get_response_sender()
        texts = []
        for args in ((), (None, 7)):
            try:
                sender.send(*args)
            except pb_utils.TritonModelException as error:
                texts.append(str(error))
        other = requests[1].get_response_sender()
        other.send(flags=1)
        try:
            other.send(flags=1)
        except pb_utils.TritonModelException as error:
            texts.append(str(error))
        sender.send(pb_utils.InferenceResponse([], parameters={"texts": "/".join(texts)}), 1)
"""
    answers, _ = run_anywhere(body, DECOUPLED).ask([1.0], [1.0])
    assert answers.wait()[0].parameters["texts"].split("/") == [
        "Inference Response object must be provided when the response flags is set to zero.",
        "Unable to send response. Unsupported flag provided.",
        "Unable to send response. Response sender has been closed.",
    ]


def test_another_model_is_asked_on_the_same_thread_and_on_one_that_the_model_started(run_anywhere: Any) -> None:
    body = """
from concurrent.futures import ThreadPoolExecutor
class TritonPythonModel:
    def ask(self, x):
        request = pb_utils.InferenceRequest(model_name="double", inputs=[pb_utils.Tensor("x", x.as_numpy())],
            requested_output_names=[])
        return pb_utils.get_output_tensor_by_name(request.exec(), "y")
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "x")
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(self.ask, self.ask(x))
            y = other.result().as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", y)])]
"""
    assert run_anywhere(body).value([3.0]).tolist() == [12.0]


def test_a_model_may_call_another_one_while_it_is_initialised(run_anywhere: Any) -> None:
    """P25: Triton refuses it; difference 31."""
    body = """
class TritonPythonModel:
    def initialize(self, args):
        x = pb_utils.Tensor("x", __import__("numpy").float32([4]))
        self.y = pb_utils.InferenceRequest("", 0, [x], ["y"], "double").exec().output_tensors()
    def execute(self, requests):
        return [pb_utils.InferenceResponse(self.y)]
"""
    assert run_anywhere(body).value([1.0]).tolist() == [8.0]


def test_asynchronous_and_decoupled_calls_of_other_models(run_anywhere: Any) -> None:
    body = """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "x")
        def request(**parameters):
            return pb_utils.InferenceRequest(model_name="double", inputs=[pb_utils.Tensor("x", x.as_numpy())],
                                             requested_output_names=[], parameters=parameters)
        one, two = await asyncio.gather(request().async_exec(), request().async_exec())
        many = [r async for r in await request(twice=True).async_exec(decoupled=True)]
        again = request(twice=True).exec(decoupled=True)
        assert len(list(again)) == len(list(again)) == 3, "two responses and the empty end, as often as one likes"
        many += list(again)
        many = [response for response in many if response.output_tensors()]
        total = sum(pb_utils.get_output_tensor_by_name(r, "y").as_numpy() for r in [one, two, *many])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", total)])]
"""
    assert run_anywhere(body).value([1.0]).tolist() == [12.0]


def test_a_request_to_another_model_can_be_sent_again_before_it_is_answered(run_anywhere: Any) -> None:
    body = """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        request = pb_utils.InferenceRequest("7", 0, [pb_utils.Tensor("x", requests[0].inputs()[0].as_numpy())],
                                            ["y"], "four")
        answers = await asyncio.gather(*[request.async_exec() for _ in range(4)])
        total = sum(pb_utils.get_output_tensor_by_name(answer, "y").as_numpy() for answer in answers)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", total)])]
"""
    assert run_anywhere(body).value([1.0]).tolist() == [8.0]


def test_a_coroutine_iterates_over_the_answers_of_a_decoupled_model_with_a_plain_for(run_anywhere: Any) -> None:
    body = """
class TritonPythonModel:
    async def execute(self, requests):
        x = requests[0].inputs()
        request = pb_utils.InferenceRequest("", 0, x, [], "double", parameters={"twice": True})
        total = 0
        for answer in await request.async_exec(decoupled=True):
            total += sum(tensor.as_numpy() for tensor in answer.output_tensors())
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", total)])]
"""
    assert run_anywhere(body).value([1.0]).tolist() == [4.0]


def test_a_model_may_stop_listening_to_another_one_and_cancel_its_request(run_anywhere: Any) -> None:
    body = """
class TritonPythonModel:
    def execute(self, requests):
        self.request = pb_utils.InferenceRequest("", 0, requests[0].inputs(), [], "four")
        self.request.exec(decoupled=True).cancel()
        return [pb_utils.InferenceResponse([])]
"""
    model = run_anywhere(body)
    model.ask([1.0])
    (given_up,) = model.core.unanswered
    assert given_up.cancelled


def test_the_error_of_another_model_comes_back_as_its_response(run_anywhere: Any) -> None:
    """P26: the text is the one for clients; difference 31."""
    body = """
class TritonPythonModel:
    def execute(self, requests):
        answer = pb_utils.InferenceRequest("", 0, [], [], "nosuch").exec()
        assert answer.has_error()
        return [pb_utils.InferenceResponse(error=answer.error())]
"""
    assert run_anywhere(body).error() == "Request for unknown model: 'nosuch' is not found"


def test_a_model_controls_other_models(run_anywhere: Any) -> None:
    body = """
class TritonPythonModel:
    def initialize(self, args):
        pb_utils.load_model("a", files={"file:1/model.py": b"x"}, config="{}")
        pb_utils.unload_model("a", unload_dependents=True)
        self.ready = pb_utils.is_model_ready(model_name="double", model_version="1")
    def execute(self, requests):
        return [pb_utils.InferenceResponse([], parameters={"ready": self.ready})]
"""
    model = run_anywhere(body)
    assert model.core.calls == [
        ("load", "a", "{}", {"1/model.py": b"x"}),
        ("unload", "a", True, False),
        ("ready", "double", "1"),
    ]
    assert model.ask([1.0])[0].responses[0].parameters == {"ready": True}


def test_execute_runs_on_the_thread_that_calls_it(run_model: Any) -> None:
    body = """
import threading
class TritonPythonModel:
    def execute(self, requests):
        self.thread = threading.current_thread()
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
    model = run_model(body)
    model.ask([1.0])
    assert model.instance._model.thread is threading.current_thread()


COUNTS = """
class TritonPythonModel:
    def execute(self, requests):
        call = pb_utils.InferenceRequest("", 0, requests[0].inputs(), [], "double", parameters={"twice": True})
        counted = 0
        for response in call.exec(decoupled=True):
            counted += 1
            last = response
        text = f"{counted} {len(last.output_tensors())} {last.has_error()}"
        return [pb_utils.InferenceResponse([], parameters={"text": text})]
"""


def test_the_empty_end_of_another_models_responses_is_one_of_them(run_anywhere: Any) -> None:
    (answers,) = run_anywhere(COUNTS).ask([1.0])
    assert answers.responses[0].parameters["text"] == "3 0 False"


FIRST = """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        ticks = 0
        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                pb_utils.is_model_ready("tick")
                await asyncio.sleep(0.001)
        ticking = asyncio.ensure_future(tick())
        call = pb_utils.InferenceRequest("", 0, requests[0].inputs(), [], "four")
        for response in await call.async_exec(decoupled=True):
            y = response.output_tensors()[0].as_numpy()
        ticking.cancel()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", y)])]
"""


def test_an_await_of_a_stream_ends_with_the_first_response_and_lets_the_event_loop_go_on(run_anywhere: Any) -> None:
    """The other model answers its fourth request, and the other three are sent while the loop has ticked."""
    model = run_anywhere(FIRST)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(model.value([2.0])))
    thread.start()
    for _ in range(5):
        assert model.core.asked.wait(60)
        model.core.asked.clear()
    for _ in range(3):
        model.core.submit(InferRequest(Asked("four", {"x": Tensor.of(np.zeros(1, np.float32))})))
    thread.join(60)
    assert results[0].tolist() == [4.0]


# Each call of pb_utils with something wrong: the type of its error as in Triton, and a part of the text.
WRONG_CALLS = [
    ("InferenceResponse(error='text')", TypeError, "error must be a pb_utils.TritonError or None, not str"),
    ("InferenceResponse([]).set_error('text')", TypeError, "error must be a pb_utils.TritonError or None, not str"),
    ("InferenceResponse([3])", TypeError, "output_tensors must be a list of pb_utils.Tensor, found int"),
    ("InferenceResponse(3)", TypeError, "output_tensors"),
    ("InferenceResponse([None])", Exception, "a tensor in output_tensors should not be empty"),
    ("InferenceResponse([], parameters=[1])", Exception, "Expect a dict of parameters, got <class 'list'>"),
    ("InferenceResponse([], parameters={'a': 1.5})", Exception, "Expect parameters values"),
    ("TritonError(5)", TypeError, "the message of a TritonError must be a str, not int"),
    ("TritonError('text', 99)", Exception, "99 is not the code of a TritonError"),
    ("Tensor('X', None)", TypeError, "numpy_array of tensor 'X' must be a NumPy array, not NoneType"),
    ("Tensor('X', [1])", TypeError, "numpy_array of tensor 'X' must be a NumPy array, not list"),
    ("Tensor(None, x)", TypeError, "the name of a Tensor must be a str, not NoneType"),
    ("Tensor('X', x.astype(complex))", Exception, "Tensor 'X' has dtype complex128"),
    ("Tensor('X', x.astype(str))", Exception, "Tensor dtype used for numpy_array is not supported"),
    ("Tensor.from_dlpack('X', 5)", Exception, "Tensor must be a DLPack capsule or have"),
    ("Tensor.from_dlpack('X', x.astype(complex))", Exception, "Tensor 'X' has dtype complex128"),
    ("InferenceRequest(inputs=[], requested_output_names=[])", TypeError, "model_name of an InferenceRequest must be"),
    ("InferenceRequest(model_name='n', requested_output_names=[])", TypeError, "inputs of an InferenceRequest must be"),
    ("InferenceRequest(model_name='n', inputs=[])", TypeError, "requested_output_names of an InferenceRequest must"),
    ("InferenceRequest('', 0, ['x'], [], 'n')", TypeError, "inputs must be a list of pb_utils.Tensor, found str"),
    ("InferenceRequest('', 0, [None], [], 'n')", Exception, "a tensor in inputs should not be empty"),
    ("InferenceRequest('', 0, [], [''], 'n')", Exception, "a name in requested_output_names should not be empty"),
    ("InferenceRequest('', 0, [], 'y', 'n')", TypeError, "requested_output_names must be a list of str"),
    ("InferenceRequest('', 1.5, [], [], 'n')", TypeError, "correlation_id of an InferenceRequest"),
    ("InferenceRequest('', 0, [], [], 'n', timeout='1')", TypeError, "timeout of an InferenceRequest"),
    ("InferenceRequest('', 0, [], [], 'n', parameters=3)", Exception, "Expect a dict of parameters, got <class 'int'>"),
    ("InferenceRequest('', 0, [], [], 'n').get_response_sender()", Exception, "get_response_sender is only for"),
    ("InferenceRequest('', 0, [], [], 'n').set_release_flags(7)", Exception, "Invalid request release flag"),
    ("InferenceRequest('', 0, [], [], 'n', parameters={'n': 1 << 63})", Exception, "does not fit"),
    ("MetricFamily(None, 'text', 0)", TypeError, "the name of a MetricFamily must be a str, not NoneType"),
    ("MetricFamily('name', None, 0)", TypeError, "the description of a MetricFamily must be a str, not NoneType"),
    ("MetricFamily('name', 'text', 7)", TypeError, "kind of MetricFamily 'name' must be"),
    ("MetricFamily('a b', 'text', 0)", Exception, "'a b' cannot be the name of a metric"),
    ("MetricFamily('walk_c', 'text', 1)", Exception, "exists with another kind: COUNTER"),
    ("family.Metric(labels=3)", TypeError, "labels of a Metric must be a dict, not int"),
    ("family.Metric(labels={'a': 1})", Exception, "must be text"),
    ("family.Metric(labels={}, buckets=[1])", Exception, "buckets are needed for a histogram"),
    ("histogram.Metric()", Exception, "buckets are needed for a histogram"),
    ("histogram.Metric(buckets=[2, 1])", Exception, "the buckets of a histogram must ascend"),
    ("histogram.Metric(buckets=['1'])", TypeError, "must be a number, not str"),
    ("histogram.Metric(buckets=3)", TypeError, "buckets of a Metric must be a list of numbers, not int"),
    ("histogram.Metric(buckets=[1]).value()", Exception, "does not support Value"),
    ("family.Metric().increment(-1)", Exception, "can only be incremented monotonically"),
    ("family.Metric().increment('1')", TypeError, "the value of a metric must be a number, not str"),
    ("family.Metric().set(1)", Exception, "does not support Set"),
    ("family.Metric().observe(1)", Exception, "does not support Observe"),
    ("MetricFamily('walk_gone', 'text', 0).Metric().increment(1)", Exception, "'MetricFamily' has been deleted"),
    ("Logger.log('text', None)", TypeError, "level must be a pb_utils.Logger level"),
    ("load_model('nosuch')", Exception, "no such model"),
    ("unload_model('nosuch')", Exception, "no such model"),
    ("is_model_ready('nosuch', 'x')", Exception, "no such model"),
    ("get_response_sender.send(5)", TypeError, "response must be an InferenceResponse or None"),
    ("get_response_sender.send(None, 0)", Exception, "Inference Response object must be provided"),
    ("get_response_sender.send(None, 5)", Exception, "Unsupported flag provided"),
]
WALK = """
import types
class TritonPythonModel:
    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        counter, buckets = pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.HISTOGRAM
        names = dict(vars(pb_utils), x=x, get_response_sender=requests[0].get_response_sender())
        names["family"] = pb_utils.MetricFamily("walk_c", "text", counter)
        names["histogram"] = pb_utils.MetricFamily("walk_h", "text", buckets)
        found = {}
        for call in CALLS:
            try:
                found[call] = repr(eval(call, names))
            except BaseException as error:
                known = isinstance(error, pb_utils.TritonModelException)
                found[call] = f"{'TritonModelException' if known else type(error).__name__}: {error}"
        return [pb_utils.InferenceResponse([], parameters=found)]
"""


def test_every_call_with_something_wrong_raises_what_a_model_can_expect(
    run_anywhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P19, P20: in process and out of it."""
    model = run_anywhere(WALK.replace("CALLS", repr([call for call, _, _ in WRONG_CALLS])))

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotFoundError("no such model")

    for call in ("load", "unload", "model_ready"):
        monkeypatch.setattr(model.core, call, refuse)
    (answers,) = model.ask([1.0])
    assert answers.responses[0].error is None, answers.responses[0].error
    found = answers.responses[0].parameters
    wrong = {
        call: found[call]
        for call, kind, text in WRONG_CALLS
        if not found[call].startswith("TypeError: " if kind is TypeError else "TritonModelException: ")
        or text not in found[call]
    }
    assert wrong == {}


# ``reshape`` of Python models: clients see ``dims``, the model sees ``reshape``, as with any other backend.

CONFIG = """
backend: "python" max_batch_size: 2
input { name: "x" data_type: TYPE_FP32 dims: [ 6 ] reshape { shape: [ 2, 3 ] } }
output { name: "y" data_type: TYPE_FP32 dims: [ 6 ] reshape { shape: [ 3, 2 ] } }
"""
TRANSPOSE = """
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x.transpose(0, 2, 1).copy())]) for x in inputs]
"""
TOO_MUCH = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.zeros(7, np.float32))]) for _ in requests]
"""


def test_the_model_sees_its_own_shapes_and_clients_see_theirs(core_of: Callable[..., ServingCore]) -> None:
    core = core_of(TRANSPOSE, CONFIG)
    asked = Asked("m", {"x": Tensor.of(np.arange(12, dtype=np.float32).reshape(2, 6))})
    for _ in range(2):  # A caller may ask the same again.
        answer = core.infer(InferRequest(asked)).outputs["y"].array
        assert answer.tolist() == [[0, 3, 1, 4, 2, 5], [6, 9, 7, 10, 8, 11]]


def test_an_output_that_does_not_fit_is_an_error(core_of: Callable[..., ServingCore]) -> None:
    core = core_of(TOO_MUCH, CONFIG)
    request = InferRequest(Asked("m", {"x": Tensor.of(np.zeros((1, 6), np.float32))}))
    with pytest.raises(InternalError, match="cannot be reshaped"):
        core.infer(request)


def test_free_slots_of_a_sequence_batch_are_reshaped_too(core_of: Callable[..., ServingCore]) -> None:
    """The slots before that of the third sequence are free: each has the same request in the batch."""
    controls = 'control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } }'
    config = CONFIG.replace("max_batch_size: 2", "max_batch_size: 3").replace("[ 6 ]", "[ -1, 6 ]")
    config = config.replace("[ 2, 3 ]", "[ -1, 2, 3 ]").replace("[ 3, 2 ]", "[ -1, 3, 2 ]")
    transpose = TRANSPOSE.replace("0, 2, 1", "0, 1, 3, 2")
    core = core_of(transpose, f"{config} sequence_batching {{ direct {{ }} {controls} }}")
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
    for sequence in (1, 2, 3):
        core.infer(InferRequest(Asked("m", {"x": Tensor.of(x)}, correlation_id=sequence, sequence_start=True)))
    answer = core.infer(InferRequest(Asked("m", {"x": Tensor.of(x)}, correlation_id=3))).outputs["y"].array
    assert answer.tolist() == [[[0, 3, 1, 4, 2, 5]]]
