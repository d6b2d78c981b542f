"""A model's process answers requests before it gets them, and reads none: what it is sent piles up.

Its requests may fail. The event loop that sends them, which serves everybody, must not wait for it.
"""

import gc
import os
from pathlib import Path

import pytest

from repoagent.serving.scheduling.ahead import AheadScheduler
from tests.hostile.conftest import NewCore
from tests.hostile.fake_child import Answers, answering_loop, request, write_child

REQUESTS = 500
MODEL = f"""
def lie(number):
    for number in range(number, number + {REQUESTS}):
        packet(WORK, 5, [0, [[number, True, [None, "m", "1", {{}}, []]]], [[number, 1, 2]], True])
class TritonPythonModel:
    def execute(self, requests):
        threading.Thread(target=lie, args=(newest(),), daemon=True).start()
        time.sleep(10**6)
"""


@pytest.mark.slow
def test_the_loop_that_sends_waits_for_nothing_and_every_request_is_answered_once(
    new_core: NewCore, repository: Path
) -> None:
    write_child(repository, MODEL)
    gc.collect()
    core = new_core()
    core.load("m")
    (scheduler,) = [entry for entry in gc.get_objects() if type(entry) is AheadScheduler and not entry._closed]
    child = scheduler._instances[0]._inner.child  # type: ignore[attr-defined]
    senders = [Answers() for _ in range(REQUESTS)]
    turns = 0
    with answering_loop() as loop:
        for sender in senders:  # One after the other, so that each is a packet of its own.
            loop.submit(core, request(*[0.0] * 2000, sender=sender))
            turns += 1
            while not (sender.complete.wait(0.01) or child.work.backlogged):
                pass
            if child.work.backlogged:
                break
        assert 10 < turns < REQUESTS
        loop.assert_goes_on()
        os.kill(child.pid, 9)
        for sender in senders[:turns]:
            assert sender.complete.wait(60)
    assert [sender.finals for sender in senders[:turns]] == [1] * turns
    assert all("is not healthy" in error for sender in senders for error in sender.errors)
