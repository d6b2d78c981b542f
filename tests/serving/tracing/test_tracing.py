"""Traces of requests through the core: which are made, what is in them, which files they go to."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.tracing.trace_settings import SpanSettings, TraceSettings
from repoagent.serving.tracing.tracer import Tracer

CoreMaker = Callable[..., ServingCore]
ModelWriter = Callable[..., Path]
RequestMaker = Callable[..., InferRequest]
TIMES = frozenset({"TIMESTAMPS"})
STEPS = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
]


def settings(path: Path, **changes: Any) -> TraceSettings:
    return TraceSettings(**{"level": TIMES, "rate": 1, "file": str(path), **changes})


def records(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def ids(path: Path) -> list[int]:
    return [record["id"] for record in records(path) if "model_name" in record]


def steps(found: list[dict[str, Any]], trace: int) -> list[tuple[str, int]]:
    times = [record["timestamps"][0] for record in found if record["id"] == trace and "timestamps" in record]
    return [(time["name"], time["ns"]) for time in times]


def test_timestamps_come_in_tritons_form_and_order(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, new_sender: Any, tmp_path: Path
) -> None:
    write_model("m", {3: "1"})
    core = new_core(trace=settings(tmp_path / "t.json"))
    core.load("m")
    core.infer(request_of("m", id="r1"))
    sender = new_sender()
    request = request_of("m", sender=sender)
    core.submit(request)
    sender.final()
    assert request.redirect(sender) is sender
    assert request.trace is None
    core.stop()
    found = records(tmp_path / "t.json")
    assert found[0] == {"id": 1, "model_name": "m", "model_version": 3, "request_id": "r1"}
    assert {"id": 2, "model_name": "m", "model_version": 3} in found
    for trace in (1, 2):
        names, times = zip(*steps(found, trace), strict=True)
        assert list(names) == STEPS
        assert list(times) == sorted(times)


def test_tensors_are_written_as_text(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, tmp_path: Path
) -> None:
    write_model("m", {1: "0.5"})
    core = new_core(trace=settings(tmp_path / "t.json", level=frozenset({"TENSORS"})))
    core.load("m")
    core.infer(request_of("m", [[1, 2, 3, 1e10]]))
    core.stop()
    assert records(tmp_path / "t.json")[1:] == [
        {
            "id": 1,
            "activity": "TENSOR_QUEUE_INPUT",
            "tensor": {"name": "x", "data": "1,2,3,1e+10", "shape": "1,4", "dtype": "FP32"},
        },
        {
            "id": 1,
            "activity": "TENSOR_BACKEND_OUTPUT",
            "tensor": {"name": "y", "data": "1.5,2.5,3.5,1e+10", "shape": "1,4", "dtype": "FP32"},
        },
    ]


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.array([b'say "hi"', "é".encode(), b"\xff"], object), '"say "hi"","é","�"'),
        (np.array([True, False]), "1,0"),
        (np.array([-1, 2], np.int8), "-1,2"),
        (np.array([1.5], np.float16), ""),
    ],
)
def test_each_type_has_its_text(tmp_path: Path, array: Any, text: str) -> None:
    tracer = Tracer(settings(tmp_path / "t.json", level=frozenset({"TENSORS"})))
    trace = tracer.sample("m")
    assert trace is not None
    request = InferRequest(Asked("m", {"x": Tensor.of(array)}))
    trace.begin(request, 1, 0)
    trace.end(request, 1)
    tracer.close()
    assert records(tmp_path / "t.json")[1]["tensor"]["data"] == text


def test_the_steps_of_an_ensemble_are_children_of_its_trace(
    new_core: CoreMaker,
    write_model: ModelWriter,
    ensemble_config: Callable[..., str],
    request_of: RequestMaker,
    tmp_path: Path,
) -> None:
    write_model("a", {1: "1"})
    write_model("e", {}, ensemble_config(("a", {"x": "x"}, {"y": "t"}), ("a", {"x": "t"}, {"y": "y"})))
    core = new_core(trace=settings(tmp_path / "t.json"))
    core.load("e")
    core.infer(request_of("e"))
    core.stop()
    found = records(tmp_path / "t.json")
    heads = [record for record in found if "model_name" in record]
    assert [(head["id"], head["model_name"], head.get("parent_id")) for head in heads] == [
        (1, "e", None),
        (2, "a", 1),
        (3, "a", 1),
    ]
    assert [name for name, _ in steps(found, 1)] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert [name for name, _ in steps(found, 3)] == STEPS


def run(tracer: Tracer, count: int, model: str = "m") -> None:
    """Send ``count`` requests through ``tracer``."""
    for _ in range(count):
        trace = tracer.sample(model)
        if trace is not None:
            request = InferRequest(Asked(model, {}))
            trace.begin(request, 1, 0)
            trace.end(request, 1)


def test_every_nth_request_is_traced(tmp_path: Path) -> None:
    tracer = Tracer(settings(tmp_path / "t", rate=10))
    run(tracer, 35)
    tracer.close()
    assert ids(tmp_path / "t") == [1, 2, 3]


def test_no_more_traces_are_made_than_asked_for(tmp_path: Path) -> None:
    tracer = Tracer(settings(tmp_path / "t", count=2))
    run(tracer, 9)
    assert ids(tmp_path / "t.0") == [1, 2], "a complete set is written at once, into a numbered file"
    tracer.close()
    assert not (tmp_path / "t").exists()


def test_a_log_frequency_makes_numbered_files_and_the_rest_goes_into_the_last(tmp_path: Path) -> None:
    tracer = Tracer(settings(tmp_path / "t", log_frequency=3))
    run(tracer, 8)
    assert [ids(tmp_path / f"t.{number}") for number in range(2)] == [[1, 2, 3], [4, 5, 6]]
    tracer.close()
    assert ids(tmp_path / "t.2") == [7, 8]


def test_traces_of_many_threads_make_one_valid_file(tmp_path: Path) -> None:
    tracer = Tracer(settings(tmp_path / "t"))
    threads = [threading.Thread(target=run, args=(tracer, 50)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tracer.close()
    assert sorted(ids(tmp_path / "t")) == list(range(1, 201))


def test_a_file_that_cannot_be_written_fails_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracer = Tracer(settings(tmp_path / "missing" / "t"))
    run(tracer, 1)
    tracer.close()
    assert "failed to write traces to" in caplog.text


def test_a_trace_that_is_held_takes_notes_until_it_is_released(tmp_path: Path) -> None:
    tracer = Tracer(settings(tmp_path / "t"))
    trace = tracer.sample("m", held=True)
    assert trace is not None
    trace.note("HTTP_RECV_START", 1)
    request = InferRequest(Asked("m", {}))
    trace.begin(request, 1, 2)
    trace.end(request, 3)
    trace.note("HTTP_SEND_END", 4)
    trace.release()
    tracer.close()
    names = [name for name, _ in steps(records(tmp_path / "t"), 1)]
    assert names == ["HTTP_RECV_START", "REQUEST_START", "QUEUE_START", "REQUEST_END", "HTTP_SEND_END"]


# -- settings ----------------------------------------------------------------------------------------------------------


def test_the_defaults_trace_nothing() -> None:
    tracer = Tracer(TraceSettings())
    assert not tracer.enabled
    assert tracer.sample("m") is None
    assert tracer.settings().to_dict() == {
        "trace_level": ["OFF"],
        "trace_rate": "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "triton",
    }


def test_settings_change_for_all_models_or_for_one_and_can_be_taken_back(tmp_path: Path) -> None:
    tracer = Tracer(TraceSettings(file=str(tmp_path / "t")))
    tracer.update({"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    tracer.update({"trace_rate": "7"}, "own")
    assert (tracer.settings().rate, tracer.settings("own").rate, tracer.settings("other").rate) == (1, 7, 1)
    assert tracer.settings("own").level == TIMES
    tracer.update({"trace_rate": None}, "own")
    assert tracer.settings("own").rate == 1
    tracer.update({"trace_level": None})
    assert not tracer.enabled
    run(tracer, 3)
    tracer.close()
    assert not (tmp_path / "t").exists()


def test_traces_go_on_across_a_change(tmp_path: Path) -> None:
    tracer = Tracer(settings(tmp_path / "t"))
    run(tracer, 1)
    tracer.update({"trace_rate": "2"})
    run(tracer, 2)
    tracer.close()
    assert ids(tmp_path / "t") == [1, 2]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"trace_level": ["TIMESTAMPS"]}, "Attempting to set invalid trace setting :trace file name is not given"),
        ({"trace_level": ["EVERYTHING"]}, "unknown trace level 'EVERYTHING'; there are TIMESTAMPS, TENSORS, and OFF"),
        ({"trace_rate": "often"}, "failed to parse trace setting 'trace_rate': 'often' is not a whole number"),
        ({"trace_rate": "-1"}, "trace_rate and log_frequency must not be negative, nor trace_count below -1"),
        ({"trace_speed": "1"}, "unknown trace setting 'trace_speed'; there are "),
        ({"trace_speed": None}, "unknown trace setting 'trace_speed'; there are "),
    ],
)
@pytest.mark.parametrize("model", ["", "m"])
def test_a_wrong_setting_is_named_and_nothing_changes(changes: Any, text: str, model: str) -> None:
    tracer = Tracer(TraceSettings())
    with pytest.raises(InvalidArgumentError) as caught:
        tracer.update(changes, model)
    assert str(caught.value).startswith(text)
    assert tracer.settings(model) == TraceSettings()


def test_there_is_one_mode() -> None:
    tracer = Tracer(TraceSettings())
    tracer.update({"trace_mode": "triton"})
    with pytest.raises(UnsupportedError, match="trace mode 'opentelemetry' is not supported"):
        tracer.update({"trace_mode": "opentelemetry"})


def test_in_the_mode_of_spans_the_settings_are_those_of_spans() -> None:
    spans = SpanSettings(
        url="http://user:s3cret@collector:4318/v1/traces",
        resource=(("service.name", "models"), ("env", "test")),
        bsp_max_queue_size=2048,
    )
    settings = TraceSettings(level=frozenset({"TIMESTAMPS"}), rate=5, mode="opentelemetry", spans=spans)
    assert settings.to_dict() == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "5",
        "trace_count": "-1",
        "trace_mode": "opentelemetry",
        "url": "http://collector:4318/v1/traces",
        "resource": "service.name=models,env=test",
        "bsp_max_queue_size": "2048",
    }


def test_texts_that_are_not_unicode_are_escaped_in_trace_files(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, tmp_path: Path
) -> None:
    """Most readers of JSON refuse half of a surrogate pair, and with it all of the file."""
    write_model("m", {1: "1"})
    core = new_core(trace=settings(tmp_path / "t"))
    core.load("m")
    core.infer(request_of("m", id="r\udcff"))
    core.stop()
    assert "\\ud" not in (tmp_path / "t").read_text().replace("\\\\", "")
    assert any(record.get("request_id") == "r\\udcff" for record in records(tmp_path / "t"))


def test_processes_share_a_count(tmp_path: Path) -> None:
    keeper = Tracer(TraceSettings(file=str(tmp_path / "trace"), level=frozenset({"TIMESTAMPS"}), rate=1, count=20))
    shares: list[int] = []

    def share(model: str) -> int:
        shares.append(keeper.hand_out(model, 2))
        return shares[-1]

    workers = [Tracer(keeper.settings(), f"-{index}") for index in range(2)]
    for one in workers:
        one.share_counts(share)
    taken = [workers[index % 2].sample("m") is not None for index in range(60)]
    assert sum(taken) == sum(shares) == 20
    assert shares == [5, 4, 3, 2, 2, 1, 1, 1, 1, 0, 0]
    for one in (keeper, *workers):
        one.update({"trace_count": "2"}, "m")
    assert [workers[0].sample("m") is not None for _ in range(3)] == [True, True, False]
    assert keeper.hand_out("other", 2) == 0
