"""Letting loads in until the end."""

import threading

import pytest

from repoagent.errors import UnavailableError
from repoagent.loader.load_counter import LoadCounter


def test_nobody_enters_after_the_end() -> None:
    admission = LoadCounter()
    with admission.enter():
        before = admission.closed
    assert admission.close(0) == 0
    assert (before, admission.closed) == (False, True)
    with pytest.raises(UnavailableError, match="no model can be loaded any more"), admission.enter():
        pytest.fail("was let in")


def test_closing_waits_for_those_inside_and_counts_who_stays() -> None:
    admission = LoadCounter()
    inside, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with admission.enter():
            inside.set()
            assert go_on.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(60)
    assert admission.close(0.01) == 1
    go_on.set()
    assert admission.close(30) == 0
    thread.join(60)


def test_a_load_that_raises_has_left() -> None:
    admission = LoadCounter()
    with pytest.raises(ValueError, match="x"), admission.enter():
        raise ValueError("x")
    assert admission.close(0) == 0
