"""An executor from bytes: the graph, the text of its configuration, and the weights that the graph keeps outside."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from repoagent_llm import Executor, ExecutorConfig, ModelType, Request
from repoagent_llm.builder import Form

from repoagent.errors import ConfigError, InvalidArgumentError

PROMPT = [5, 9, 17]
KIND = ModelType.DECODER_ONLY
Weights = dict[str, np.ndarray[Any, Any]]


def _whole(folder: Path) -> bytes:
    """The graph with its weights in it."""
    return bytes(onnx.load(str(folder / "model.onnx")).SerializeToString())


def _apart(folder: Path) -> tuple[bytes, Weights]:
    """The graph, and the weights that it keeps in a file of their own."""
    graph = onnx.load(str(folder / "model.onnx"), load_external_data=False).graph
    outside = {item.name for item in graph.initializer if item.data_location == onnx.TensorProto.EXTERNAL}
    whole = onnx.load(str(folder / "model.onnx")).graph
    weights = {item.name: onnx.numpy_helper.to_array(item) for item in whole.initializer if item.name in outside}
    return (folder / "model.onnx").read_bytes(), weights


def _tokens(executor: Executor) -> list[list[int]]:
    (response,) = executor.await_responses(executor.enqueue_request(Request(PROMPT, 8)), timedelta(seconds=30))
    return response.result.output_token_ids


@pytest.mark.parametrize("form", [Form.GQA, Form.STD])
def test_bytes_serve_as_the_folder_does(form: Form, decoder_folder: Callable[..., Path]) -> None:
    folder = decoder_folder("llama", form)
    text = (folder / "genai_config.json").read_text()
    graph, weights = _apart(folder)
    assert weights
    with Executor(folder, KIND, ExecutorConfig()) as executor:
        expected = _tokens(executor)
    with Executor(_whole(folder), text, KIND, ExecutorConfig()) as executor:
        assert _tokens(executor) == expected
    with Executor(graph, text, KIND, ExecutorConfig(), weights) as executor:
        assert _tokens(executor) == expected
    with Executor(
        bytearray(graph),
        json_config_str=text,
        managed_weights=weights,
        executor_config=ExecutorConfig(),
        model_type=KIND,
    ) as executor:
        assert _tokens(executor) == expected


def test_managed_weights_are_the_ones_that_count(decoder_folder: Callable[..., Path]) -> None:
    folder = decoder_folder("llama")
    text = (folder / "genai_config.json").read_text()
    graph, weights = _apart(folder)
    # A head of zeros but for one row: every step says that row's token, or token 0 where it is negative.
    weights["logits.weight"] = np.zeros_like(weights["logits.weight"])
    with Executor(graph, text, KIND, ExecutorConfig(), weights) as executor:
        assert _tokens(executor) == [PROMPT + [0] * 8]


def _less(weights: Weights, name: str) -> Weights:
    return {key: value for key, value in weights.items() if key != name}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda weights: _less(weights, "embedding"), r"managed_weights lacks 'embedding'"),
        (lambda weights: {**weights, "embedding": weights["embedding"][1:]}, r"'embedding'\] is float32 \[95, 64\]"),
        (lambda weights: {**weights, "embedding": weights["embedding"].astype(np.float16)}, "is float16"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    change: Callable[[Weights], Weights], text: str, decoder_folder: Callable[..., Path]
) -> None:
    folder = decoder_folder("llama")
    graph, weights = _apart(folder)
    config = (folder / "genai_config.json").read_text()
    with pytest.raises(RuntimeError, match=text):
        Executor(graph, config, KIND, ExecutorConfig(), change(weights))


def test_weights_that_the_graph_does_not_have_are_passed_over(decoder_folder: Callable[..., Path]) -> None:
    folder = decoder_folder("llama")
    graph, weights = _apart(folder)
    text = (folder / "genai_config.json").read_text()
    bytes_alone = np.zeros(3, np.dtype("V2", metadata={"dtype": "bfloat16"}))
    for other in (np.zeros(3, np.float32), bytes_alone):
        with Executor(graph, text, KIND, ExecutorConfig(), {**weights, "other": other}) as executor:
            assert len(_tokens(executor)[0]) == len(PROMPT) + 8


def test_weights_of_a_type_that_numpy_lacks_are_taken_by_their_bytes(decoder_folder: Callable[..., Path]) -> None:
    """As TensorRT-LLM gives them: void16, the type in the metadata. The graph casts the embedding before its use."""
    folder = decoder_folder("llama")
    data, weights = _apart(folder)
    text = (folder / "genai_config.json").read_text()
    model = onnx.load_model_from_string(data)
    (table,) = (item for item in model.graph.initializer if item.name == "logits.weight")
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name == table.name:
                node.input[place] = f"{name}.wide"
    cast = onnx.helper.make_node("Cast", [table.name], [f"{table.name}.wide"], to=onnx.TensorProto.FLOAT)
    model.graph.node.insert(0, cast)
    table.data_type = onnx.TensorProto.BFLOAT16
    exact = weights["logits.weight"].view(np.uint32) & 0xFFFF0000  # what bfloat16 can say
    shortened = (exact >> 16).astype(np.uint16)
    with Executor(data, text, KIND, ExecutorConfig(), {**weights, "logits.weight": exact.view(np.float32)}) as executor:
        expected = _tokens(executor)
    described = np.dtype("V2", metadata={"dtype": "bfloat16"})
    given = {**weights, "logits.weight": shortened.view(described)}
    with Executor(model.SerializeToString(), text, KIND, ExecutorConfig(), given) as executor:
        assert _tokens(executor) == expected


def test_bytes_that_are_no_model_are_named(decoder_folder: Callable[..., Path]) -> None:
    config = (decoder_folder("llama") / "genai_config.json").read_text()
    with pytest.raises(InvalidArgumentError, match="the engine buffer is not an ONNX model"):
        Executor(b"\xff not a graph", config, KIND, ExecutorConfig())
    with pytest.raises(ConfigError, match="the engine's JSON configuration: the key 'model' is missing"):
        Executor(b"", "{}", KIND, ExecutorConfig())
    with pytest.raises(ConfigError, match="cannot be read"):
        Executor(b"", "{", KIND, ExecutorConfig())
