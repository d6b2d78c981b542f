"""Models behind OpenAI's API, and the official client, unmodified."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
from openai import AsyncOpenAI, OpenAI
from repoagent_llm.builder import build
from repoagent_server import KServeHttp

from examples.executor.synthetic import synthetic_checkpoint
from repoagent.server import Server

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "llm"
TEMPLATE = "{{ '<s>' }}{% for message in messages %}{{ message.content }}{% endfor %}{{ suffix }}"

PARROT = '''
"""A model in Python with the tensors of a language model: it says what the last message says, three letters a time."""
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.answer(request)

    def answer(self, request):
        def read(name):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return None if tensor is None else tensor.as_numpy().ravel()[0]
        if (messages := read("messages")) is not None:
            message = json.loads(messages)[-1]
            text = message["content"]
            if text == "repeat the request":
                values = {"messages": json.loads(messages), "values": json.loads(read("chat_template_kwargs") or "{}")}
                values["sampling"] = json.loads(read("sampling_parameters") or "{}")
                text = json.dumps(values)
        else:
            text = read("text_input").decode()
        sender = request.get_response_sender()
        if text == "fail":
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("a fault of the model")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        size = 3 if read("stream") else len(text) or 1
        for start in range(0, len(text), size):
            self.send(sender, text[start : start + size])
            if text.startswith("fail later"):
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("a fault of the model")))
                break
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def send(self, sender, piece):
        array = np.array([piece.encode()], np.object_)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", array)]))
'''
PARROT_CONFIG = """
backend: "python"
input [
  { name: "messages" data_type: TYPE_STRING dims: 1 optional: true },
  { name: "chat_template_kwargs" data_type: TYPE_STRING dims: 1 optional: true },
  { name: "text_input" data_type: TYPE_STRING dims: 1 optional: true },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: 1 optional: true },
  { name: "stream" data_type: TYPE_BOOL dims: 1 optional: true }
]
output { name: "text_output" data_type: TYPE_STRING dims: -1 }
model_transaction_policy { decoupled: true }
"""
LETTERS = '''
"""A vector for each text: its length, and how often it has an a."""
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().ravel()
            rows = np.array([[len(text), text.count(b"a")] for text in texts], np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("VECTOR", rows)]))
        return responses
'''
LETTERS_CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
output { name: "VECTOR" data_type: TYPE_FP32 dims: 2 }
"""
ENSEMBLE = """
platform: "ensemble"
input [
  { name: "text_input" data_type: TYPE_STRING dims: 1 },
  { name: "stream" data_type: TYPE_BOOL dims: 1 optional: true }
]
output { name: "text_output" data_type: TYPE_STRING dims: -1 }
ensemble_scheduling {
  step [ {
    model_name: "parrot" model_version: -1
    input_map { key: "text_input" value: "text_input" }
    input_map { key: "stream" value: "stream" }
    output_map { key: "text_output" value: "text_output" }
  } ]
}
"""

OVER_NARROW = """
platform: "ensemble"
input [
  { name: "text_input" data_type: TYPE_STRING dims: 1 },
  { name: "stream" data_type: TYPE_BOOL dims: 1 },
  { name: "max_tokens" data_type: TYPE_INT32 dims: 1 },
  { name: "end_id" data_type: TYPE_INT32 dims: 1 }
]
output { name: "text_output" data_type: TYPE_STRING dims: -1 }
ensemble_scheduling {
  step [ {
    model_name: "narrow" model_version: -1
    input_map { key: "text_input" value: "text_input" }
    input_map { key: "stream" value: "stream" }
    input_map { key: "max_tokens" value: "max_tokens" }
    input_map { key: "end_id" value: "end_id" }
    output_map { key: "text_output" value: "text_output" }
  } ]
}
"""


def write(repository: Path, name: str, config: str, code: str = "") -> None:
    """A model in the repository."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    if code:
        (repository / name / "1" / "model.py").write_text(code)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``sums``: a language model that adds. ``once``: the same, each request answered once. ``narrow``: one at a time,
    nobody waits. ``thinker``: like ``sums``, and every prompt opens its reasoning.
    ``states``: its pooled hidden states. ``parrot``, ``chain`` (over it), ``over_narrow``, ``letters``, ``numbers``."""
    place = tmp_path_factory.mktemp("openai") / "repository"
    shutil.copytree(EXAMPLE / "repository", place, ignore=shutil.ignore_patterns("1"))
    subprocess.run(
        [sys.executable, str(EXAMPLE / "build.py"), str(place)], check=True, timeout=100, capture_output=True
    )
    (place / "sums" / "1" / "chat_template.jinja").write_text(TEMPLATE)
    shutil.copytree(place / "sums", place / "once")
    with (place / "once" / "config.pbtxt").open("a") as file:
        file.write("model_transaction_policy { decoupled: false }\nmax_batch_size: 8\n")
    shutil.copytree(place / "sums", place / "thinker")
    (place / "thinker" / "1" / "chat_template.jinja").write_text(TEMPLATE.replace("{{ suffix }}", "<think>\n"))
    shutil.copytree(place / "sums", place / "states")
    pooling = 'parameters { key: "pooling" value { string_value: "mean" } }'
    (place / "states" / "config.pbtxt").write_text(f'backend: "llm"\nmax_batch_size: 4\n{pooling}')
    _write_narrow(place / "narrow", place / "sums" / "1")
    write(place, "parrot", PARROT_CONFIG, PARROT)
    write(place, "letters", LETTERS_CONFIG, LETTERS)
    write(place, "chain", ENSEMBLE)
    write(place, "over_narrow", OVER_NARROW)
    return place


def _write_narrow(model: Path, like: Path) -> None:
    """With random weights, for texts so long that a test need not hurry to interrupt them."""
    inner = tokenizers.Tokenizer.from_file(str(like / "tokenizer.json"))
    checkpoint = model.parent.parent / "checkpoint"
    synthetic_checkpoint(checkpoint, vocab_size=inner.get_vocab_size() + 5, max_position_embeddings=30_000)
    build(checkpoint, model / "1")
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(like / name, model / "1" / name)
    values = {"max_batch_size": 1, "max_queue_size": 1, "max_seq_len": 30_000, "intra_op_thread_count": 1}
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in values.items()]
    (model / "config.pbtxt").write_text("\n".join(['backend: "llm"', *lines]))


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    """Of one module: the metrics of its models are those of the whole process."""
    with Server(model_repository=str(repository)) as server:
        yield server


@pytest.fixture(scope="module")
def url(server: Server) -> Iterator[str]:
    with KServeHttp(server, KServeHttp.Options(port=0, allow_openai=True)) as front:
        yield "http://{}:{}".format(*front.address)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    """The official client; it does not repeat what fails."""
    with OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def aclient(url: str) -> Any:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


Token = Callable[[str], int]


@pytest.fixture(scope="module")
def token(repository: Path) -> Token:
    """The token of a character of the model ``sums``."""
    inner = tokenizers.Tokenizer.from_file(str(repository / "sums" / "1" / "tokenizer.json"))
    return lambda text: int(inner.encode(text, add_special_tokens=False).ids[0])


def user(text: str) -> list[Any]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


def events(http: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """The events of a stream; the last one is a text."""
    with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    return [*map(json.loads, lines[:-1]), lines[-1]]
