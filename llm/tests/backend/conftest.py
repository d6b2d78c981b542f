"""A model with random weights, served by a core; and the executor over the same folder, to compare with."""

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm import Executor, ExecutorConfig, ModelType, Request, Result
from repoagent_llm.backend.tokenizing import Tokenizer

from llm.tests.backend.tiny import byte_level, write_decoder
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import NUMPY_TYPES, DataType, Tensor
from tests.serving import core_kit

TYPES = {bool: DataType.BOOL, int: DataType.INT32, float: DataType.FP32, str: DataType.BYTES, bytes: DataType.BYTES}
OTHER_TYPES = {"seed": DataType.UINT64, "random_seed": DataType.UINT64, "lora_task_id": DataType.UINT64}


class Answers(core_kit.Answers):
    """Of texts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = threading.Event()

    def send(self, response: InferResponse | None, final: bool) -> None:
        super().send(response, final)
        if response is not None:
            self.first.set()

    def one(self) -> InferResponse:
        """The only response, which is no error."""
        if self.response.error is not None:
            raise self.response.error
        return self.response

    def texts(self, name: str = "text_output") -> list[str]:
        """The elements of a text output in all responses."""
        responses = self.wait()
        assert not [response.error for response in responses if response.error]
        return [text.decode() for response in responses for text in response.outputs[name].array.ravel()]


def tensor(name: str, value: Any, *, batching: bool = False) -> Tensor:
    """An input of one row."""
    if isinstance(value, np.ndarray):
        return Tensor.of(value[np.newaxis] if batching else value)
    values = value if isinstance(value, list) else [value]
    kind = OTHER_TYPES.get(name, TYPES[type(values[0])])
    texts = [item.encode() if isinstance(item, str) else item for item in values]
    array = np.array(texts, NUMPY_TYPES[kind])
    return Tensor(kind, array[np.newaxis] if batching else array)


class Asker:
    """Asks a core for texts."""

    def __init__(self, core: ServingCore) -> None:
        self.core = core

    def request(
        self, text: str | bytes, model: str = "m", *, batching: bool = False, prompt: str = "text_input", **values: Any
    ) -> InferRequest:
        """A request; ``text`` is the input ``prompt``, if that is not empty, and ``values`` are further inputs."""
        inputs = {prompt: text, **values} if prompt else values
        tensors = {name: tensor(name, value, batching=batching) for name, value in inputs.items()}
        return InferRequest(Asked(model, tensors))

    def send(self, request: InferRequest) -> Answers:
        """Submit a request."""
        answers = Answers()
        request.redirect(answers)
        self.core.submit(request)
        return answers

    def ask(self, text: str | bytes, model: str = "m", *, batching: bool = False, **values: Any) -> Answers:
        """Submit a request for a text."""
        return self.send(self.request(text, model, batching=batching, **values))


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder folder with a tokenizer of bytes."""
    return write_decoder(tmp_path_factory.mktemp("llm") / "decoder", byte_level())


@pytest.fixture(scope="session")
def tireless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder folder for texts so long that a test need not hurry to interrupt them."""
    return write_decoder(tmp_path_factory.mktemp("llm") / "tireless", byte_level(), max_position_embeddings=30_000)


@pytest.fixture(scope="session")
def tokenizer(decoder: Path) -> Tokenizer:
    return Tokenizer.load(decoder)


WriteModel = Callable[..., Path]


@pytest.fixture
def write_llm(tmp_path: Path, decoder: Path) -> WriteModel:
    """``write_llm("m", "config", lora="true")``: a model in the repository; more are its parameters."""

    def write(name: str = "m", config: str = "", *, folder: Path | None = None, **parameters: Any) -> Path:
        place = tmp_path / "models" / name
        shutil.copytree(folder or decoder, place / "1")
        parameters = {"intra_op_thread_count": 1, **parameters}  # More would take the cores from each other.
        lines = [
            f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in parameters.items()
        ]
        (place / "config.pbtxt").write_text("\n".join(['backend: "llm"', config, *lines]))
        return place

    return write


@pytest.fixture
def core(tmp_path: Path) -> Iterator[ServingCore]:
    """A core over the repository, in which models are loaded by name."""
    (tmp_path / "models").mkdir(exist_ok=True)
    options = CoreOptions(
        repositories=(str(tmp_path / "models"),),
        control_mode=ControlMode.EXPLICIT,
        workspace_directory=tmp_path / "work",
        cache_directory=tmp_path / "cache",
    )
    with ServingCore(options) as core:
        yield core


@pytest.fixture
def asker(core: ServingCore, write_llm: WriteModel) -> Asker:
    """The model ``m`` with nothing configured, and who asks it."""
    write_llm()
    core.load("m")
    return Asker(core)


@pytest.fixture
def direct(decoder: Path) -> Iterator[Callable[[Request], Result]]:
    """What the executor answers to a request by itself."""
    with Executor(decoder, ModelType.DECODER_ONLY, ExecutorConfig(max_beam_width=3)) as executor:

        def ask(request: Request) -> Result:
            (response,) = executor.await_responses(executor.enqueue_request(request))
            return response.result

        yield ask


@pytest.fixture
def patient(core: ServingCore, write_llm: WriteModel, tireless: Path) -> Asker:
    """The tireless model, one request at a time and one in line."""
    write_llm(folder=tireless, max_seq_len=30_000, max_batch_size=1, max_queue_size=1)
    core.load("m")
    return Asker(core)


def generated(result: Result, prompt: Sequence[int]) -> list[int]:
    """The new tokens of a result."""
    return result.output_token_ids[0][len(prompt) :]
