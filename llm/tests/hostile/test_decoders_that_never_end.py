"""T17: a decoder whose steps never end keeps no one waiting: neither who loads it, nor an unload, nor a stop."""

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from repoagent_llm import Executor, ExecutorConfig, Request
from repoagent_llm.engine import engine
from repoagent_llm.runner.decoder_spec import read_spec
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.runner.session import make_session
from repoagent_llm.types.executor_errors import DecoderError

from llm.tests.backend.conftest import Asker, WriteModel
from llm.tests.fake_runner import FakeRunner
from llm.tests.foreign import change_graph, copy_folder
from repoagent.errors import CancelledError, RepoAgentError, UnavailableError
from repoagent.limits import Limits
from repoagent.onnx_files import trial_opening
from repoagent.onnx_files.trial_opening import opening_within
from repoagent.serving.core import ServingCore
from tests.hostile.conftest import NewCore
from tests.hostile.test_models_that_never_end import FOR_EVER, PATIENCE
from tests.serving.core_kit import in_thread
from tests.waiting import until

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
def hurried(new_core: NewCore, tmp_path: Path, write_llm: WriteModel) -> ServingCore:
    """A core that waits for neither requests nor steps."""
    write_llm("honest")
    models = (str(tmp_path / "models"),)
    return new_core(repositories=models, drain_timeout_seconds=0.2, exit_timeout_seconds=12)


@pytest.mark.parametrize("end", ["unload", "stop"])
@pytest.mark.parametrize("part", ["model", "draft"])
def test_an_unload_and_a_stop_end_a_load(hurried: ServingCore, write_llm: WriteModel, part: str, end: str) -> None:
    place = with_draft(write_llm) / "1"
    never_end(place / "draft" if part == "draft" else place, FIRST)
    thread, results = in_thread(lambda: hurried.load("m"))
    until(lambda: any(entry.get("state") == "LOADING" for entry in hurried.index()))
    until(lambda: any(it.name == "repoagent-open" for it in threading.enumerate()))
    hurried.unload("m") if end == "unload" else hurried.stop()
    thread.join(PATIENCE)
    assert isinstance(results[0], CancelledError | UnavailableError)
    until(lambda: not any(it.name == "repoagent-open" for it in threading.enumerate()))


def folds_for_hours(graph: Any) -> None:
    """Adds nothing to the embedding: a product of constants, which takes hours to compute."""
    embedding = next(node for node in graph.node if node.op_type == "Gather" and "input_ids" in node.input)
    name, kept = embedding.output[0], "hostile_kept"
    embedding.output[0] = kept
    graph.initializer.append(numpy_helper.from_array(np.array([1500, 1500]), "hostile_shape"))
    graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), "hostile_zero"))
    nodes = [helper.make_node("ConstantOfShape", ["hostile_shape"], ["h0"])]
    nodes += [helper.make_node("MatMul", [f"h{i}", "h0"], [f"h{i + 1}"]) for i in range(4000)]
    nodes += [
        helper.make_node("ReduceMax", ["h4000"], ["hostile_most"], keepdims=0),
        helper.make_node("Mul", ["hostile_most", "hostile_zero"], ["hostile_nothing"]),
        helper.make_node("Add", [kept, "hostile_nothing"], [name]),
    ]
    place = list(graph.node).index(embedding) + 1
    rest = [*nodes, *graph.node[place:]]
    del graph.node[place:]
    graph.node.extend(rest)


def grows(graph: Any) -> None:
    """A shape that is twice as long with each node."""
    graph.initializer.append(numpy_helper.from_array(np.ones(1, np.int64), "hostile_one"))
    nodes = [helper.make_node("Shape", ["hostile_one"], ["h0"])]
    nodes += [helper.make_node("Concat", [f"h{i}"] * 2, [f"h{i + 1}"], axis=0) for i in range(45)]
    nodes.append(helper.make_node("ConstantOfShape", ["h45"], ["hostile"]))
    graph.node.extend(nodes)
    graph.output.append(helper.make_tensor_value_info("hostile", TensorProto.FLOAT, None))


def test_a_graph_that_folds_for_hours_is_opened_at_once(decoder: Path, tmp_path: Path) -> None:
    folder = change_graph(copy_folder(decoder, tmp_path / "folding"), folds_for_hours)
    assert make_session(read_spec(folder), RunnerOptions())


@pytest.mark.parametrize("own", [False, True])
def test_a_graph_that_takes_too_much_memory_to_open_is_refused(decoder: Path, tmp_path: Path, own: bool) -> None:
    folder = change_graph(copy_folder(decoder, tmp_path / "growing"), grows)
    within = opening_within(Limits(open_bytes=64 << 20), lambda: False)
    with within, pytest.raises(DecoderError, match=r"takes more than .* --limit-open-bytes"):
        make_session(read_spec(folder), RunnerOptions(own_weights=own))


def test_a_load_of_such_a_graph_names_the_limit(write_llm: WriteModel, new_core: NewCore, tmp_path: Path) -> None:
    change_graph(write_llm("m") / "1", grows)
    core = new_core(repositories=(str(tmp_path / "models"),), limits=Limits(open_bytes=64 << 20))
    with pytest.raises(RepoAgentError, match="--limit-open-bytes"):
        core.load("m")


def test_an_unload_ends_the_trial_of_a_graph(
    hurried: ServingCore, write_llm: WriteModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "endless.py"
    program.write_text(f"open({str(tmp_path / 'began')!r}, 'w')\nimport signal\nwhile True:\n    signal.pause()\n")
    monkeypatch.setattr(trial_opening, "_PROGRAM", program)
    change_graph(write_llm("m") / "1", grows)
    thread, results = in_thread(lambda: hurried.load("m"))
    until((tmp_path / "began").exists)
    hurried.unload("m")
    thread.join(PATIENCE)
    assert isinstance(results[0], CancelledError)
    until(lambda: not any(it.name == "repoagent-open" for it in threading.enumerate()))


def test_an_ordinary_decoder_starts_no_process(decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert make_session(read_spec(decoder), RunnerOptions())


@pytest.mark.parametrize("end", ["unload", "stop"])
@pytest.mark.parametrize("part", ["model", "draft"])
def test_an_unload_and_a_stop_end_a_step(hurried: ServingCore, write_llm: WriteModel, part: str, end: str) -> None:
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


def with_draft(write_llm: WriteModel) -> Path:
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
