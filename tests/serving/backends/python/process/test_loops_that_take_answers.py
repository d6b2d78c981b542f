"""Requests that come on an event loop, which hands them to a model's process and takes the answers without a thread."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest

from repoagent.errors import CancelledError, InternalError, UnavailableError
from repoagent.serving.backends.python.process import exchange
from repoagent.serving.backends.python.process.channel import Kind
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from tests.serving.backends.python.process.conftest import Answers, LoopThread, Serving

pytestmark = pytest.mark.slow
Serve = Callable[..., Serving]
NewLoop = Callable[[], LoopThread]
TWO = "instance_group { count: 2 }"


class Located(Answers):
    """Knows which thread it was answered on."""

    thread = 0

    def send(self, response: Any, final: bool) -> None:
        self.thread = threading.get_ident()
        super().send(response, final)


def ask(serving: Serving, loop: LoopThread, *values: float, **fields: Any) -> tuple[list[InferRequest], list[Located]]:
    """Submit requests in one turn of the loop."""
    answers = [Located() for _ in values]
    requests = [serving.request(value, answer, **fields) for value, answer in zip(values, answers, strict=True)]

    def submit() -> None:
        for request in requests:
            serving.core.submit(request)

    loop.call(submit)
    return requests, answers


def on_loop(loop: LoopThread, answers: list[Located]) -> bool:
    assert all(answer.complete.wait(60) for answer in answers)
    return all(answer.thread == loop.thread.ident for answer in answers)


@contextmanager
def stopped(serving: Serving) -> Iterator[None]:
    """The process does nothing meanwhile."""
    pid = serving.instances[0]._inner.supervisor.child.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def asked_back_before_sent(serving: Serving) -> None:
    """What the process is given from now on is asked back just before it is sent, and the question is heard first."""
    instance = serving.instances[0]._inner
    channel = instance.supervisor.child.work
    send = channel.send

    def overtaken(kind: Kind, body: Any, payload: Any = None) -> None:
        if kind == Kind.EXECUTE:
            instance.supervisor.child.send(Kind.RETURN, body[1][-1][-1][0])
            with pytest.raises(InternalError, match="is_ready"):  # It answers a question behind that; it has none.
                instance.is_ready()
        send(kind, body, payload)

    channel.send = overtaken


def test_the_loop_takes_the_answers_itself_and_no_worker_is_started(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    for value in (10.0, 11.0, 12.0):
        _, answers = ask(serving, loop, value)
        assert on_loop(loop, answers)
        assert answers[0].value == value
    assert serving.scheduler._workers == []


def test_what_comes_while_the_process_works_is_handed_over_together(serve_steadily: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve_steadily(), new_loop()
    before = serving.messages()
    values = [10.0 + number for number in range(8)]
    with stopped(serving):
        _, answers = ask(serving, loop, *values)
    assert on_loop(loop, answers)
    assert [answer.value for answer in answers] == values
    assert serving.messages() - before == 2


def test_every_execution_is_counted_by_itself(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    before = serving.statistics()
    _, answers = ask(serving, loop, *[10.0] * 6, 4.0, 10.0)
    assert all(answer.value for answer in answers)
    after = serving.statistics()
    assert after["execution_count"] - before["execution_count"] == 8
    assert after["inference_count"] - before["inference_count"] == 8
    took = [
        after["inference_stats"][part]["ns"] - before["inference_stats"][part]["ns"]
        for part in ("success", "queue", "compute_input", "compute_infer", "compute_output")
    ]
    assert took[0] == sum(took[1:])
    assert took[1] > 0


def test_what_waits_for_the_process_can_be_cancelled_and_can_wait_too_long(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    before = serving.statistics()["execution_count"]
    with stopped(serving):
        _, first = ask(serving, loop, 10.0)
        requests, cancelled = ask(serving, loop, 11.0)
        _, late = ask(serving, loop, 12.0, timeout_us=1)
        requests[0].cancel()
        with pytest.raises(CancelledError):
            _ = cancelled[0].value
        with pytest.raises(UnavailableError, match="Request timeout expired"):
            _ = late[0].value
    assert first[0].value == 10.0
    assert serving.statistics()["execution_count"] - before == 1


def test_what_is_cancelled_before_it_is_submitted_is_not_executed(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    answers = Located()
    request = serving.request(10.0, answers)
    request.cancel()
    loop.call(lambda: serving.core.submit(request))
    with pytest.raises(CancelledError):
        _ = answers.value


def test_what_was_sent_behind_a_slow_one_comes_back(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    with stopped(serving):
        _, first = ask(serving, loop, 10.0)
        requests, behind = ask(serving, loop, 1.0, 11.0, 12.0)
    assert first[0].value == 10.0
    requests[1].cancel()
    with pytest.raises(CancelledError):  # While the slow one is still executed.
        _ = behind[1].value
    serving.let_go()
    assert [behind[0].value, behind[2].value] == [1.0, 12.0]
    assert on_loop(loop, ask(serving, loop, 13.0)[1]) or serving.instances[0]._inner._for_threads


def test_what_arrives_after_it_was_asked_back_comes_back(
    serve: Serve, new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_PATIENCE_SECONDS", 3600)  # The only question is the one that comes too early.
    serving, loop = serve(), new_loop()
    with stopped(serving):
        _, first = ask(serving, loop, 10.0)
        requests, behind = ask(serving, loop, 1.0, 11.0, 12.0)
        asked_back_before_sent(serving)
    assert first[0].value == 10.0
    requests[1].cancel()
    with pytest.raises(CancelledError):  # While the slow one is still executed.
        _ = behind[1].value
    serving.let_go()
    assert [behind[0].value, behind[2].value] == [1.0, 12.0]


def test_what_stands_behind_a_slow_one_goes_to_another_instance(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(TWO), new_loop()
    _, answers = ask(serving, loop, 1.0, *[10.0] * 6)
    assert [answer.value for answer in answers[1:]] == [10.0] * 6  # While the first one is still executed.
    serving.let_go()
    assert answers[0].value == 1.0


def test_a_crash_costs_what_had_begun_and_nothing_behind_it(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    with stopped(serving):
        _, first = ask(serving, loop, 10.0)
        _, behind = ask(serving, loop, 11.0, 2.0, 12.0, 2.0, 13.0)
    assert first[0].value == 10.0
    for answer in (behind[1], behind[3]):
        with pytest.raises(InternalError, match=r"Stub process 'm_0' is not healthy\."):
            _ = answer.value
    assert behind[0].response.error is None or "is not healthy" in str(behind[0].response.error)
    assert [behind[2].value, behind[4].value] == [12.0, 13.0]


def test_a_process_that_was_killed_while_idle_costs_nothing(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    assert ask(serving, loop, 10.0)[1][0].value == 10.0
    child = serving.instances[0]._inner.supervisor.child
    os.kill(child.pid, signal.SIGKILL)
    assert child.exited.wait(60)
    for value in (11.0, 12.0):
        assert ask(serving, loop, value)[1][0].value == value


def test_the_loop_goes_on_serving_while_the_process_starts_again(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    _, answers = ask(serving, loop, 2.0, 10.0)
    assert loop.call(lambda: "served") == "served"
    with pytest.raises(InternalError):
        _ = answers[0].value
    assert answers[1].value == 10.0


def test_long_answers_are_taken_by_a_thread(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    answers = Located()
    array = np.full(60_000, 5.0, np.float32)  # Small enough to be sent by the loop; the answer is twice as long.
    loop.call(lambda: serving.core.submit(InferRequest(Asked("m", {"x": Tensor.of(array)}), answers)))
    assert answers.response.outputs["y"].array.nbytes == 2 * array.nbytes
    assert answers.thread != loop.thread.ident


def test_long_requests_are_sent_by_a_thread(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    answers = Located()
    array = np.full(1 << 20, 10.0, np.float32)
    loop.call(lambda: serving.core.submit(InferRequest(Asked("m", {"x": Tensor.of(array)}), answers)))
    assert answers.value == 10.0
    assert answers.thread != loop.thread.ident


def test_long_strings_are_sent_by_a_thread(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    answers = Located()
    text = np.array([b"x" * (1 << 20)], np.object_)  # One element, which has to be copied all the same.
    request = InferRequest(Asked("m", {"x": Tensor.of(np.array([10.0], np.float32)), "s": Tensor.of(text)}), answers)
    loop.call(lambda: serving.scheduler.submit(request))
    assert answers.value == 10.0
    assert answers.thread != loop.thread.ident


def test_what_a_model_logs_or_counts_while_it_executes_is_heard_before_its_answer(
    serve: Serve, new_loop: NewLoop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "repoagent.models")
    serving, loop = serve(), new_loop()
    for _ in range(5):
        caplog.clear()
        assert ask(serving, loop, 6.0)[1][0].value == 6.0
        assert [record.getMessage() for record in caplog.records if record.name == "repoagent.models"] == ["hello"]


def test_two_loops_share_a_process(serve: Serve, new_loop: NewLoop) -> None:
    serving, loops = serve(), [new_loop(), new_loop()]
    for value in range(10, 30):
        loop = loops[value % 2]
        _, answers = ask(serving, loop, float(value))
        assert answers[0].value == value
        assert on_loop(loop, answers)
    groups = [ask(serving, loops[number % 2], *[10.0 + number] * 5)[1] for number in range(40)]
    assert [answer.value for answers in groups for answer in answers] == [10.0 + n for n in range(40) for _ in range(5)]


def test_loops_and_threads_share_a_process_and_everything_is_answered(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(TWO), new_loop()
    seen: list[float] = []

    def call(value: float) -> None:
        for _ in range(30):
            response = serving.core.infer(serving.request(value))
            seen.append(float(response.outputs["y"].array[0]))

    def submit(value: float) -> None:
        for _ in range(30):
            _, answers = serving.submit(value)
            seen.append(answers.value)

    threads = [threading.Thread(target=work, args=(10.0 + n,)) for n, work in enumerate((call, submit, call, submit))]
    for thread in threads:
        thread.start()
    groups = [ask(serving, loop, *[20.0] * 5)[1] for _ in range(40)]
    for thread in threads:
        thread.join(60)
    assert [answer.value for answers in groups for answer in answers] == [20.0] * 200
    assert sorted(seen) == [10.0 + n for n in range(4) for _ in range(30)]
    assert serving.scheduler.waiting == 0


def test_after_a_thread_had_the_process_the_loop_has_it_again(serve_steadily: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve_steadily(), new_loop()
    with serving.held():
        _, waited = ask(serving, loop, *[10.0] * 40)
    assert [answer.value for answer in waited] == [10.0] * 40
    assert not on_loop(loop, waited[:1])
    assert any(answer.thread == loop.thread.ident for answer in waited)


def test_a_loop_that_ends_leaves_its_requests_to_a_thread(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    with stopped(serving):
        _, first = ask(serving, loop, 10.0)
        _, behind = ask(serving, loop, 11.0, 12.0)
        loop.stop()
    assert [answer.value for answer in first + behind] == [10.0, 11.0, 12.0]
    assert serving.submit(13.0)[1].value == 13.0


def test_an_unload_waits_for_what_was_handed_over_and_finalizes(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    _, answers = ask(serving, loop, 4.0, 10.0, 11.0)
    serving.core.unload("m")
    assert [answer.value for answer in answers] == [4.0, 10.0, 11.0]
    assert serving.finalized.exists()


def test_an_error_is_that_of_one_request(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    _, answers = ask(serving, loop, 10.0, 3.0, 11.0)
    assert [answers[0].value, answers[2].value] == [10.0, 11.0]
    with pytest.raises(InternalError, match="no luck"):
        _ = answers[1].value


def test_a_request_that_cannot_be_written_fails_alone(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    with stopped(serving):
        _, first = ask(serving, loop, 10.0)
        _, bad = ask(serving, loop, 11.0, parameters={"thing": object()})
        _, last = ask(serving, loop, 12.0)
    with pytest.raises(InternalError, match="parameter 'thing' has a value of type object"):
        _ = bad[0].value
    assert [first[0].value, last[0].value] == [10.0, 12.0]
    _, bad = ask(serving, loop, 11.0, parameters={"thing": object()})
    with pytest.raises(InternalError, match="parameter 'thing' has a value of type object"):
        _ = bad[0].value


def test_nothing_is_left_open_when_processes_end(
    serve: Serve, new_loop: NewLoop, nothing_left: Callable[[], AbstractContextManager[None]]
) -> None:
    loop = new_loop()
    serving = serve()
    with nothing_left():
        for _ in range(3):
            assert ask(serving, loop, 10.0)[1][0].value == 10.0
            serving.core.unload("m")
            serving.core.load("m")
        serving.core.unload("m")


def test_a_loop_of_somebody_else_s_is_left_alone(serve: Serve, new_loop: NewLoop) -> None:
    serving, loop = serve(), new_loop()
    loop.call(lambda: loop.reader.__exit__())
    _, answers = ask(serving, loop, 10.0, 11.0)
    assert [answer.value for answer in answers] == [10.0, 11.0]
    assert not on_loop(loop, answers)
