import threading

import pytest

from repoagent.serving.poller import Poller


def test_it_goes_on_after_a_poll_that_raised(caplog: pytest.LogCaptureFixture) -> None:
    polls = threading.Semaphore(0)

    def poll() -> None:
        polls.release()
        raise OSError("the disk is away")

    poller = Poller(poll, 0.001)
    poller.start()
    assert polls.acquire(timeout=60)
    assert polls.acquire(timeout=60)
    poller.stop(10)
    assert "the disk is away" in caplog.text


def test_one_that_was_never_started_can_be_stopped() -> None:
    Poller(lambda: None, 1).stop(0)
