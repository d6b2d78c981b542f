"""Models' processes that take their time to end, or whose end the server cannot log."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from repoagent.errors import RepoAgentError
from tests.hostile.conftest import NewCore
from tests.hostile.fake_child import ECHO, output, request, write_child, write_echo

HANGS = "print('a line that no one can log'); threading.Event().wait()"
# It ends when all of them do so, or not at all.
TOGETHER = """
    def finalize(self):
        open(os.path.join(PLACE, str(os.getpid())), "w").close()
        while len(os.listdir(PLACE)) < 3:
            time.sleep(0.01)
"""
INSTANCES = " instance_group { count: 3 kind: KIND_CPU }"
SCHEDULERS = {
    "one by one": "",
    "in batches": "max_batch_size: 4 dynamic_batching {}",
    "sequences": "max_batch_size: 4 sequence_batching { direct {} }",
}


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_all_processes_of_a_model_end_at_the_same_time(
    new_core: NewCore, repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, scheduler: str
) -> None:
    place = tmp_path / "finalized"
    place.mkdir()
    model = ECHO.replace("BEHAVIOUR", HANGS) + TOGETHER.replace("PLACE", repr(str(place)))
    write_child(repository, model, SCHEDULERS[scheduler] + INSTANCES)
    core = new_core(backend_config={"python": {"stub-timeout-seconds": "30"}})
    core.load("m")
    core.unload("m")
    assert len(list(place.iterdir())) == 3
    assert "and is killed" not in caplog.text


class Broken(logging.Filter):
    """What an operator may have added to the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "no one can log" in record.getMessage() or "unhealthy and it will be" in record.getMessage():
            raise OSError("the disk of the log is full")
        return True


@pytest.fixture
def broken_log() -> Iterator[None]:
    logger, broken = logging.getLogger("repoagent.models"), Broken()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addFilter(broken)
    yield
    logger.removeFilter(broken)
    logger.setLevel(level)


@pytest.mark.slow
@pytest.mark.usefixtures("broken_log")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_waits_for_a_process_that_cannot_be_looked_after_hears_of_its_end(
    new_core: NewCore, repository: Path
) -> None:
    write_echo(repository, HANGS)
    core = new_core()
    core.load("m")
    before = len(os.listdir("/proc/self/fd"))
    for value in (1.0, 2.0):  # The first ends the process; no other one is started, as that cannot be logged either.
        with pytest.raises(RepoAgentError, match="is not healthy"):
            core.infer(request(value))
    assert len(os.listdir("/proc/self/fd")) <= before
    core.load("m")
    assert output(core, 2.0) == [2.0]
