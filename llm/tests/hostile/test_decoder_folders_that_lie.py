"""A decoder folder whose files say what is not true is refused at load, soon and by name; the process goes on."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from repoagent_llm import Executor, ExecutorConfig, ModelType, Request, RunnerOptions
from repoagent_llm.types.executor_errors import DecoderError

from llm.tests.backend.conftest import Asker, WriteModel
from llm.tests.foreign import change_config, change_graph, copy_folder
from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.tensor import Array

GENAI = Path(__file__).parents[1] / "data" / "genai"
_NUMBERS: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    32.0,
    "32",
    "",
    [],
    [1],
    {},
    2**31,
    2**63,
    10**30,
    float("nan"),
    "9" * 99_999,
]
_NAMES: list[Any] = [
    None,
    5,
    "",
    "%",
    "%s",
    "%d%d",
    "%999999999d",
    "%%d%d",
    "nothing",
    "nothing.%d",
    [],
    {},
    "x" * 10**6,
]
_SECTIONS: list[Any] = [None, 5, "", [], {}, "decoder"]
_WINDOWS: list[Any] = [*_NUMBERS, {"window_size": -5}, {"window_size": 2**40}, {"window_size": 8, "layers": [99]}]


def _places(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from _places(value, (*path, key))


def _lies() -> Iterator[tuple[tuple[str, ...], Any]]:
    model = json.loads((GENAI / "genai_config.json").read_text())["model"]
    for path in _places(model):
        found = model
        for key in path:
            found = found[key]
        kinds = {dict: _SECTIONS, int: _NUMBERS, str: _NAMES}
        yield from ((path, value) for value in kinds.get(type(found), _SECTIONS))
    yield from ((("decoder", "sliding_window"), value) for value in _WINDOWS)


def _write(model: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        model = model[key]
    model[path[-1]] = value


def _serve(folder: Path) -> None:
    config = ExecutorConfig()
    vars(config)["runner_options"] = RunnerOptions(threads=1, spinning=False)
    with Executor(folder, ModelType.DECODER_ONLY, config) as executor:
        (response,) = executor.await_responses(executor.enqueue_request(Request([5, 9], max_tokens=3)))
        assert not response.has_error(), response.error_msg


def _refused(folder: Path) -> str | None:
    try:
        _serve(folder)
    except RepoAgentError as error:
        return str(error)
    return None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_folder(GENAI, tmp_path / "folder")


@pytest.mark.slow
def test_no_value_of_the_configuration_brings_a_load_down(folder: Path) -> None:
    """Each is refused by an error of ours with a short text, or the folder serves all the same."""
    text = (folder / "genai_config.json").read_text()
    refused = 0
    for path, value in _lies():
        (folder / "genai_config.json").write_text(text)
        change_config(folder, lambda model, path=path, value=value: _write(model, path, copy.copy(value)))  # type: ignore[misc]
        found = _refused(folder)
        refused += found is not None
        assert found is None or len(found) < 600, (path, found[:2000])
    assert refused > 200


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "5", '"x"', "{", "[" * 10**6, '{"model": 5}', '{"model": {}}', "\ufeff", "{}" + " " * 2**23],
)
def test_a_configuration_that_is_none_is_refused(folder: Path, text: str) -> None:
    (folder / "genai_config.json").write_text(text)
    with pytest.raises(DecoderError, match="genai_config"):
        _serve(folder)


def test_a_configuration_in_no_known_encoding_is_refused(folder: Path) -> None:
    (folder / "genai_config.json").write_bytes(b"\xff\xfe\xfd{}")
    with pytest.raises(DecoderError, match="cannot be read"):
        _serve(folder)


def test_a_configuration_of_three_gigabytes_is_not_read(folder: Path) -> None:
    with (folder / "genai_config.json").open("r+b") as file:
        file.truncate(3 << 30)
    with pytest.raises(DecoderError, match="has more than 4194304 bytes"):
        _serve(folder)


def _without_inputs(kind: str) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        for node in graph.node:
            if node.op_type == kind:
                del node.input[:]

    return change


def _cycle(graph: Any) -> None:
    (head,) = (node for node in graph.node if "logits" in node.output)
    head.op_type = "Identity"
    head.domain = ""
    head.input[0] = "there"
    graph.node.append(helper.make_node("Identity", ["logits"], ["there"]))


def _itself(graph: Any) -> None:
    (head,) = (node for node in graph.node if "logits" in node.output)
    head.op_type, head.input[0] = "Identity", "logits"


def _no_outputs(graph: Any) -> None:
    del graph.output[:]


def _other_logits(graph: Any) -> None:
    """Its vocabulary is another one than both files say; only a step shows it."""
    for output in graph.output:
        if output.name == "logits":
            output.type.tensor_type.shape.dim[2].dim_param = "any"
            (head,) = (node for node in graph.node if "logits" in node.output)
            head.output[0] = "half"
            graph.node.append(helper.make_node("Concat", ["half", "half"], ["logits"], axis=-1))


@pytest.mark.parametrize(
    "change",
    [
        _without_inputs("GroupQueryAttention"),
        _without_inputs("MatMulNBits"),
        _without_inputs("Gather"),
        _cycle,
        _itself,
        _no_outputs,
        _other_logits,
    ],
    ids=["attention", "products", "embedding", "cycle", "itself", "outputs", "vocabulary"],
)
def test_a_graph_that_lies_is_refused_at_load(folder: Path, change: Callable[[Any], None]) -> None:
    change_graph(folder, change)
    with pytest.raises(DecoderError):
        Executor(folder, ModelType.DECODER_ONLY, ExecutorConfig())


# An adapter that the operator has put beside a model is what its number means, whatever clients send.

_CONFIG = np.array([[1, 0, 2]], np.int32)
_ROOM = 6000
"""For two adapters."""


def _weights(seed: int) -> Array:
    """Queries of layer 0, rank 2."""
    return np.random.default_rng(seed).standard_normal((1, 2 * 64 + 64 * 2)).astype(np.float16)


@pytest.fixture
def adapted(core: ServingCore, write_llm: WriteModel) -> Asker:
    """A model whose folder has adapter 7."""
    place: Path = write_llm(lora="true", lora_prefetch_dir="adapters", lora_cache_host_memory_bytes=str(_ROOM))
    folder = place / "1" / "adapters" / "7"
    folder.mkdir(parents=True)
    np.save(folder / "model.lora_weights.npy", _weights(1))
    np.save(folder / "model.lora_config.npy", _CONFIG)
    core.load("m")
    return Asker(core)


def test_no_number_of_others_makes_the_server_forget_it(adapted: Asker) -> None:
    wanted = adapted.ask("hello", lora_task_id=7).texts()
    for number in range(100, 106):
        adapted.ask("hello", lora_task_id=number, lora_weights=_weights(number), lora_config=_CONFIG).one()
    with pytest.raises(InvalidArgumentError, match="LoRA task 100 not found"):
        adapted.ask("hello", lora_task_id=100).one()
    assert adapted.ask("hello", lora_task_id=7, lora_weights=_weights(5), lora_config=_CONFIG).texts() == wanted
    assert adapted.ask("hello", lora_task_id=7).texts() == wanted
