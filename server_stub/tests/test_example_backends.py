"""The backends of Triton's examples, as its clients meet them."""

import queue
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http
from repoagent_server import KServeGrpc, KServeHttp
from tritonclient.utils import InferenceServerException

from repoagent.server import Server

_REPOSITORY = Path(__file__).resolve().parents[2] / "examples" / "backends" / "repository"
_PATIENCE = 120
_TWO_STEPS = r"more than one timestep|batch-?\s?size"


# A decoupled model whose last answer has the final flag, and ensembles of one and of two of them.
_STREAMS = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, tensor = request.get_response_sender(), request.inputs()[0].as_numpy()
            for last in [False] * (int(tensor[0]) - 1) + [True]:
                answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor)])
                sender.send(answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL * last)
"""
_TENSORS = """
input { name: "IN" data_type: TYPE_INT32 dims: [1] } output { name: "OUT" data_type: TYPE_INT32 dims: [1] }
"""
_STREAMING = 'backend: "python" model_transaction_policy { decoupled: true }' + _TENSORS
_STEP = """
step { model_name: "streaming" model_version: -1
       input_map { key: "IN" value: "%s" } output_map { key: "OUT" value: "%s" } }
"""
_E1 = f'platform: "ensemble" {_TENSORS} ensemble_scheduling {{ {_STEP % ("IN", "OUT")} }}'
_E2 = f'platform: "ensemble" {_TENSORS} ensemble_scheduling {{ {_STEP % ("IN", "a")} {_STEP % ("a", "OUT")} }}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    for model in _REPOSITORY.iterdir():
        shutil.copytree(model, repository / model.name)
    failing = repository / "failing_square"
    shutil.copytree(_REPOSITORY / "square_int32", failing)
    with (failing / "config.pbtxt").open("a") as file:
        for key, value in (("CUSTOM_FAIL_COUNT", "1"), ("CUSTOM_EMPTY_COUNT", "2"), ("CUSTOM_INFER_DELAY_NS", "many")):
            file.write(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n')
    for name, config in (("streaming", _STREAMING), ("e1", _E1), ("e2", _E2)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        (repository / name / "1" / "model.py").write_text(_STREAMS)
    with Server(model_repository=str(repository)) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[str]:
    with KServeHttp(server, KServeHttp.Options(port=0)) as front:
        yield "{}:{}".format(*front.address)


@pytest.fixture(scope="module")
def grpc(server: Server) -> Iterator[str]:
    with KServeGrpc(server, KServeGrpc.Options(port=0)) as front:
        yield "{}:{}".format(*front.address)


@pytest.fixture
def client(grpc: str) -> Iterator[Any]:
    with triton.InferenceServerClient(grpc) as client:
        yield client


class Stream:
    """A bidirectional stream and what has come over it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: self._answers.put(error or result))

    def send(self, model: str, inputs: dict[str, Any], **options: Any) -> None:
        self._client.async_stream_infer(model, [_input(*item) for item in inputs.items()], **options)

    def next(self) -> Any:
        """The next result, or the error."""
        return self._answers.get(timeout=_PATIENCE)


@pytest.fixture
def stream(client: Any) -> Iterator[Stream]:
    yield Stream(client)
    client.stop_stream(cancel_requests=True)


def _input(name: str, array: Any) -> Any:
    kinds = {"i": "INT32", "u": "UINT32", "f": "FP32", "l": "INT64", "q": "INT64", "O": "BYTES"}
    kind = "INT64" if array.dtype == np.int64 else kinds[array.dtype.kind]
    tensor = triton.InferInput(name, array.shape, kind)
    tensor.set_data_from_numpy(array)
    return tensor


def _i32(*values: int) -> Any:
    return np.array(values, np.int32)


def _u32(*values: int) -> Any:
    return np.array(values, np.uint32)


def _is_end(result: Any) -> bool:
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


# -- ensembles of decoupled models ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "answers"), [("streaming", 3), ("e1", 3), ("e2", 9)])
@pytest.mark.parametrize("asks", [False, True])
def test_clients_that_count_final_responses_of_an_ensemble_do_not_wait_for_ever(
    stream: Stream, model: str, answers: int, asks: bool
) -> None:
    """P18: the last answer with tensors is final, and no empty one follows, also for those who ask for it."""
    stream.send(model, {"IN": _i32(3)}, request_id="first", enable_empty_final_response=asks)
    results = [stream.next() for _ in range(answers)]
    stream.send(model, {"IN": _i32(1)}, request_id="next")
    assert [_is_end(result) for result in results] == [False] * (answers - 1) + [True]
    assert all(result.as_numpy("OUT").tolist() == [3] for result in results)
    assert stream.next().get_response().id == "next"


# -- identity --------------------------------------------------------------------------------------------------------


def test_identity_gives_back_what_it_is_given(http: str) -> None:
    with tritonclient.http.InferenceServerClient(http) as client:
        tensor = tritonclient.http.InferInput("INPUT0", [2, 2], "BYTES")
        texts = np.array([[b"a", b""], [b"\0b", "é".encode()]], object)
        tensor.set_data_from_numpy(texts)
        result = client.infer("simple_identity", [tensor])
        assert result.as_numpy("OUTPUT0").tolist() == texts.tolist()
        assert result.get_response()["parameters"] == {
            "param0": "an example string parameter",
            "param1": 42,
            "param2": False,
        }


def test_identity_waits_reshapes_and_leaves_out_what_nobody_asked_for(client: Any) -> None:
    square = np.arange(4, dtype=np.float32)
    inputs = [_input("INPUT0", square), _input("INPUT1", np.array([5, 6], np.int64))]
    started = time.monotonic()
    result = client.infer("delayed_identity", inputs)
    assert time.monotonic() - started >= 0.02
    assert result.as_numpy("OUTPUT0").tolist() == square.reshape(2, 2).tolist()
    assert result.as_numpy("OUTPUT1").tolist() == [5, 6]
    one = client.infer("delayed_identity", inputs, outputs=[triton.InferRequestedOutput("OUTPUT1")])
    assert one.as_numpy("OUTPUT0") is None
    assert one.as_numpy("OUTPUT1").tolist() == [5, 6]


# -- repeat and square -----------------------------------------------------------------------------------------------


def test_repeat_answers_for_each_element(stream: Stream) -> None:
    values = {"IN": _i32(4, 2, 0), "DELAY": _u32(0, 1, 0), "WAIT": _u32(0)}
    stream.send("repeat_int32", values, request_id="r1", enable_empty_final_response=True)
    answers = [stream.next() for _ in range(4)]
    assert [(a.as_numpy("OUT").tolist(), a.as_numpy("IDX").tolist()) for a in answers[:3]] == [
        ([4], [0]),
        ([2], [1]),
        ([0], [2]),
    ]
    assert [_is_end(answer) for answer in answers] == [False, False, False, True]
    assert {answer.get_response().id for answer in answers} == {"r1"}


def test_repeat_of_nothing_is_an_empty_end(stream: Stream) -> None:
    nothing = {"IN": _i32(), "DELAY": _u32(), "WAIT": _u32(0)}
    stream.send("repeat_int32", nothing, enable_empty_final_response=True)
    assert _is_end(stream.next())


def test_responses_of_several_requests_mingle_and_a_cancelled_one_ends(stream: Stream) -> None:
    # The first one would take an hour, which the stream's end cuts short.
    stream.send("repeat_int32", {"IN": _i32(1, 2), "DELAY": _u32(0, 3_600_000), "WAIT": _u32(0)}, request_id="slow")
    assert stream.next().get_response().id == "slow"
    stream.send("repeat_int32", {"IN": _i32(3), "DELAY": _u32(0), "WAIT": _u32(0)}, request_id="fast")
    answer = stream.next()
    assert (answer.get_response().id, answer.as_numpy("OUT").tolist()) == ("fast", [3])


def test_repeat_refuses_delays_that_do_not_match(stream: Stream) -> None:
    stream.send("repeat_int32", {"IN": _i32(1, 2), "DELAY": _u32(0), "WAIT": _u32(0)})
    assert "expected IN and DELAY shape to match" in str(stream.next())


def test_square_answers_n_times_n(stream: Stream, http: str) -> None:
    for count in (3, 0):
        stream.send("square_int32", {"IN": _i32(count)}, enable_empty_final_response=True)
        answers = [stream.next() for _ in range(count + 1)]
        assert [answer.as_numpy("OUT").tolist() for answer in answers[:-1]] == [[count]] * count
        assert _is_end(answers[-1])
    text = httpx.post(f"http://{http}/v2/models/square_int32/generate_stream", json={"IN": 2}).text
    assert text.count('"OUT":2') == 2


def test_square_fails_and_stays_silent_where_its_parameters_say_so(stream: Stream) -> None:
    stream.send("failing_square", {"IN": _i32(5)}, enable_empty_final_response=True)
    answers = [stream.next() for _ in range(4)]
    assert [answer.as_numpy("OUT").tolist() for answer in answers[:2]] == [[5], [5]]
    assert isinstance(answers[2], InferenceServerException)
    assert "simulated failure" in str(answers[2])
    assert _is_end(answers[3])


# -- sequences -------------------------------------------------------------------------------------------------------


def _sum(client: Any, model: str, sequence: int | str, values: list[int], *, first: bool, last: bool) -> list[int]:
    """What each step of a sequence answers."""
    totals = []
    for place, value in enumerate(values):
        result = client.infer(
            model,
            [_input("INPUT", np.array([[value]], np.int32))],
            sequence_id=sequence,
            sequence_start=first and place == 0,
            sequence_end=last and place == len(values) - 1,
        )
        totals.append(int(result.as_numpy("OUTPUT")[0, 0]))
    return totals


def test_a_sequence_is_summed_by_its_slot(client: Any) -> None:
    assert _sum(client, "simple_sequence", 7, [11, 7, 5], first=True, last=False) == [11, 18, 23]
    assert _sum(client, "simple_sequence", 8, [100, 1], first=True, last=True) == [100, 101]
    assert _sum(client, "simple_sequence", 7, [2, 2**31 - 1], first=False, last=True) == [25, 25 + 2**31 - 1 - 2**32]
    assert _sum(client, "simple_sequence", 7, [1], first=True, last=True) == [1]


@pytest.mark.parametrize(
    ("model", "ids", "added"),
    [
        ("simple_dyna_sequence", (1001, 2**32 + 5), (1001, 5)),
        ("simple_string_dyna_sequence", ("42", "7-of-9"), (42, 7)),
        ("simple_string_dyna_sequence", ("a-b-c", "ä"), (0, 0)),
    ],
)
def test_sequences_are_summed_by_their_ids_over_unary_calls(
    client: Any, model: str, ids: tuple[Any, Any], added: tuple[int, int]
) -> None:
    one, other = ids
    assert _sum(client, model, one, [1, 2], first=True, last=False) == [1, 3]
    assert _sum(client, model, other, [10], first=True, last=False) == [10]
    assert _sum(client, model, one, [3], first=False, last=True) == [6 + added[0]]
    assert _sum(client, model, other, [20], first=False, last=True) == [30 + added[1]]
    with pytest.raises(InferenceServerException, match="START flag"):
        _sum(client, model, one, [1], first=False, last=False)


def test_sequences_are_summed_over_one_stream(stream: Stream) -> None:
    for value in range(1, 5):
        for name in ("even", "odd"):
            stream.send(
                "simple_string_dyna_sequence",
                {"INPUT": np.array([[value * (1 if name == "odd" else 2)]], np.int32)},
                request_id=f"{name}-{value}",
                sequence_id=name,
                sequence_start=value == 1,
                sequence_end=value == 4,
            )
    answers = {
        answer.get_response().id: int(answer.as_numpy("OUTPUT")[0, 0]) for answer in [stream.next() for _ in range(8)]
    }
    assert [answers[f"odd-{value}"] for value in range(1, 5)] == [1, 3, 6, 10]
    assert [answers[f"even-{value}"] for value in range(1, 5)] == [2, 6, 12, 20]


def test_a_step_of_two_is_refused(client: Any) -> None:
    two = [_input("INPUT", np.array([[1], [2]], np.int32))]
    with pytest.raises(InferenceServerException, match=_TWO_STEPS):
        client.infer("simple_sequence", two, sequence_id=9, sequence_start=True)


def test_their_latencies_are_in_the_metrics_where_these_are_asked_for(tmp_path: Path) -> None:
    for model in ("simple_identity", "repeat_int32"):
        shutil.copytree(_REPOSITORY / model, tmp_path / model)
    with (tmp_path / "repeat_int32" / "config.pbtxt").open("a") as file:
        file.write('metric_tags { key: "team" value: "a" }\n')
    configuration = {"": {"summary_latencies": "true", "histogram_latencies": "true", "summary_quantiles": "0.5:0.1"}}
    with Server(model_repository=str(tmp_path), metrics_configuration=configuration) as server:
        next(iter(server.model("simple_identity").infer(inputs={"INPUT0": np.array([["a"]], object)})))
        values = {"IN": _i32(1, 2), "DELAY": _u32(0, 0), "WAIT": _u32(0)}
        assert len(list(server.model("repeat_int32").infer(inputs=values))) == 3
        page = server.metrics()
    identity, repeat = 'model="simple_identity",version="1"', 'model="repeat_int32",version="1",_team="a"'
    assert f"nv_inference_request_summary_us_count{{{identity}}} 1\n" in page
    assert f'nv_inference_compute_infer_summary_us{{{identity},quantile="0.5"}} ' in page
    assert f"nv_inference_first_response_histogram_ms_count{{{repeat}}} 1\n" in page
    assert f"nv_inference_first_response_histogram_ms_count{{{identity}}} 1\n" in page
