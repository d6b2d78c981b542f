"""Replacement of workers where something goes wrong meanwhile. The processes are no processes."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, cast

import pytest
from repoagent_server.processes import fleet, versions
from repoagent_server.processes.calls import Ended
from repoagent_server.processes.fleet import Fleet
from repoagent_server.processes.roster import LEAVING
from repoagent_server.processes.versions import Handed

from repoagent.errors import CancelledError, InternalError, RepoAgentError, UnavailableError


class Calls:
    def __init__(self, answers: Mapping[str, Callable[..., Any]]) -> None:
        self._answers = answers
        self.made: list[str] = []
        self.silent = ""
        """The call that has no answer."""
        self.over = False

    def call(self, name: str, *arguments: Any, timeout: float | None = None) -> Any:
        if name == self.silent:
            assert timeout is not None, f"'{name}' would be waited for without end"
            raise Ended(f"it has not answered '{name}'")
        self.made.append(name)
        return self._answers[name](*arguments) if name in self._answers else None

    def begin(self, name: str, *arguments: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        if self.over:
            future.set_exception(Ended("it has ended"))
            return future
        if name == self.silent:
            return future
        try:
            future.set_result(self.call(name, *arguments))
        except RepoAgentError as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """There is no process."""


class Place:
    """In the place of a process; ``script`` has what it answers."""

    def __init__(self, index: int, script: Mapping[str, Callable[..., Any]]) -> None:
        self.index = index
        self.calls: Calls | None = None
        self.serves = False
        self.ended = self
        self.silent = ""
        self.links: list[int] = []
        self.may: Mapping[str, Callable[..., Any]] = {}
        self.killed = False
        self.script = script

    def launch(self, _options: str, answers: Mapping[str, Callable[..., Any]], _on_end: object) -> "Future[Any]":
        self.may, self.calls = answers, Calls(self.script)
        self.calls.silent = self.silent
        return self.calls.begin("start")

    def link(self, other: "Place") -> None:
        self.links.append(other.index)
        other.links.append(self.index)

    def kill(self) -> None:
        """The fleet sees the end a moment later."""
        self.killed = True
        if self.calls is not None:
            self.calls.over = True

    def wait(self, _seconds: float) -> bool:
        """Of its end: the fleet has seen it."""
        if self.killed:
            self.calls, self.serves = None, False
        return True


class Fixture:
    """Two workers that serve; ``script`` is what those answer that are started later."""

    def __init__(self) -> None:
        self.agents = True
        self.lacked: list[tuple[str, bool]] = []
        self.script: dict[str, Callable[..., Any]] = {"leave": self.leave}
        self.fleet = Fleet(
            2,
            "",
            None,
            {},
            lambda _, worker: {"number": worker},
            on_missing=self.missing,
            deadliest=3,
        )
        self.new: list[Place] = []
        self.workers = [Place(index, self.script) for index in range(2)]
        fleet = cast(Any, self.fleet)
        fleet._workers = list(self.workers)
        fleet._make_worker = self._make
        fleet.start()
        fleet.open()

    def _make(self, index: int) -> Place:
        self.new.append(Place(index, self.script))
        return self.new[-1]

    @property
    def now(self) -> list[Place]:
        """The workers that the fleet has."""
        return cast(Any, self.fleet._workers)  # type: ignore[no-any-return]

    def missing(self, handed: Handed, _why: str) -> None:
        """What the keeper does: it has the model loaded again."""
        self.lacked.append((handed.model, self.now[0] in self.new))
        if self.agents:
            self.fleet.retire(handed)

    def leave(self, _seconds: float) -> None:
        """What the end of a process that leaves has the fleet do."""
        self.fleet._workers.pop()

    def hand(self, number: int, home: int | None = None) -> Handed:
        handed = Handed(number, f"m{number}", 1, b"", "", fleeting=False, home=home)
        self.fleet._handed[number] = handed
        return handed


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def test_a_worker_that_hangs_is_ended_and_the_others_are_not(fixture: Fixture) -> None:
    hangs, works = fixture.workers
    cast(Any, hangs.calls).begin = lambda *_: Future()
    fixture.fleet.watch(0.01)
    assert (hangs.killed, works.killed) == (True, False)
    assert cast(Any, works.calls).made[-1] == "turn"


def _hang(worker: Place, question: str) -> None:
    """Have ``worker`` answer all but one question."""
    assert worker.calls is not None
    worker.calls.silent = question


def test_who_takes_the_place_of_a_worker_that_was_silent_is_not_ended_for_it(fixture: Fixture) -> None:
    silent, new = fixture.workers
    new.serves = False
    for index in (silent.index, new.index):
        fixture.fleet.end(index)
    assert (silent.killed, new.killed) == (True, False)


def test_a_load_goes_on_without_a_worker_that_ended_as_it_began(fixture: Fixture) -> None:
    """It is one of those that are there until its end is seen."""
    gone, _ = fixture.workers
    gone.kill()
    fixture.script["build"] = lambda *_: {"config": "", "keeps_files": False}
    fixture.fleet.prepare(calls=False)
    fixture.fleet.build("m", 1, b"", "", fleeting=False, cancelled=lambda: False)


@pytest.mark.parametrize("calls", [True, False])
def test_a_load_goes_on_without_a_worker_that_was_ended_as_it_began(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, calls: bool
) -> None:
    """It failed: the worker that had just been killed counted as one that died of the model."""
    monkeypatch.setattr(versions, "STEP_SECONDS", 0.01)
    hangs, works = fixture.workers
    _hang(hangs, "let_call" if calls else "running")
    fixture.script |= {"build": lambda *_: {"config": "", "keeps_files": False}, "running": lambda _: 0}
    fixture.fleet.prepare(calls=calls)
    fixture.fleet.build("m", 1, b"", "", fleeting=False, cancelled=lambda: False)
    assert (hangs.killed, works.killed) == (True, False)


def test_a_load_goes_on_without_a_worker_that_does_not_pass_on_its_requests(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed, and waited another 300 seconds for that worker to let go of the version."""
    monkeypatch.setattr(versions, "STEP_SECONDS", 0.01)
    home, hangs = fixture.workers
    _hang(hangs, "pass_on")
    handed = fixture.hand(1, home=home.index)
    fixture.fleet.settle(handed, b"")
    assert (home.killed, hangs.killed) == (False, True)
    assert fixture.fleet._handed == {1: handed}
    fixture.fleet.settle(fixture.hand(2, home=home.index), b"")


def test_who_takes_the_place_of_a_worker_that_did_not_answer_is_not_ended_by_others_who_waited(
    fixture: Fixture,
) -> None:
    """Loads that wait side by side all find out."""
    silent, _ = fixture.workers
    before = silent.calls
    silent.launch("", {}, None)
    fixture.fleet._give_up(cast(Any, silent), cast(Any, before))
    assert not silent.killed


def test_a_worker_that_does_not_let_go_of_a_version_is_ended(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_SLOWEST_SECONDS", 0.01)
    hangs, works = fixture.workers
    _hang(hangs, "close")
    fixture.fleet.close_version(fixture.hand(1))
    assert (hangs.killed, works.killed) == (True, False)
    assert not fixture.fleet._handed


@pytest.mark.parametrize("hanging", [1, 2])
def test_workers_that_do_not_end_a_cancelled_load_are_replaced_one_after_the_other(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, hanging: int
) -> None:
    """All were killed at once: a model that hung in each of them cut off the requests of all others."""
    monkeypatch.setattr(versions, "_SLOWEST_SECONDS", 0.01)
    left = threading.Semaphore(0)
    serving: list[int] = []

    def leave(seconds: float) -> None:
        serving.append(len(fixture.fleet.serving()))
        fixture.leave(seconds)
        left.release()

    fixture.script["leave"] = leave
    for worker in fixture.workers[:hanging]:
        _hang(worker, "build")
    with pytest.raises(CancelledError):
        fixture.fleet.build("m", 1, b"", "", fleeting=False, cancelled=lambda: True)
    for _ in range(hanging):
        assert left.acquire(timeout=60)
    assert not any(worker.killed for worker in fixture.workers)
    assert fixture.now[:hanging] == fixture.new
    assert fixture.now[hanging:] == fixture.workers[hanging:]
    assert serving == [3] * hanging  # the new one, the one that leaves, and the other
    assert not fixture.fleet._handed


@pytest.mark.parametrize("silent", [True, False])
def test_workers_that_do_not_take_a_certificate_are_replaced_one_after_the_other(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, silent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One that has no descriptor left for it, say, keeps the connections that it has."""
    monkeypatch.setattr(versions, "STEP_SECONDS", 0.01)
    left = threading.Semaphore(0)

    def leave(seconds: float) -> None:
        fixture.leave(seconds)
        left.release()

    def refuse(*_: Any) -> None:
        raise UnavailableError("no descriptor is left")

    for worker in fixture.workers:
        worker.script = {"leave": leave, "certificate": refuse}
        worker.calls = Calls(worker.script)
        if silent:
            _hang(worker, "certificate")
    fixture.fleet.have_or_replace("certificate", "HTTP", [])
    for _ in fixture.workers:
        assert left.acquire(timeout=60)
    assert not any(worker.killed for worker in fixture.workers)
    assert fixture.now == fixture.new
    why = "within 0.01 seconds: it is replaced" if silent else "it is replaced: no descriptor is left"
    assert [why in record.message for record in caplog.records] == [True, True]


def _left(fixture: Fixture) -> threading.Semaphore:
    """Raised when a worker has left."""
    left = threading.Semaphore(0)

    def leave(seconds: float) -> None:
        fixture.leave(seconds)
        left.release()

    fixture.script["leave"] = leave
    return left


def test_a_worker_that_does_not_build_what_another_one_has_fails_the_load_and_is_replaced(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The load waited for it until a client cancelled it."""
    monkeypatch.setattr(versions, "_SLOWEST_SECONDS", 0.01)
    fixture.script["build"] = lambda *_: {}
    left = _left(fixture)
    hangs, works = fixture.workers
    _hang(hangs, "build")
    with pytest.raises(UnavailableError, match="worker 0 has not loaded model 'm' in time"):
        fixture.fleet.build("m", 1, b"", "", fleeting=False, cancelled=lambda: False)
    assert left.acquire(timeout=60)
    assert (hangs.killed, works.killed) == (False, False)
    assert "worker 0 does not build what another one has: the load of model 'm', and is replaced" in caplog.text
    assert fixture.now == [*fixture.new, works]
    assert not fixture.fleet._handed


def test_a_worker_that_does_not_answer_what_drains_a_version_is_replaced(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a time for it, it was waited for without end."""
    monkeypatch.setattr(versions, "_SLOWEST_SECONDS", 0.01)
    monkeypatch.setattr(versions, "LAST_SECONDS", 0.01)
    fixture.script["drain"] = lambda *_: True
    left = _left(fixture)
    handed = fixture.hand(1)
    assert fixture.fleet.drain(handed, None)
    _hang(fixture.workers[0], "drain")
    assert not fixture.fleet.drain(handed, None)
    assert left.acquire(timeout=60)
    assert not any(worker.killed for worker in fixture.workers)
    assert "worker 0 does not answer 'drain' within 0.02 seconds: it is replaced" in caplog.text


@pytest.mark.parametrize("question", ["build", "show", "open", "settings"])
def test_a_new_worker_that_is_silent_at_one_step_holds_up_nothing_for_long(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, question: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleet, "STEP_SECONDS", 0.05)
    fixture.fleet.show("m1", {1: fixture.hand(1)})
    fixture.fleet._replay = lambda calls: calls.call("settings")
    make = fixture.fleet._make_worker

    def silent(index: int) -> Any:
        fresh = make(index)
        cast(Any, fresh).silent = question
        return fresh

    cast(Any, fixture.fleet)._make_worker = silent
    fixture.fleet.replace(1)
    assert fixture.now == fixture.workers
    assert "worker 0 is not replaced: it has not answered" in caplog.text
    assert f"'{question}'" in caplog.text


def test_a_version_that_no_worker_describes_is_let_go_of(fixture: Fixture) -> None:
    with pytest.raises(InternalError, match="no description"):
        fixture.fleet.build("m", 1, b"", "", fleeting=False, cancelled=lambda: False)
    assert not fixture.fleet._handed
    assert all(one.calls is not None and one.calls.made[-1] == "close" for one in fixture.workers)


def test_a_worker_that_leaves_is_not_watched_to_its_end(fixture: Fixture) -> None:
    leaving, _ = fixture.workers
    cast(Any, leaving.calls).begin = lambda *_: Future()
    leaving.index = LEAVING
    fixture.fleet.watch(0.01)
    assert not leaving.killed


def test_a_worker_whose_place_was_filled_is_not_started_again(fixture: Fixture) -> None:
    dead = fixture.workers[0]
    dead.calls, dead.serves = None, False  # It waits for its next start: it has died before.
    fixture.fleet.replace(1)
    assert fixture.now == fixture.new
    fixture.fleet._revive(cast(Any, dead), 0.0)
    assert dead.calls is None


def test_where_a_new_worker_fails_at_the_last_step_the_old_one_is_back_in_its_place(fixture: Fixture) -> None:
    def no() -> None:
        raise UnavailableError("no")

    fixture.script["open"] = no
    fixture.fleet.replace(1)
    (fresh,) = fixture.new
    assert fresh.killed
    assert fixture.now == fixture.workers
    assert [one.index for one in fixture.workers] == [0, 1]
    assert fixture.workers[1].links[-1] == 0
    assert "leave" not in cast(Any, fixture.workers[0].calls).made


def test_a_version_that_is_unloaded_meanwhile_does_not_keep_workers_from_being_replaced(fixture: Fixture) -> None:
    gone, kept = fixture.hand(1), fixture.hand(2)

    def build(number: int, *_: Any) -> None:
        if number == gone.number:
            fixture.fleet.close_version(gone)
            raise UnavailableError("its files have gone")

    fixture.script["build"] = build
    fixture.fleet.replace(1)
    assert fixture.now == fixture.new
    assert kept.number in fixture.fleet._handed


def _is_held(fixture: Fixture) -> bool:
    """Whether others would wait for the lock that every question takes."""
    found: list[bool] = []

    def take() -> None:
        found.append(not (taken := fixture.fleet.lock.acquire(blocking=False)))
        if taken:
            fixture.fleet.lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found == [True]


def test_a_worker_that_is_silent_while_something_changes_holds_up_no_question(fixture: Fixture) -> None:
    """The index waited for as long as a worker may be silent: twice 30 seconds."""
    held: list[tuple[str, bool]] = []
    for name in ("expect", "show", "retire", "access", "statistics", "open", "turn"):
        fixture.script[name] = lambda *_, name=name: held.append((name, _is_held(fixture)))
    one = fixture.hand(1)
    fixture.fleet.show("m1", {1: one})
    fixture.fleet.have("access")
    fixture.fleet.ask_all("statistics", timeout=1)
    fixture.fleet.watch(1)
    fixture.fleet._count = 1  # One is enough.
    fixture.fleet.replace(1)
    fixture.fleet.retire(one)
    asked = {name for name, _ in held}
    assert asked == set(fixture.script) - {"leave"}
    assert not [name for name, is_held in held if is_held]


def test_a_worker_that_hangs_when_it_is_to_leave_keeps_no_client(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had the sockets for as long as its clients would have had to go elsewhere."""
    monkeypatch.setattr(fleet, "STEP_SECONDS", 0.01)
    monkeypatch.setattr(fleet, "LAST_SECONDS", 0.01)
    hangs, works = fixture.workers
    _hang(hangs, "turn")
    made = cast(Any, hangs.calls).made
    fixture.fleet._count = 1
    fixture.fleet.replace(60)
    assert (hangs.killed, works.killed) == (True, False)
    assert "leave" not in made


def test_no_worker_that_takes_its_time_with_a_version_holds_up_the_keeper(fixture: Fixture) -> None:
    """One loads in the first round, one is loaded meanwhile, and one is unloaded meanwhile."""
    fixture.hand(1)
    gone = fixture.hand(2)
    held: list[tuple[str, bool]] = []

    def note(name: str) -> None:
        held.append((name, _is_held(fixture)))

    def build(number: int, *_: Any) -> None:
        note(f"build {number}")
        if number == gone.number:
            fixture.fleet._forget(gone)
            fixture.hand(3)

    fixture.script["build"] = build
    fixture.script["close"] = lambda number: note(f"close {number}")
    fixture.fleet._count = 1  # One is enough.
    fixture.fleet.replace(1)
    assert held == [(name, False) for name in ("build 1", "build 2", "close 2", "build 3")]


def test_what_its_home_has_built_meanwhile_is_passed_on_by_the_new_worker(fixture: Fixture) -> None:
    homed = fixture.hand(1, home=1)
    fixture.hand(2)

    def build(_number: int, *_: Any) -> None:
        homed.complete = b""

    passed: list[int] = []
    fixture.script["build"] = build
    fixture.script["pass_on"] = lambda number, *_: passed.append(number)
    fixture.fleet._count = 1  # The other one is the home.
    fixture.fleet.replace(1)
    assert passed == [homed.number]


def test_two_loads_at_once_have_homes_of_their_own(fixture: Fixture) -> None:
    """Each chose a home before the other one's model was known to have one."""
    found: list[int | None] = []

    def load() -> None:
        handed, _ = fixture.fleet.build("m", 1, b"", "", fleeting=False, cancelled=lambda: False, homed=True)
        found.append(handed.home)

    def build(*_: Any) -> dict[str, Any]:
        fixture.script["build"] = lambda *_: {}
        load()  # while the first one is built
        return {}

    fixture.script["build"] = build
    load()
    assert sorted(found, key=str) == [0, 1]


def test_who_leaves_becomes_no_home_and_calls_under_a_number_of_its_own(fixture: Fixture) -> None:
    for number in range(2):
        fixture.hand(number, home=number)
    found: list[Any] = []

    def leave(seconds: float) -> None:
        leaving = cast(Any, fixture.fleet._workers[-1])
        assert leaving in fixture.workers
        found.append((fixture.fleet.choose_home(), leaving.may["number"]()))
        fixture.leave(seconds)

    fixture.script["leave"] = leave
    fixture.fleet.replace(1)
    assert found == [(0, LEAVING)] * 2


@pytest.mark.parametrize("agents", [True, False])
def test_a_wiped_plaintext_is_brought_again_to_the_new_worker(fixture: Fixture, agents: bool) -> None:
    def build(*_: Any) -> None:
        raise UnavailableError("its files have gone")

    handed = fixture.hand(1)
    handed.fleeting = True
    fixture.fleet.show("m1", {1: handed})
    fixture.script["build"], fixture.agents = build, agents
    fixture.fleet.replace(1)
    assert fixture.lacked == [("m1", True)]
    assert fixture.now == (fixture.new if agents else fixture.workers)
    assert handed.missing == agents
    assert [one.index for one in fixture.now] == [0, 1]
