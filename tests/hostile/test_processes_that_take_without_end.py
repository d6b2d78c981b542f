"""A model's process takes of the server what it can get: memory, descriptors, threads, loggers, metrics.

It may be refused, or killed and started again. The server keeps to its limits, and serves others.
"""

import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from repoagent.errors import InternalError, RepoAgentError
from repoagent.limits import Limits
from repoagent.serving.backends.python.process.child_process import ChildProcess
from repoagent.serving.core import ServingCore
from repoagent.serving.measuring.custom_metrics import REGISTRY
from repoagent.serving.requests.request import InferResponse
from tests.hostile.conftest import NewCore
from tests.hostile.fake_child import CONFIG, ECHO, output, request, write_child

pytestmark = pytest.mark.usefixtures("forked_models")
MODEL = """
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
def ask(*question):
    try:
        return CORE.ask(*question)
    except Exception as error:
        return str(error)
def send_long_messages():
    for entry in gc.get_objects():
        if type(entry).__name__ == "Channel":
            entry._longest_sent = 10**9
class Anything(dict):
    "Questions that no one asked have an answer, too."
    def pop(self, number, *default):
        return super().pop(number, None) or queue.SimpleQueue()
def call(count):
    errors = []
    class Sender:
        def send(self, response, final):
            if response is not None and response.error is not None:
                errors.append(str(response.error))
    for _ in range(count):
        CORE.submit(InferRequest(Asked("slow", {"x": Tensor.of(np.zeros(1, np.float32))}), Sender()))
    return errors
"""
CORE = "CORE = those_of(RemoteCore)[-1]"
Start = Callable[..., tuple[ServingCore, ChildProcess]]


@pytest.fixture
def start(new_core: NewCore, repository: Path) -> Start:
    """A core with a model that does ``attack`` when it gets a 1, and the model's process."""

    def start(attack: str, **limits: int) -> tuple[ServingCore, ChildProcess]:
        write_child(repository, MODEL + ECHO.replace("BEHAVIOUR", f"global CORE{LINE}{CORE}{LINE}{attack}"))
        core = new_core(limits=Limits(**limits))
        before = processes()
        core.load("m")
        (child,) = [child for child in processes() if child not in before and child.name == "m_0"]
        return core, child

    return start


def processes() -> list[ChildProcess]:
    """Those that this process knows of: also of other tests, and the one that completed the configuration."""
    return [entry for entry in gc.get_objects() if type(entry) is ChildProcess]


def ask(core: ServingCore, *values: float) -> InferResponse:
    return core.infer(request(*values))


def is_killed(core: ServingCore, *values: float) -> None:
    with pytest.raises(InternalError, match="is not healthy"):
        ask(core, *(values or (1.0,)))
    assert output(core, 2.0) == [2.0], "the next process serves"


LINE = "\n" + " " * 12
WAIT = f"{LINE}threading.Event().wait()"
SEGMENTS = {
    "many of them": "for n in range(1, 100): packet(SIDE, 14, None, [[n, 4096]], [sealed_file(4096)])",
    "too many bytes": "for n in range(1, 4): packet(SIDE, 14, None, [[n, 600 << 10]], [sealed_file(600 << 10)])",
}


@pytest.mark.slow
@pytest.mark.parametrize("attack", SEGMENTS)
def test_memory_beyond_the_limits_is_not_mapped(start: Start, caplog: pytest.LogCaptureFixture, attack: str) -> None:
    core, child = start(SEGMENTS[attack] + WAIT, python_segments=20, python_shared_bytes=1 << 20)
    is_killed(core)
    assert "more than 20 segments or 1048576 bytes of shared memory are in use" in caplog.text
    assert child.mapping._mapped <= 21
    assert child.mapping._mapped_bytes <= 2 << 20


@pytest.mark.slow
def test_memory_that_no_one_has_reserved_is_not_mapped(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """To map it would fill it: a process could have the server take what it never had itself."""
    attack = (
        "fd = os.memfd_create('x', os.MFD_ALLOW_SEALING); os.ftruncate(fd, 64 << 20); "
        "fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS); packet(SIDE, 14, None, [[1, 64 << 20]], [fd])"
    )
    core, child = start(attack + WAIT)
    is_killed(core)
    assert "has holes" in caplog.text
    assert not child.mapping._mapped


@pytest.mark.slow
def test_memory_that_is_dropped_counts_as_long_as_it_is_mapped(start: Start) -> None:
    """A response keeps it: whoever holds that keeps the process from sharing more."""
    core, child = start("pass")
    mapping = child.mapping
    responses = [core.infer(request(*[2.0] * 10_000))]
    (number,) = mapping._maps
    mapping.forget(number)
    assert (len(mapping._maps), mapping._mapped - len(mapping._unmapped)) == (0, 1)
    responses.clear()
    gc.collect()
    assert mapping._mapped - len(mapping._unmapped) == 0


@pytest.mark.slow
def test_a_sound_process_that_needs_more_memory_gets_an_error_and_lives_on(start: Start) -> None:
    core, child = start("values = [np.zeros(1 << 20, np.float32)]", python_shared_bytes=4 << 20, python_segments=20)
    with pytest.raises(RepoAgentError, match=r"cannot be handed over: .*--limit-python-shared-bytes"):
        ask(core, 1.0)
    assert output(core, 2.0) == [2.0]
    with pytest.raises(RepoAgentError, match=r"inputs of 'm_0' cannot be handed over: .*--limit-python-segments"):
        core.infer(request(*[2.0] * (2 << 20)))
    assert not child.exited.is_set()


@pytest.mark.slow
def test_a_long_message_is_an_error_of_a_sound_process_and_the_end_of_another_one(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    core, child = start(
        "parameters = {'p': 'x' * 200_000}; len(x) > 1 and send_long_messages()", python_message_bytes=100_000
    )
    with pytest.raises(RepoAgentError, match=r"cannot be handed over: .*--limit-python-message-bytes"):
        ask(core, 1.0)
    assert not child.exited.is_set()
    is_killed(core, 1.0, 1.0)
    assert "longer than 100000 (--limit-python-message-bytes)" in caplog.text


@pytest.mark.slow
def test_answers_that_are_not_read_do_not_pile_up(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    attack = [
        "CORE._take = lambda _: threading.Event().wait()",
        "for n in range(10**9, 10**9 + 10**6): packet(SIDE, 10, [n, 'heard', []])",
    ]
    core, child = start(LINE.join(attack) + WAIT, python_unread_bytes=1 << 20)
    is_killed(core)
    assert "leaves too many answers unread (--limit-python-unread-bytes)" in caplog.text
    assert child.side._unread <= 1 << 20


SLOW = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def is_ready(self):
        with open({pipe!r}, "rb", buffering=0) as pipe:
            pipe.read(1)
        return True
    def execute(self, requests):
        self.is_ready()
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


@pytest.fixture
def let_go(repository: Path, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Adds the model "slow" in the server's process. Whether it is ready, and its answers, come when this is called.

    Ask for it before the core, which then ends first: what is in the pipe goes with the last descriptor.
    """
    pipe, directory = tmp_path / "pipe", repository / "slow" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(SLOW.format(pipe=str(pipe)))
    (directory.parent / "config.pbtxt").write_text(CONFIG.replace('"process"', '"in-process"'))
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)

    def let_go() -> None:
        os.write(held, bytes(1000))

    yield let_go
    os.close(held)


@pytest.mark.slow
def test_questions_that_take_long_do_not_take_a_thread_each(let_go: Callable[[], None], start: Start) -> None:
    attack = [
        "CORE._questions = Anything(CORE._questions)",
        "for n in range(10**9, 10**9 + 200): packet(SIDE, 10, [n, 'model_ready', ['slow', '']])",
        "parameters = {'answer': ask('model_ready', ['slow', ''])}",
    ]
    core, child = start(LINE.join(attack), python_threads=4, python_calls=100)
    core.load("slow")
    before = set(threading.enumerate())
    answer = str(ask(core, 1.0).parameters["answer"])
    added = [thread.name for thread in threading.enumerate() if thread not in before]
    let_go()
    assert "waits for 100 loads, unloads and answers about models already (--limit-python-calls)" in answer
    assert len(added) < 15, added
    assert not child.exited.is_set()


@pytest.mark.slow
def test_requests_to_other_models_are_counted(let_go: Callable[[], None], start: Start) -> None:
    attack = "errors = call(50); ask('heard', []); parameters = {'errors': len(errors), 'first': errors[0]}"
    core, child = start(attack, python_calls=10)
    core.load("slow")
    parameters = ask(core, 1.0).parameters
    let_go()
    assert parameters["errors"] == 40
    assert "waits for 10 answers of other models already (--limit-python-calls)" in str(parameters["first"])
    assert not child.exited.is_set()


@pytest.mark.slow
def test_names_and_levels_of_loggers_are_neither_kept_nor_those_of_others(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    names = "['repoagent.audit.log', 'root', '', 'a\\ud800', 'x' * 9000, *(f'name{n}' for n in range(500))]"
    attack = (
        f"[packet(SIDE, 12, [name, 40 + 10**6 * (n % 9) + n, 'f.py', 10**4000, 'text \\ud800' * (n < 6)])"
        f" for n, name in enumerate({names})]; ask('heard', [])"
    )
    core, child = start(attack)
    before = set(logging.root.manager.loggerDict)
    with caplog.at_level(logging.INFO):
        ask(core, 1.0)
    assert not child.exited.is_set()
    assert set(logging.root.manager.loggerDict) == before
    assert len(logging.getLogger("repoagent.models")._cache) < 60  # type: ignore[attr-defined]
    records = [record for record in caplog.records if record.filename == "f.py"]
    assert len(records) == 505
    assert all(record.name.startswith("repoagent.models.") and len(record.name) < 300 for record in records)
    assert all(record.getMessage().startswith("model 'm', ") for record in records)
    assert all(record.getMessage().encode() for record in records), "any file can hold them"


@pytest.mark.slow
@pytest.mark.parametrize(
    "record", ["[]", "5", "[1, 40, '', 1, '']", "['x', 40, '', True, '']", "['x', '4', '', 1, '']"]
)
def test_a_log_record_that_is_not_one_is_the_end_of_its_process(start: Start, record: str) -> None:
    core, _ = start(f"packet(SIDE, 12, {record}); ask('heard', [])" + WAIT)
    is_killed(core)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["unloaded", "killed"])
def test_metrics_are_limited_and_go_with_their_process(start: Start, end: str) -> None:
    attack = LINE.join(
        [
            "families = [ask('metric_family', [f'taken_{n}', 'd', n % 2]) for n in range(30)]",
            "again = [ask('metric_family', [f'taken_{n}', 'd', n % 2]) for n in range(30)]",
            "series = [ask('metric', [families[0], {'a': str(n)}, []]) for n in range(30)]",
            "histogram = ask('metric', [families[0], {'a': 'b'}, list(range(1000))])",
            "long = ask('metric_family', ['x' * 10**5, 'd', 0])",
            "parameters = {'n': sum(isinstance(s, int) for s in series), 'same': families == again, 'e': series[-1]}",
        ]
    )
    core, child = start(attack, python_series=50)
    before = REGISTRY.text().count("taken")
    parameters = ask(core, 1.0).parameters
    assert (parameters["n"], parameters["same"]) == (20, True)
    assert "reports to at most 50 metrics" in str(parameters["e"])
    assert REGISTRY.text().count("taken_0{") == 20
    if end == "killed":
        os.kill(child.pid, 9)
        child.wait_handled(10**9)
        ask(core, 2.0)  # Its successor serves, after all of it has gone.
    else:
        core.unload("m")
    assert REGISTRY.text().count("taken") == before == 0
    assert not [name for name in REGISTRY._families if name.startswith("taken")]
