"""T17: a decoder whose steps never end keeps no one waiting: neither who loads it, nor an unload, nor a stop."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from repoagent_llm import Executor, ExecutorConfig, Request
from repoagent_llm.engine import engine

from llm.tests.backend.conftest import Asker, WriteModel, decoder, write_llm  # noqa: F401
from llm.tests.fake_runner import FakeRunner
from llm.tests.foreign import change_graph, copy_folder
from repoagent.errors import CancelledError, UnavailableError
from repoagent.serving.core import ServingCore
from tests.hostile.conftest import NewCore
from tests.hostile.test_models_that_never_end import FOR_EVER, PATIENCE, until
from tests.serving.core_kit import in_thread

FIRST = 0
"""The token of the trial run."""


def never_end(folder: Path, token: int) -> Path:
    """Let a step with ``token`` in it run for ever, and every other one as it did."""

    def change(graph: Any) -> None:
        (embedding,) = (node for node in graph.node if node.op_type == "Gather" and "input_ids" in node.input)
        name, kept = embedding.output[0], "hostile_kept"
        embedding.output[0] = kept
        body = helper.make_graph(
            [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Identity", ["a"], ["b"])],
            "body",
            [
                helper.make_tensor_value_info("i", TensorProto.INT64, []),
                helper.make_tensor_value_info("c", TensorProto.BOOL, []),
                helper.make_tensor_value_info("a", TensorProto.FLOAT, None),
            ],
            [
                helper.make_tensor_value_info("c2", TensorProto.BOOL, []),
                helper.make_tensor_value_info("b", TensorProto.FLOAT, None),
            ],
        )
        constants = {"hostile_token": token, "hostile_for_ever": FOR_EVER, "hostile_yes": np.bool_(True)}
        graph.initializer.extend(numpy_helper.from_array(np.array(value), name) for name, value in constants.items())
        nodes = [
            helper.make_node("Equal", ["input_ids", "hostile_token"], ["hostile_found"]),
            helper.make_node("Cast", ["hostile_found"], ["hostile_ones"], to=TensorProto.INT64),
            helper.make_node("ReduceMax", ["hostile_ones"], ["hostile_any"], keepdims=0),
            helper.make_node("Mul", ["hostile_any", "hostile_for_ever"], ["hostile_rounds"]),
            helper.make_node("Loop", ["hostile_rounds", "hostile_yes", kept], [name], body=body),
        ]
        place = list(graph.node).index(embedding) + 1
        rest = [*nodes, *graph.node[place:]]
        del graph.node[place:]
        graph.node.extend(rest)

    return change_graph(folder, change)


def letter(folder: Path) -> int:
    return int(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]["a"])


@pytest.fixture
def hurried(new_core: NewCore, tmp_path: Path, write_llm: WriteModel) -> ServingCore:  # noqa: F811
    """A core that waits for neither requests nor steps."""
    write_llm("honest")
    models = (str(tmp_path / "models"),)
    return new_core(repositories=models, drain_timeout_seconds=0.2, exit_timeout_seconds=12)


@pytest.mark.parametrize("end", ["unload", "stop"])
@pytest.mark.parametrize("part", ["model", "draft"])
def test_an_unload_and_a_stop_end_a_load(
    hurried: ServingCore,
    write_llm: WriteModel,  # noqa: F811
    part: str,
    end: str,
) -> None:
    place = with_draft(write_llm) / "1"
    never_end(place / "draft" if part == "draft" else place, FIRST)
    thread, results = in_thread(lambda: hurried.load("m"))
    until(lambda: any(entry.get("state") == "LOADING" for entry in hurried.index()))
    until(lambda: any(it.name == "repoagent-open" for it in threading.enumerate()))
    hurried.unload("m") if end == "unload" else hurried.stop()
    thread.join(PATIENCE)
    assert isinstance(results[0], CancelledError | UnavailableError)
    until(lambda: not any(it.name == "repoagent-open" for it in threading.enumerate()))


@pytest.mark.parametrize("end", ["unload", "stop"])
@pytest.mark.parametrize("part", ["model", "draft"])
def test_an_unload_and_a_stop_end_a_step(
    hurried: ServingCore,
    write_llm: WriteModel,  # noqa: F811
    part: str,
    end: str,
) -> None:
    place = with_draft(write_llm) / "1"
    never_end(place / "draft" if part == "draft" else place, letter(place))
    hurried.load("m")
    asker = Asker(hurried)
    asker.ask("b", max_tokens=1).one()
    before = set(threading.enumerate())
    answers = asker.ask("a", max_tokens=8)
    hurried.unload("m") if end == "unload" else hurried.stop()
    (response,) = answers.wait()
    assert isinstance(response.error, UnavailableError)
    until(lambda: not any(it.name == "repoagent-executor" for it in before if it.is_alive()))


def with_draft(write_llm: WriteModel) -> Path:  # noqa: F811
    place = write_llm(speculative_model_dir="draft", max_draft_len="3")
    copy_folder(place.parent / "honest" / "1", place / "1" / "draft")
    return place


def test_a_step_that_does_not_hear_of_the_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_PATIENCE_SECONDS", 0.1)
    began, over = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        began.set()
        over.wait(PATIENCE)

    executor = Executor.from_runner(FakeRunner(before_step=hang), ExecutorConfig())
    waiting, results = in_thread(executor.await_responses)
    executor.enqueue_request(Request([1], 4))
    assert began.wait(PATIENCE)
    executor.shutdown()
    waiting.join(PATIENCE)
    assert results == [[]], "whoever waits for responses waits no longer"
    over.set()
