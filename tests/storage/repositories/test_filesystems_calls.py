import threading

import pytest

from repoagent.errors import UnavailableError
from repoagent.storage.repositories.filesystems import RemoteCalls


def test_a_machine_without_a_thread_is_no_stalled_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls = RemoteCalls("s3://models", 60)
    with monkeypatch.context() as machine:
        machine.setattr(threading.Thread, "start", full)
        with pytest.raises(UnavailableError, match="s3://models cannot be asked: can't start new thread"):
            calls.run(lambda: 1, limited=True)
    assert calls.run(lambda: 2, limited=True) == 2
