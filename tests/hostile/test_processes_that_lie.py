"""A model's process answers the first thing that it is asked with garbage: the load fails, with an error of ours."""

import gc
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from repoagent.errors import RepoAgentError
from repoagent.serving.backends.python.process.channel import _is_brief
from repoagent.serving.measuring.custom_metrics import REGISTRY
from repoagent.serving.scheduling.ahead import AheadScheduler
from tests.hostile.conftest import NewCore
from tests.hostile.fake_child import Answers, answering_loop, request, write_child, write_echo

pytestmark = pytest.mark.usefixtures("forked_models")
MODEL = """
class TritonPythonModel:
    STATIC
    def WHEN(*_):
        packet(WORK, KIND, BODY)
        threading.Event().wait()
    def execute(self, requests):
        return []
"""
DEEP = '"[" * 900 + "]" * 900'
FAILED = {
    "nothing": "'null'",
    "a number": "'5'",
    "an empty list": "'[]'",
    "a code that there is not": "'[99, 1]'",
    "a code that is a list": "'[[], 1]'",
    "a code without end": "'[' + '9' * 4000 + ', 1]'",
    "lists in lists": f"'[1, ' + {DEEP} + ']'",
}
WHEN = {"initialize": "", "auto_complete_config": "@staticmethod"}
COMPLETED = {
    "a number": "'5'",
    "a list": "'[1]'",
    "a name that is a list": "json.dumps({'name': [1]})",
    "an input that is a text": "json.dumps({'input': 'x'})",
    "a number without end": "'{\"max_batch_size\": ' + '9' * 4000 + '}'",
    "a text that no one can write": "json.dumps({'default_model_filename': chr(0xD800)})",
    "lists in lists": f"'{{\"input\": ' + {DEEP} + '}}'",
}


def load(new_core: NewCore, repository: Path, when: str, kind: int, body: str) -> str:
    text = MODEL.replace("STATIC", WHEN[when]).replace("WHEN", when).replace("KIND", str(kind)).replace("BODY", body)
    write_child(repository, text)
    with pytest.raises(RepoAgentError) as caught:
        new_core().load("m")
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("body", FAILED)
def test_an_error_that_is_not_one_is_said_to_be_that(new_core: NewCore, repository: Path, when: str, body: str) -> None:
    text = load(new_core, repository, when, 6, FAILED[body])
    assert f"is not healthy: in {when}, its answer cannot be read" in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", [7, 12, 99])
def test_an_answer_to_something_else_is_said_to_be_that(new_core: NewCore, repository: Path, kind: int) -> None:
    assert "its answer cannot be read" in load(new_core, repository, "initialize", kind, "'[1, \"not an error\"]'")


@pytest.mark.slow
@pytest.mark.parametrize("body", COMPLETED)
def test_a_configuration_that_is_not_one_fails_the_load(new_core: NewCore, repository: Path, body: str) -> None:
    text = load(new_core, repository, "auto_complete_config", 5, COMPLETED[body])
    assert "auto_complete_config" in text or "config" in text
    assert "Traceback" not in text
    assert text.encode()


# A model's process describes metrics with garbage: the page of metrics, which shows everybody's, must not break.

# It asks past the API that models have, as the code of a model can.
METRICS = """
(CORE,) = those_of(RemoteCore)
def ask(*question):
    try:
        return CORE.ask(*question)
    except Exception:
        return None
class TritonPythonModel:
    def execute(self, requests):
        family = ask("metric_family", ["nv_inference_count", "mine", 0])
        ask("metric", [family, {"model": "another"}, None])
        kinds = {0: (None,), 1: (None,), 2: ([], ["x"], [10**400], [float("nan")], [[1]], "ab", [1, 1], [1, 1e400])}
        descriptions = [5, None, [], chr(0xD800), "a metric"]
        for index, description in enumerate(descriptions):
            for kind, lists in kinds.items():
                family = ask("metric_family", [f"garbage_{index}_{kind}", description, kind])
                for buckets in lists:
                    for labels in ({}, {"a": 5}, {"a": chr(0xD800)}, {"": "b"}, {"a": "b"}, []):
                        number = ask("metric", [family, labels, buckets])
                        ask("metric_value", [number])
        x = pb_utils.get_input_tensor_by_name(requests[0], "x")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())])]
"""


@pytest.mark.slow
def test_the_page_of_metrics_is_still_written(new_core: NewCore, repository: Path) -> None:
    write_child(repository, METRICS)
    core = new_core()
    core.load("m")
    core.infer(request(1.0))
    page = REGISTRY.text().encode().decode()
    assert "nv_inference_count" not in page
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert [name for name in families if name.startswith("garbage")] == ["garbage_4_2"]
    counts = [sample for sample in families["garbage_4_2"].samples if sample.name.endswith("_count")]
    assert sorted(sample.labels.get("a", "") for sample in counts) == ["", "b"]


# A model's process writes garbage to the socket whose answers an event loop takes, which serves everybody.
#
# Its own request may fail. The loop goes on, the request is answered once, and the next one is executed.

PRELUDE = """NUMBER = newest()
            def answer(body, opened=(), fds=(), place=None):
                packet(WORK, 5, body, opened, fds, place=place)
            def outputs(*entries):
                answer([0, [[NUMBER, True, [None, "m", "1", {}, entries]]], [[NUMBER, 1, 2]], True])
            def raw(data):
                socket.socket(fileno=os.dup(WORK)).send(data)
            """
GARBAGE = {
    "a part of a head": 'raw(b"\\x05")',
    "a head without a body": 'raw(struct.pack("<BBI", 5, 0, 100))',
    "a count that is too large and not whole": "answer([1e9, [], [[NUMBER, 1, 2]], True])",
    "a count that is not a number": 'answer("[NaN,[],[],true]")',
    "a count that is true": "answer([True, [], [], True])",
    "a count without end": 'answer("[" + "9" * 5000 + ",[],[],true]")',
    "a segment of a negative size": "answer([0, [], [], True], [[1, -5]], [sealed_file(4096)])",
    "a segment of a size without end": "answer([0, [], [], True], [[1, 10**30]], [sealed_file(4096)])",
    "a segment without a descriptor": "answer([0, [], [], True], [[1, 4096]])",
    "descriptors without a segment": "answer([0, [], [], True], [], [sealed_file(4096) for _ in range(8)])",
    "an offset without end": "answer([0, [], [], True], [[1, 4096]], [sealed_file(4096)], [1, 10**30, 5])",
    "a shape without end": 'outputs(["y", "FP32", [10**30], 0, 4])',
    "a shape without end and without elements": 'outputs(["y", "FP32", [0, 10**30], 0, 0])',
    "strings of a shape without end": 'outputs(["y", "BYTES", [10**30], 0, 0])',
    "an offset that is not a number": 'outputs(["y", "FP32", [1], float("nan"), 4])',
    "a name that is a number": 'outputs([5, "FP32", [0], 0, 0])',
    "a name that is nothing": 'outputs([None, "FP32", [0], 0, 0])',
    "a type that is a list": 'outputs(["y", [], [0], 0, 0])',
    "lists in lists": 'answer("[" * 20000 + "]" * 20000)',
    "a text in lists in lists": 'answer([0, [[NUMBER, True, [[13, eval("[" * 99 + "]" * 99)], 0, 0, {}, []]]], [], 1])',
    "a number that is a list": "answer([0, [[[], True, None]], [[NUMBER, 1, 2]], True])",
    "the end of it": "socket.socket(fileno=os.dup(WORK)).shutdown(socket.SHUT_RDWR)",
}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_the_loop_goes_on_the_request_is_answered_once_and_the_next_one_is_executed(
    new_core: NewCore, repository: Path, garbage: str
) -> None:
    write_echo(repository, PRELUDE + GARBAGE[garbage] + "\n            threading.Event().wait()")
    core = new_core()
    core.load("m")
    with answering_loop() as loop:
        for value in (0.0, 1.0, 2.0):
            last = Answers()
            loop.submit(core, request(value, sender=last))
            assert last.complete.wait(60), f"{value} is not answered"
            assert last.finals == 1
        (response,) = last.responses
        assert response.error is None
        assert response.outputs["y"].array.tolist() == [2.0]
        loop.assert_goes_on()


# A model's process names the memory that an event loop is to map: its sizes decide who maps it.

HUGE = 1 << 40


@pytest.mark.parametrize("sizes", [[0], [-1], [HUGE, -HUGE], [4096, 0], [HUGE]])
def test_a_loop_maps_nothing_whose_size_is_large_or_no_size(sizes: list[int]) -> None:
    assert not _is_brief(None, [[number, size] for number, size in enumerate(sizes)])


@pytest.mark.parametrize("sizes", [[], [4096], [4096, 4096]])
def test_a_loop_maps_what_is_small(sizes: list[int]) -> None:
    assert _is_brief(None, [[number, size] for number, size in enumerate(sizes)])


# A model in a process of its own is given several requests at once, and its code lies about what became of them.
#
# A process may fail its own requests. It must not make another one execute a request again and again, answer twice, or
# keep the server from answering.

LIE = """with open(SEEN, "a") as seen:
                seen.write("x")
            NEXT = 1 + newest()
            LIE"""
LIES = {
    "it has begun nothing": "os.pwrite(PROGRESS, bytes(8), 0); os._exit(1)",
    "it has begun everything": "os.pwrite(PROGRESS, b'\\xff' * 8, 0); os._exit(1)",
    "what it was begun with comes back": "packet(SIDE, 17, list(range(1, 1000)))",
    "nothing that it was given comes back": "packet(SIDE, 17, [10**9])",
    "what comes back is no list": "packet(SIDE, 17, 5)",
    "what comes back is no number": "packet(SIDE, 17, [[]])",
    "what is answered comes back": "packet(SIDE, 7, ANSWER); packet(SIDE, 17, [NEXT])",
    "what is answered with others comes back": (
        "packet(WORK, 5, [0, [ANSWER], [[NEXT - 1, 1, 2]], False]); os.sched_yield(); packet(SIDE, 17, [NEXT])"
    ),
    "what is answered has not been begun": "packet(SIDE, 7, ANSWER); os._exit(1)",
    "it is over": "packet(WORK, 5, [0, [], [], True])",
    "an execution that there was not": "packet(WORK, 5, [0, [], [[10**9, 1, 2]], False])",
    "executed at no time": "packet(WORK, 5, [0, [], [[1, None, 'x']], False])",
    "answers without end, and nothing in them": "while True: packet(WORK, 5, [0, [], [], False])",
    "answers to nobody without end": "while True: packet(WORK, 5, [0, [[10**9, True, None]], [], False])",
    "an execution without an end": "packet(WORK, 5, [0, [], [[1]], False])",
}
ANSWER = '[NEXT, True, [[1, "it is not healthy"], "m", "1", {}, []]]'
OTHERS = 6


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_every_request_is_answered_once_and_none_is_executed_again_and_again(
    new_core: NewCore, repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, lie: str
) -> None:
    lies = LIES[lie].replace("ANSWER", ANSWER)
    write_echo(repository, LIE.replace("SEEN", repr(str(tmp_path / "seen"))).replace("LIE", lies))
    gc.collect()
    core = new_core()
    core.load("m")
    (scheduler,) = [entry for entry in gc.get_objects() if type(entry) is AheadScheduler and not entry._closed]
    (instance,) = scheduler.instances
    while instance.ahead < OTHERS + 1:
        instance.call(request(0.0))
    senders = [Answers() for _ in range(OTHERS + 1)]
    with ExitStack() as held:
        assert scheduler._pool.take(60) is instance
        held.callback(scheduler._pool.give, instance)
        for value, sender in zip([1.0, *[0.0] * OTHERS], senders, strict=True):
            core.submit(request(value, sender=sender))
    core.unload("m")  # It waits for every answer.
    assert [sender.finals for sender in senders] == [1] * len(senders)
    for sender in senders:
        (response,) = sender.responses
        assert response.error is None or "is not healthy" in str(response.error), response.error
    assert "after its final response" not in caplog.text, "what was answered was executed again"
    assert len((tmp_path / "seen").read_text()) <= 2
