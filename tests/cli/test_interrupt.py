import os
import signal
from collections.abc import Iterator

import pytest

from repoagent.cli.interrupt import interrupt_flag


@pytest.fixture(autouse=True)
def _handler_of_the_tests() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_interrupt_counts_from_the_moment_that_the_message_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def write(_: int, text: bytes) -> int:
        written.append(text)
        signal.raise_signal(signal.SIGINT)
        return len(text)

    monkeypatch.setattr(os, "write", write)
    flag = interrupt_flag()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert flag.is_set()
    assert len(written) == 1
