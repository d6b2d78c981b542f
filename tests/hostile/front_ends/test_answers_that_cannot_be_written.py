"""A model answers with what JSON, UTF-8 or protobuf cannot hold: its client gets an answer or an error, in each way.

Never a broken connection, a stream that hangs, or the text of a traceback.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.shared.grpc_options import GrpcOptions

from repoagent.serving.core import ServingCore
from server_stub.tests.cores import every_model
from tests.extent import in_full

HALF: Final = '"a" + chr(0xD800)'
VALUES: Final = {
    "half a pair": HALF,
    "half a pair that stands for a byte": '"a" + chr(0xDC80)',
    "both halves": 'chr(0xD800) + "b" + chr(0xDC80)',
    "a zero": '"a" + chr(0)',
    "not a number": 'float("nan")',
    "without end": '-float("inf")',
    "64 bits": "2**63 - 1",
    "65 bits": "2**64",
    "65 bits below zero": "-2**63 - 1",
    "many bits": "10**4000",
    "too many digits": "10**5000",
    "bytes": 'b"\\xff"',
    "NumPy's number": "numpy.float32('nan')",
    "nothing": "None",
    "a list": "[1]",
    "a good text": '"good"',
}
PLACES: Final = {
    "an error": "pb_utils.InferenceResponse(error=pb_utils.TritonError(VALUE))",
    "a long error": "pb_utils.InferenceResponse(error=pb_utils.TritonError(str(VALUE)[:9] * 10_000))",
    "what it raises": "raised(VALUE)",
    "a parameter": "answer(parameters={'p': VALUE})",
    "the name of a parameter": "answer(parameters={VALUE: 1})",
    "an element": "answer(VALUE)",
    "the name of an output": "answer(name=VALUE)",
    "numbers": "answer(dtype=numpy.float32, value=VALUE)",
}
MODEL: Final = f"""
import numpy
import triton_python_backend_utils as pb_utils
def raised(value):
    raise ValueError(value)
def answer(value="good", name="OUTPUT0", dtype=numpy.object_, **more):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, numpy.array([value], dtype))], **more)
VALUES = {{{", ".join(f"{name!r}: lambda: {code}" for name, code in VALUES.items())}}}
PLACES = {{{", ".join(f"{name!r}: lambda VALUE: {code}" for name, code in PLACES.items())}}}
class TritonPythonModel:
    def execute(self, requests):
        case = pb_utils.get_input_tensor_by_name(requests[0], "INPUT0").as_numpy().ravel()[0].decode()
        place, value = case.split("/")
        response = PLACES[place](VALUES[value]())
        if not DECOUPLED:
            return [response]
        sender = requests[0].get_response_sender()
        sender.send(response)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
MODELS: Final = {
    "here": ("in-process", False),
    "elsewhere": ("process", False),
    "here_in_parts": ("in-process", True),
    "elsewhere_in_parts": ("process", True),
}


def write(models: Path, name: str, execution: str, *, decoupled: bool) -> None:
    (models / name / "1").mkdir(parents=True)
    (models / name / "1" / "model.py").write_text(MODEL.replace("DECOUPLED", str(decoupled)))
    tensor = "data_type: TYPE_STRING dims: [-1]"
    (models / name / "config.pbtxt").write_text(
        f'backend: "python" parameters {{ key: "EXECUTION" value {{ string_value: "{execution}" }} }}\n'
        f"model_transaction_policy {{ decoupled: {str(decoupled).lower()} }}\n"
        f'input {{ name: "INPUT0" {tensor} }}\noutput {{ name: "OUTPUT0" {tensor} }}\n'
    )


class Reached:
    """The models, over HTTP and gRPC."""

    def __init__(self, core: ServingCore, stack: ExitStack) -> None:
        http = HttpFrontend(Endpoint("127.0.0.1", 0), api_service(Served(core)))
        stack.callback(http.stop)
        http.start()
        self.http = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{http.bind()[1]}", timeout=30))
        front = GrpcFrontend(Served(core), GrpcOptions(port=0))
        stack.callback(front.stop)
        front.start()
        self.channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{front.bind()[1]}"))


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reached]:
    folder = tmp_path_factory.mktemp("answers")
    for name, (execution, decoupled) in MODELS.items():
        write(folder / "models", name, execution, decoupled=decoupled)
    with ServingCore(every_model(folder)) as core, ExitStack() as stack:
        yield Reached(core, stack)


def post(reached: Reached, path: str, document: dict[str, Any]) -> httpx.Response:
    answer = reached.http.post(path, json=document)
    assert answer.status_code in (200, 400, 500, 501), answer.text
    if answer.status_code != 200:
        error = json.loads(answer.content.decode().removeprefix("data: "))["error"]  # Also where there is no event.
        assert isinstance(error, str)
        plain(error)
    return answer


def plain(text: str) -> str:
    assert "Traceback" not in text
    assert "is not healthy" not in text, "the process broke down over it"
    assert "repoagent" not in text, f"a place in the server: {text[:300]}"
    return text


def inputs(case: str, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [case]}]} | more


def by_json(reached: Reached, model: str, case: str) -> str:
    answer = post(reached, f"/v2/models/{model}/infer", inputs(case))
    return repr(readable(answer.content))


def by_binary(reached: Reached, model: str, case: str) -> str:
    answer = post(reached, f"/v2/models/{model}/infer", inputs(case, parameters={"binary_data_output": True}))
    length = int(answer.headers.get("Inference-Header-Content-Length", len(answer.content)))
    return repr(readable(answer.content[:length])) + repr(answer.content[length:])


def by_generate(reached: Reached, model: str, case: str) -> str:
    return repr(readable(post(reached, f"/v2/models/{model}/generate", {"INPUT0": case}).content))


def by_events(reached: Reached, model: str, case: str) -> str:
    answer = post(reached, f"/v2/models/{model}/generate_stream", {"INPUT0": case})
    if answer.status_code != 200:
        return answer.text
    lines = [line for line in answer.content.split(b"\n") if line]
    assert lines
    assert all(line.startswith(b"data: ") for line in lines), answer.content[:300]
    return repr([readable(line.removeprefix(b"data: ")) for line in lines])


def readable(content: bytes) -> Any:
    """As Triton writes it, with bytes in strings as they are; half a pair is three of them."""
    document = json.loads(content.decode("utf-8", "surrogatepass" if b"\xed\xa0" in content else "surrogateescape"))
    plain(json.dumps(document))
    return document


def message(model: str, case: str) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype="BYTES", shape=[1]).contents.bytes_contents.append(case.encode())
    return request


def by_call(reached: Reached, model: str, case: str) -> str:
    infer = reached.channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )
    try:
        return repr(infer(message(model, case), timeout=30))
    except grpc.RpcError as error:
        return refused(error)


def refused(error: Any) -> str:
    assert error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)
    return plain(error.details())


def by_stream(reached: Reached, model: str, case: str) -> str:
    infer = reached.channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelStreamInferResponse.FromString,
    )
    requests = [message(model, case), message(model, "an element/a good text")]
    try:
        answers = list(infer(iter(requests), timeout=30))
    except grpc.RpcError as error:
        raise AssertionError(f"the stream broke: {refused(error)}") from error
    assert len(answers) >= 2
    good = answers[-1].infer_response.raw_output_contents
    assert b"good" in good[0]
    for answer in answers:
        plain(answer.error_message)
    return repr(answers[:-1])


WAYS: Final[dict[str, Callable[[Reached, str, str], str]]] = {
    "JSON": by_json,
    "binary": by_binary,
    "gRPC": by_call,
    "generate": by_generate,
    "generate_stream": by_events,
    "stream": by_stream,
}

ONE_ANSWER: Final = {"JSON", "binary", "gRPC"}
"""Ways in which a decoupled model is not asked."""


def cases(way: str) -> Iterator[str]:
    """Every value in every place; otherwise a third of that, which leaves out none: three ways have all of it."""
    turn, step = list(WAYS).index(way), in_full(1, otherwise=3)
    for at, (place, value) in enumerate(itertools.product(PLACES, VALUES)):
        if (at + turn) % step == 0:
            yield f"{place}/{value}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "way"),
    [(model, way) for model, (_, decoupled) in MODELS.items() for way in WAYS if not (decoupled and way in ONE_ANSWER)],
)
def test_each_is_an_answer_or_an_error(reached: Reached, model: str, way: str) -> None:
    ask = WAYS[way]
    wrong = {}
    for case in cases(way):
        try:
            ask(reached, model, case)
        except Exception as error:
            wrong[case] = f"{type(error).__name__}: {ascii(str(error))[:200]}"
    assert not wrong, "\n".join(f"{case}: {error}" for case, error in wrong.items())
    assert "good" in ask(reached, model, "an element/a good text")
