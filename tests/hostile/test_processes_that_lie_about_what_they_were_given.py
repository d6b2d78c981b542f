"""A model in a process of its own is given several requests at once, and its code lies about what became of them.

A process may fail its own requests. It must not make another one execute a request again and again, answer twice, or
keep the server from answering.
"""

import gc
from contextlib import ExitStack
from pathlib import Path

import pytest

from repoagent.serving.scheduling.ahead import AheadScheduler
from tests.hostile.conftest import NewCore
from tests.hostile.fake_child import Answers, request, write_echo

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
    (instance,) = scheduler._instances
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
