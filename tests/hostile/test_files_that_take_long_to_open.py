"""What ONNX Runtime infers and copies while it opens a file has an end, in time and in memory."""

import queue
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from repoagent.config import ModelConfig
from repoagent.errors import CancelledError, InvalidArgumentError, UnavailableError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.onnx_files import trial_opening
from repoagent.onnx_files.graph import read_graph
from repoagent.onnx_files.shape_cost import is_plain
from repoagent.onnx_files.trial_opening import opening_within, try_opening
from repoagent.serving.backends.onnxruntime.session import open_session
from repoagent.storage.files.files import DirectoryFiles
from repoagent.testing import write_files
from tests.hostile.conftest import NewCore
from tests.onnx_models import floats, make_model, perceptron
from tests.serving.core_kit import in_thread

SMALL = replace(DEFAULT_LIMITS, open_bytes=64 << 20, open_seconds=5)
X = floats("x", shape=[1])
Y: Any = [("y", TensorProto.FLOAT, None)]


def node(operator: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(operator, inputs.split(), [output], **attributes)


def numbers(name: str, values: Any) -> Any:
    return numpy_helper.from_array(np.asarray(values, "i8"), name)


def doubling() -> Any:
    """A list of numbers that ONNX Runtime follows doubles with each node: 2^45 of them in 1.7 kB."""
    nodes = [node("Concat", f"c{one} c{one}", f"c{one + 1}", axis=0) for one in range(45)]
    return make_model([node("Shape", "x", "c0"), *nodes, node("Reshape", "x c45", "y")], X, Y)


def gathering() -> Any:
    """Each value has nearly twice as many dimensions as the one before."""
    nodes = [node("Gather", f"c{one} i", f"c{one + 1}", axis=0) for one in range(3000)]
    index = numbers("i", np.zeros((1,) * 60, "i8"))
    return make_model([node("Identity", "x", "c0"), *nodes, node("ReduceMax", "c3000", "y", keepdims=0)], X, Y, [index])


def many_dimensions() -> Any:
    nodes = [node("Relu", f"r{one}", f"r{one + 1}") for one in range(2000)]
    last = node("ReduceMax", "r2000", "y", keepdims=0)
    return make_model([node("Reshape", "x s", "r0"), *nodes, last], X, Y, [numbers("s", [1] * 200_000)])


def declared_dimensions() -> Any:
    """An input is a shape of as many dimensions as the file says in four bytes."""
    nodes = [node("Reshape", "x s", "r0"), *(node("Relu", f"r{one}", f"r{one + 1}") for one in range(2000))]
    inputs = [*X, ("s", TensorProto.INT64, [400_000])]
    return make_model([*nodes, node("ReduceMax", "r2000", "y", keepdims=0)], inputs, Y)


def squeezed() -> Any:
    """Each of the dimensions is looked for among those to take away."""
    weights = [numbers("s", [1] * 800_000), numbers("axes", range(1, 800_000))]
    return make_model([node("Reshape", "x s", "r"), node("Squeeze", "r axes", "y")], X, Y, weights)


def copies() -> Any:
    """Four hundred nodes share a weight of 4 MB, and for each it is brought into the form that its kernel wants.

    ONNX Runtime keeps one of the equal results, so this takes time (1.7 ms a node), not memory.
    """
    weight = numpy_helper.from_array(np.ones((1024, 1024), "f4"), "w")
    nodes = [node("MatMul", f"r{one} w", f"r{one + 1}") for one in range(400)]
    inputs = floats("r0", shape=[1, 1024])
    return make_model([*nodes, node("ReduceMax", "r400", "y", keepdims=0)], inputs, Y, [weight])


HOSTILE = [doubling, gathering, many_dimensions, declared_dimensions, squeezed]


def refusal(content: bytes, limits: Limits) -> str:
    with opening_within(limits, lambda: False), pytest.raises(InvalidArgumentError) as refused:
        try_opening(content, onnxruntime.SessionOptions(), "m")
    return str(refused.value)


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_what_takes_more_than_the_limit_is_refused_by_a_process_that_ends(make: Callable[[], Any]) -> None:
    assert refusal(make().SerializeToString(), SMALL).startswith("m takes more than ")


def test_time_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import signal\nsignal.pause()\n")
    monkeypatch.setattr(trial_opening, "_PROGRAM", program)
    assert "1 s to open" in refusal(doubling().SerializeToString(), replace(SMALL, open_seconds=1))


def test_a_cancelled_load_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started, cancelled = [], threading.Event()
    make = subprocess.Popen

    def popen(*arguments: Any, **more: Any) -> Any:
        started.append(make(*arguments, **more))
        cancelled.set()
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with opening_within(DEFAULT_LIMITS, cancelled.is_set), pytest.raises(CancelledError):
        try_opening(many_dimensions().SerializeToString(), onnxruntime.SessionOptions(), "m")
    assert started[0].returncode is not None


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "queue.SimpleQueue[subprocess.Popen[bytes]]":
    """The processes in which models are tried, as they start; none of them comes to an end by itself."""
    program = tmp_path / "program.py"
    program.write_text("import signal\nsignal.pause()\n")
    monkeypatch.setattr(trial_opening, "_PROGRAM", program)
    started: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    make = subprocess.Popen

    def popen(*arguments: Any, **more: Any) -> Any:
        process = make(*arguments, **more)
        if str(program) in arguments[0]:
            started.put(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    return started


def write(repository: Path, name: str, model: Any) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.onnx").write_bytes(model.SerializeToString())
    (repository / name / "config.pbtxt").write_text('backend: "onnxruntime" max_batch_size: 0')


@pytest.mark.parametrize("end", ["unload", "stop"])
def test_an_unload_and_a_stop_end_loads_that_are_tried_while_others_are_served(
    new_core: NewCore, repository: Path, trials: "queue.SimpleQueue[subprocess.Popen[bytes]]", end: str
) -> None:
    """As many as there are threads for loads; the good one has its thread after a second."""
    core = new_core(limits=Limits(load_thread_seconds=1), load_threads=2)
    for number in range(2):
        write(repository, f"tried-{number}", doubling())
    write(repository, "good", perceptron())
    loads = [in_thread(partial(core.load, f"tried-{number}")) for number in range(2)]
    processes = [trials.get(timeout=60) for _ in loads]
    core.load("good")
    assert core.model_ready("good")
    if end == "stop":
        core.stop()  # raises if the exit timeout was not enough
    else:
        for number in range(2):
            core.unload(f"tried-{number}")
    for (thread, results), process in zip(loads, processes, strict=True):
        thread.join(60)
        assert isinstance(results[0], CancelledError | UnavailableError)
        assert process.returncode == -signal.SIGKILL
    if end == "unload":
        assert core.model_ready("good")


def test_a_model_is_tried_as_it_will_be_opened() -> None:
    """Without optimisations nothing is folded, which is what takes the memory here."""
    nodes = [node("ConstantOfShape", f"s{one}", f"c{one}") for one in range(10)]
    nodes += [node("Einsum", f"x c{one}", f"y{one}", equation="i,jk->ijk") for one in range(10)]
    outputs: Any = [(f"y{one}", TensorProto.FLOAT, None) for one in range(10)]
    shapes = [numbers(f"s{one}", [2 + one, 1 << 20]) for one in range(10)]
    model = make_model(nodes, X, outputs, shapes).SerializeToString()
    assert not is_plain(read_graph(model))
    options = onnxruntime.SessionOptions()
    with opening_within(replace(SMALL, open_seconds=60), lambda: False):
        with pytest.raises(InvalidArgumentError, match="bytes of memory to open"):
            try_opening(model, options, "m")
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try_opening(model, options, "m")


def test_a_file_that_ends_the_process_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setattr(trial_opening, "_PROGRAM", program)
    with pytest.raises(InvalidArgumentError, match="ends the process that opens it, with signal 11"):
        try_opening(doubling().SerializeToString(), onnxruntime.SessionOptions(), "m")


def test_what_onnx_runtime_refuses_is_left_to_it() -> None:
    for content in (b"", b"no model", perceptron().SerializeToString()[:-9]):
        try_opening(content, onnxruntime.SessionOptions(), "m")


@pytest.mark.parametrize("beside", [False, True])
def test_a_large_file_that_opens_soon_is_let_through(beside: bool) -> None:
    """It is more than a pipe holds, and its graph does not show what it costs."""
    weight = numpy_helper.from_array(np.ones((256, 256), "f4"), "w")
    model = make_model([node("Einsum", "x w", "y", equation="ij,jk->ik")], floats("x", shape=[1, 256]), Y, [weight])
    content, files = model.SerializeToString(), {"other": bytes(1 << 20)} if beside else None
    assert not is_plain(read_graph(content))
    with opening_within(replace(SMALL, open_seconds=60), lambda: False):
        try_opening(content, onnxruntime.SessionOptions(), "m", files=files)


def test_no_process_is_started_for_an_ordinary_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_opening, "_run", lambda *_: pytest.fail("a process"))
    try_opening(perceptron().SerializeToString(), onnxruntime.SessionOptions(), "m")
    assert not any(is_plain(read_graph(make().SerializeToString())) for make in HOSTILE)
    with opening_within(Limits(open_seconds=0), lambda: False):
        try_opening(doubling().SerializeToString(), onnxruntime.SessionOptions(), "m")


def test_a_file_that_changes_after_it_was_tried_is_not_what_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner writes into it: no directory shows that. Files beside it had it opened by its path."""
    good, other = (make_model([node(operator, "x", "y")], X, Y).SerializeToString() for operator in ("Neg", "Identity"))
    root = write_files(tmp_path, {"1/model.onnx": good, "1/labels.txt": b"one"})
    asked: list[dict[str, Any]] = []

    def tried(_content: bytes, _options: Any, _name: str, **named: Any) -> None:
        asked.append(named)
        (root / "1/model.onnx").write_bytes(other)

    monkeypatch.setattr("repoagent.serving.backends.onnxruntime.session.try_opening", tried)
    session = open_session(ModelConfig(name="m"), DirectoryFiles(root), 1, onnxruntime.SessionOptions()).session
    assert session.run(None, {"x": np.ones(1, np.float32)})[0].tolist() == [-1]
    assert asked == [{"size": len(good) + len(b"one")}]
