"""The log reports that the server is not ready any more once that is so."""

import logging
import os
import signal
import threading
from pathlib import Path

import pytest
from repoagent_server.program import program
from repoagent_server.program.options import ServeOptions
from repoagent_server.program.program import core_options
from repoagent_server.program.signals import stop_signals

from repoagent.serving.core import ServingCore


class _Ready(logging.Handler):
    """Whether a core is ready in the moment in which it is logged that it is not."""

    def __init__(self, core: ServingCore) -> None:
        super().__init__()
        self._core = core
        self.seen: list[bool] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("Not ready any more"):
            self.seen.append(self._core.ready())


def test_who_reads_that_the_server_is_not_ready_finds_it_so(
    tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "models").mkdir()
    file = tmp_path / "ready"
    options = ServeOptions(model_repository=(str(tmp_path / "models"),), drain_delay=1, ready_file=file)
    core = ServingCore(core_options(options))
    request.addfinalizer(core.stop)
    ready = _Ready(core)
    caplog.set_level(logging.INFO, program.logger.name)
    program.logger.addHandler(ready)
    request.addfinalizer(lambda: program.logger.removeHandler(ready))

    def stop_when_started() -> None:
        while not file.exists():
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_when_started, daemon=True)
    thread.start()
    with stop_signals() as stop:
        assert program._serve(options, core, {}, stop) == 0
    thread.join()
    assert ready.seen == [False]
