import asyncio
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from repoagent.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from repoagent.server import (
    AsyncResponseIterator,
    DataType,
    InferenceResponse,
    ModelBatchFlag,
    ModelTxnPropertyFlag,
    ResponseIterator,
    Server,
    Tensor,
)
from repoagent.serving.measuring.latencies import RunTime
from tests.waiting import until

Inputs = dict[str, Any]


def _int(number: int) -> Inputs:
    return {"INPUT": np.array([number], np.int32)}


def test_a_request_is_answered(server: Server, addsub_inputs: Inputs) -> None:
    for _ in range(3):  # The first goes through the model's queue, those after it may run on this thread.
        responses = server.model("addsub").infer(inputs=addsub_inputs, request_id="r1")
        assert isinstance(responses, ResponseIterator)
        (response,) = list(responses)
        assert response.final
        assert response.error is None
        assert response.request_id == "r1"
        assert (response.model.name, response.model.version) == ("addsub", 1)
        assert np.from_dlpack(response.outputs["OUTPUT0"]).tolist() == [[1, 2, 3, 4]]
        assert np.asarray(response.outputs["OUTPUT1"]).tolist() == [[-1, 0, 1, 2]]
        assert next(responses, None) is None


def test_a_known_quick_model_runs_on_the_callers_thread_and_agrees(server: Server, addsub_inputs: Inputs) -> None:
    model = server.model("addsub")
    run_time = _run_time(server, "addsub")
    run_time.usual_ns = _LONG_NS
    where = _Threads()
    submitted = next(model.infer(inputs=addsub_inputs, response_queue=where))
    _wait_until_idle(server, "addsub")
    run_time.usual_ns = _QUICK_NS
    inline = next(model.infer(inputs=addsub_inputs, response_queue=where))
    assert where.own(2) == [False, True]
    for name, tensor in submitted.outputs.items():
        assert np.array_equal(np.asarray(tensor), np.asarray(inline.outputs[name]))
    assert (inline.final, inline.model.version) == (submitted.final, submitted.model.version)


def test_a_thread_that_takes_its_answers_one_by_one_executes_by_itself(server: Server, addsub_inputs: Inputs) -> None:
    model, run_time, where = server.model("addsub"), _run_time(server, "addsub"), _Threads()

    def ask() -> ResponseIterator:
        run_time.usual_ns = _MEDIUM_NS
        return model.infer(inputs=addsub_inputs, response_queue=where)

    def ask_for(count: int) -> None:
        _wait_until_idle(server, "addsub")
        for responses in [ask() for _ in range(count)]:
            assert next(responses).error is None

    def work() -> list[bool]:
        for count in (1, 1, 1, 1, 3, 1):
            ask_for(count)
        return where.own(8)

    with ThreadPoolExecutor(1) as own_thread:  # One of which nothing is known.
        seen = own_thread.submit(work).result(60)
    assert seen == [False, False, True, True, True, False, False, False]


def test_a_long_model_leaves_the_thread_that_asks_alone(server: Server, addsub_inputs: Inputs) -> None:
    where = _Threads()
    for _ in range(5):
        _run_time(server, "addsub").usual_ns = _LONG_NS
        assert next(server.model("addsub").infer(inputs=addsub_inputs, response_queue=where)).error is None
        _wait_until_idle(server, "addsub")
    assert where.own(5) == [False] * 5


_QUICK_NS = 1000
_MEDIUM_NS = 2_000_000
_LONG_NS = 1_000_000_000


def _run_time(server: Server, name: str) -> RunTime:
    """What the server thinks of the model; a test says what that is before each request."""
    return cast("Any", server.core.find(_core_request(name)))._scheduler._run_time  # type: ignore[no-any-return]


def _wait_until_idle(server: Server, name: str) -> None:
    """Wait until the instance is back: it is given back after the answer."""
    pool = cast("Any", server.core.find(_core_request(name)))._scheduler._pool
    until(lambda: pool.has_idle)


class _Threads:
    """A response queue that remembers which threads executed the requests: it is they that fill it."""

    def __init__(self) -> None:
        self._seen: queue.SimpleQueue[int] = queue.SimpleQueue()

    def put(self, response: InferenceResponse) -> None:
        self._seen.put(threading.get_ident())

    def own(self, count: int) -> list[bool]:
        """Of each of ``count`` requests whether it was executed by the thread that asks this."""
        return [self._seen.get(timeout=60) == threading.get_ident() for _ in range(count)]


def _core_request(name: str) -> Any:
    from repoagent.serving.requests.request import Asked, InferRequest

    return InferRequest(Asked(name, {}))


@pytest.mark.parametrize(
    "value",
    [
        Tensor.from_string_array(["a", "bé"]),
        np.array(["a", "bé"]),
        np.array(["a", "bé"], dtype=object),
        np.array([b"a", "bé".encode()]),
        ["a", "bé"],
        [b"a", "bé".encode()],
    ],
)
def test_text_goes_in_in_every_form(server: Server, value: Any) -> None:
    (response,) = server.model("text").infer(inputs={"INPUT": value})
    output = response.outputs["OUTPUT"]
    assert output.data_type is DataType.BYTES
    assert output.to_string_array().tolist() == ["a", "bé"]


@pytest.mark.parametrize(
    "value",
    [
        [[1.0, 2.0, 3.0, 4.0]],
        np.array([[1, 2, 3, 4]], np.float32),
        np.array([[1, 2, 3, 4]], ">f4"),
        np.array([[1], [2], [3], [4]], np.float32).T,
        np.array([[0, 1, 0, 2, 0, 3, 0, 4]], np.float32)[:, 1::2],
        Tensor.from_dlpack(np.array([[1, 2, 3, 4]], np.float32)),
    ],
)
def test_numbers_go_in_in_every_form(server: Server, value: Any, addsub_inputs: Inputs) -> None:
    if isinstance(value, list):
        value = np.array(value, np.float32)
    (response,) = server.model("addsub").infer(inputs={**addsub_inputs, "INPUT0": value})
    assert np.asarray(response.outputs["OUTPUT0"]).tolist() == [[2, 3, 4, 5]]


def test_an_object_that_speaks_dlpack_is_an_input(server: Server, addsub_inputs: Inputs) -> None:
    class Exporter:
        def __dlpack__(self) -> Any:
            return addsub_inputs["INPUT0"].__dlpack__()

        def __dlpack_device__(self) -> Any:
            return addsub_inputs["INPUT0"].__dlpack_device__()

    (response,) = server.model("addsub").infer(inputs={**addsub_inputs, "INPUT0": Exporter()})
    assert np.asarray(response.outputs["OUTPUT0"]).tolist() == [[1, 2, 3, 4]]


def test_bfloat16_goes_in_and_comes_out_through_dlpack(server: Server) -> None:
    import onnxruntime

    bits = np.array([0x3F80, 0x4000], np.uint16)
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)
    (response,) = server.model("half").infer(inputs={"INPUT": value})
    output = response.outputs["OUTPUT"]
    assert output.data_type is DataType.BF16
    assert onnxruntime.OrtValue.from_dlpack(output.__dlpack__()).element_type() == 16


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "Input type <class 'int'> not supported. Must be one of .*Tensor.* or the type must support __dlpack__"),
        ("text", "Input type <class 'str'> not supported"),
        (np.array([1j]), "Unsupported Numpy data type. Can't convert .*complex128.* to Triton server data type"),
    ],
)
def test_what_can_be_no_input_is_refused_by_infer_itself(server: Server, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        server.model("text").infer(inputs={"INPUT": value})


def test_a_request_that_does_not_fit_is_refused_by_infer_itself(server: Server, addsub_inputs: Inputs) -> None:
    model = server.model("addsub")
    for _ in range(3):
        with pytest.raises(InvalidArgumentError, match="expected 2 inputs but got 1"):
            model.infer(inputs={"INPUT0": addsub_inputs["INPUT0"]}, raise_on_error=False)
        next(model.infer(inputs=addsub_inputs))


def test_an_unknown_model_is_refused_by_infer_itself(server: Server) -> None:
    with pytest.raises(NotFoundError, match="Request for unknown model: 'none' is not found"):
        server.model("none").infer(inputs={})
    with pytest.raises(NotFoundError, match="'addsub' version 7 is not found"):
        server.model("addsub", 7).infer(inputs={})


def test_a_failure_of_the_model_comes_with_the_response(server: Server) -> None:
    model = server.model("broken")
    responses = model.infer(inputs=_int(1))
    with pytest.raises(InternalError, match="the model is broken"):
        next(responses)
    assert list(responses) == []
    (response,) = model.infer(inputs=_int(1), raise_on_error=False)
    assert response.final
    assert isinstance(response.error, InternalError)
    assert response.outputs == {}


@pytest.mark.parametrize("value", [None, b"bytes", [1], np.int64(1)])
def test_a_parameter_of_another_type_is_refused_by_infer_itself(server: Server, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Unsupported Value. Can't convert <class .* to Request Parameter"):
        server.model("slow").infer(inputs=_int(1), parameters={"p": value})


def test_responses_carry_parameters(server: Server, scripted: Any) -> None:
    scripted.go.set()
    (response,) = server.model("slow").infer(inputs=_int(1), parameters={"a": 1, "b": True, "c": 0.5, "d": "x"})
    assert response.parameters == {"took": 1}


def test_a_request_can_be_changed_and_sent_again(server: Server, addsub_inputs: Inputs) -> None:
    model = server.model("addsub")
    request = model.create_request(inputs=addsub_inputs, request_id="one")
    assert next(model.infer(request)).request_id == "one"
    assert next(model.infer(request, request_id="two")).request_id == "two"
    assert request.request_id == "two"


def test_a_decoupled_model_answers_many_times(server: Server) -> None:
    responses = list(server.model("repeat").infer(inputs=_int(3)))
    assert [response.final for response in responses] == [False, False, False, True]
    assert [int(np.asarray(it.outputs["OUTPUT"])[0]) for it in responses[:3]] == [0, 1, 2]
    assert responses[3].outputs == {}


def test_every_response_also_goes_into_the_queue(server: Server, addsub_inputs: Inputs) -> None:
    received: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
    server.model("repeat").infer(inputs=_int(2), response_queue=received)
    assert [received.get(timeout=60).final for _ in range(3)] == [False, False, True]
    for _ in range(2):
        responses = server.model("addsub").infer(inputs=addsub_inputs, response_queue=received)
        assert received.get(timeout=60) is next(responses)


def test_a_running_request_is_cancelled(server: Server, scripted: Any) -> None:
    responses = server.model("slow").infer(inputs=_int(1))
    assert scripted.started.wait(60)
    responses.cancel()
    with pytest.raises(CancelledError):
        next(responses)


def test_several_requests_of_one_thread_wait_together(server: Server, scripted: Any) -> None:
    model = server.model("slow")
    waiting = [model.infer(inputs=_int(number)) for number in range(3)]
    waiting[1].cancel()
    scripted.go.set()
    results = [next(model.infer(inputs=_int(0), raise_on_error=False)), *(r for it in waiting[::2] for r in it)]
    assert all(response.error is None for response in results)
    with pytest.raises(CancelledError):
        next(waiting[1])


def test_a_request_that_waited_too_long_is_refused(server: Server, scripted: Any) -> None:
    model = server.model("slow")
    first = model.infer(inputs=_int(1))
    assert scripted.started.wait(60)
    second = model.infer(inputs=_int(2), timeout=1)
    scripted.go.set()
    assert next(first).final
    with pytest.raises(UnavailableError, match="timeout"):
        next(second)


@pytest.mark.parametrize("device", ["cpu", "CPU:0"])
def test_outputs_are_on_the_cpu(server: Server, addsub_inputs: Inputs, device: str) -> None:
    (response,) = server.model("addsub").infer(inputs=addsub_inputs, output_memory_type=device)
    assert len(response.outputs) == 2


def test_outputs_that_cannot_be_moved_are_an_error_of_the_response(server: Server, addsub_inputs: Inputs) -> None:
    for device, cause in (("gpu", "Conversion from"), ("disk", "Unsupported Memory Type String")):
        responses = server.model("addsub").infer(inputs=addsub_inputs, output_memory_type=device)
        with pytest.raises(InvalidArgumentError, match=f"Memory type {device} not supported: {cause}"):
            next(responses)
        (response,) = server.model("addsub").infer(
            inputs=addsub_inputs, output_memory_type=device, raise_on_error=False
        )
        assert isinstance(response.error, InvalidArgumentError)


def test_arrays_go_in_and_come_out(server: Server, addsub_inputs: Inputs) -> None:
    outputs = server.model("addsub").run(addsub_inputs, ["OUTPUT1"])
    assert {name: array.tolist() for name, array in outputs.items()} == {"OUTPUT1": [[-1, 0, 1, 2]]}
    assert list(server.model("addsub").run(addsub_inputs, "OUTPUT1")) == ["OUTPUT1"]
    assert server.model("text").run({"INPUT": ["a"]})["OUTPUT"].tolist() == [b"a"]
    with pytest.raises(TypeError, match="run takes the inputs by name"):
        server.model("addsub").run([1])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="decoupled"):
        server.model("repeat").run(_int(1))


def test_a_model_tells_about_itself(server: Server, addsub_inputs: Inputs) -> None:
    model = server.model("addsub")
    next(model.infer(inputs=addsub_inputs))
    assert model.ready()
    assert [it["name"] for it in model.metadata()["inputs"]] == ["INPUT0", "INPUT1"]
    assert model.config()["max_batch_size"] == 8
    assert model.statistics()["model_stats"][0]["inference_count"] == 1
    assert model.batch_properties() is ModelBatchFlag.FIRST_DIM
    assert model.transaction_properties() is ModelTxnPropertyFlag.ONE_TO_ONE
    assert server.model("repeat").transaction_properties() is ModelTxnPropertyFlag.DECOUPLED
    assert server.model("slow").batch_properties() is ModelBatchFlag.UNKNOWN
    with pytest.raises(InvalidArgumentError, match="supported versions are: 1"):
        model.config(2)


# -- on an event loop -----------------------------------------------------------------------------------------------


async def test_responses_are_awaited(server: Server, addsub_inputs: Inputs) -> None:
    responses = server.model("addsub").async_infer(inputs=addsub_inputs, request_id="r")
    assert isinstance(responses, AsyncResponseIterator)
    (response,) = [response async for response in responses]
    assert (response.request_id, response.final) == ("r", True)
    assert [it async for it in responses] == []


async def test_a_decoupled_model_is_awaited_and_fills_a_queue(server: Server) -> None:
    received: asyncio.Queue[InferenceResponse] = asyncio.Queue()
    responses = server.model("repeat").async_infer(inputs=_int(2), response_queue=received)
    queued = [await asyncio.wait_for(received.get(), 60) for _ in range(3)]
    assert [response.final for response in queued] == [False, False, True]
    assert [it async for it in responses] == queued


async def test_a_queue_with_little_room_gets_every_response_in_order(server: Server) -> None:
    received: asyncio.Queue[InferenceResponse] = asyncio.Queue(maxsize=1)
    responses = server.model("repeat").async_infer(inputs=_int(5), response_queue=received)
    everything = [response async for response in responses]
    assert [await asyncio.wait_for(received.get(), 60) for _ in everything] == everything


async def test_a_queue_of_the_other_kind_is_refused(server: Server) -> None:
    with pytest.raises(TypeError, match="use async_infer"):
        server.model("repeat").infer(inputs=_int(1), response_queue=asyncio.Queue())
    with pytest.raises(TypeError, match=r"fills an asyncio\.Queue, not SimpleQueue"):
        server.model("repeat").async_infer(inputs=_int(1), response_queue=queue.SimpleQueue())


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"priority": "high"}, TypeError, "priority must be a number, not str: 'high'"),
        ({"correlation_id": 1.5}, TypeError, "correlation_id must be a number, not float"),
        ({"flags": "start"}, TypeError, "flags must be a number"),
        ({"request_id": 5}, TypeError, "request_id must be str, not int"),
        ({"timeout": -1}, InvalidArgumentError, r"timeout must be from 0 to 2\*\*64 - 1, not -1"),
        ({"correlation_id": 1 << 64}, InvalidArgumentError, "correlation_id must be from 0"),
    ],
)
def test_a_field_with_a_value_that_means_nothing_is_refused(
    server: Server, addsub_inputs: Inputs, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"InferenceRequest.{message}"):
        server.model("addsub").infer(inputs=addsub_inputs, **fields)


def test_numbers_of_other_libraries_are_numbers(server: Server, addsub_inputs: Inputs) -> None:
    numbers: dict[str, Any] = {
        "correlation_id": np.uint64(2**63),
        "priority": np.int8(3),
        "timeout": np.int32(60_000_000),
    }
    (response,) = server.model("addsub").infer(inputs=addsub_inputs, **numbers)
    assert response.final


async def test_many_requests_are_awaited_at_once(server: Server) -> None:
    async def ask(number: int) -> int:
        async for response in server.model("repeat").async_infer(inputs=_int(number)):
            if response.final:
                return number
        raise AssertionError("no final response")

    assert await asyncio.gather(*(ask(number) for number in range(50))) == list(range(50))


async def test_a_task_with_a_quick_model_leaves_the_loop_to_others(server: Server, addsub_inputs: Inputs) -> None:
    run_time, order = _run_time(server, "addsub"), []

    async def ask(name: str) -> None:
        for _ in range(3):
            run_time.quick, run_time.quick_bytes, run_time.usual_ns = True, 1000, _QUICK_NS
            responses = server.model("addsub").async_infer(inputs=addsub_inputs)
            assert not responses._queue.empty()  # The loop has executed it, and need not be told.
            async for response in responses:
                assert response.error is None
                order.append(name)

    await asyncio.gather(ask("a"), ask("b"))
    assert order == ["a", "b"] * 3


async def test_errors_are_raised_where_they_belong(server: Server, scripted: Any) -> None:
    with pytest.raises(NotFoundError):
        server.model("none").async_infer(inputs={})
    with pytest.raises(InternalError, match="the model is broken"):
        await anext(server.model("broken").async_infer(inputs=_int(1)))
    response = await anext(server.model("broken").async_infer(inputs=_int(1), raise_on_error=False))
    assert isinstance(response.error, InternalError)
    responses = server.model("slow").async_infer(inputs=_int(1))
    responses.cancel()
    with pytest.raises(CancelledError):
        await anext(responses)


def test_a_loop_that_is_gone_is_no_problem_of_the_server(server: Server, scripted: Any) -> None:
    async def ask_and_leave() -> None:
        server.model("slow").async_infer(inputs=_int(1))

    asyncio.run(ask_and_leave())
    scripted.go.set()
    until(lambda: server.core.find(_core_request("slow")).running == 0)
    assert next(server.model("slow").infer(inputs=_int(1))).final
