import threading

import pytest

from repoagent.errors import UnavailableError
from repoagent.serving.lifecycle.repository_follower import Poller


def _poll_twice(error: Exception) -> None:
    polls = threading.Semaphore(0)

    def poll() -> None:
        polls.release()
        raise error

    poller = Poller(poll, 0.001)
    poller.start()
    assert polls.acquire(timeout=60)
    assert polls.acquire(timeout=60)
    poller.end()
    poller.wait(60)


def test_it_goes_on_after_a_poll_that_raised(caplog: pytest.LogCaptureFixture) -> None:
    _poll_twice(OSError("the disk is away"))
    assert "the disk is away" in caplog.text


def test_one_that_was_never_started_can_be_stopped() -> None:
    poller = Poller(lambda: None, 1)
    poller.end()
    poller.wait(0)


def test_a_repository_that_does_not_answer_is_told_of_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    _poll_twice(UnavailableError("the bucket is away"))
    assert caplog.records[0].getMessage() == "polling the model repositories failed: the bucket is away"
    assert caplog.records[0].exc_info is None
