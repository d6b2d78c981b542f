"""Two agents share one read only where both keep their promises."""

import hashlib
from pathlib import Path

import pytest

from repoagent.api import Agent, AgentModel
from repoagent.errors import InternalError
from repoagent.testing import AgentHarness, Outcome, write_files

NAME = "1/model.bin"
WANTED = {NAME: ("sha256",)}


class Guard(Agent):
    api_version = 1
    guard = True
    judges_digests = True

    def __init__(self, *asks: str) -> None:
        self.asks = asks
        self.seen: list[Path] = []

    def load(self, model: AgentModel) -> None:
        for ask in self.asks:
            if ask == "digests":
                assert model.digests(WANTED)[NAME]["sha256"] == hashlib.sha256(b"good").hexdigest()
            else:
                model.isolate()
            self.seen.append(model.localize().resolve())


class Reader(Agent):
    api_version = 1
    reads_once = True

    def __init__(self, *, states: bool = True, moves: bool = True) -> None:
        self.states = states
        self.moves = moves
        self.seen: list[Path] = []

    def load(self, model: AgentModel) -> None:
        self.seen.append(model.localize().resolve())
        target = model.acquire_location()
        data = (model.localize() / NAME).read_bytes()
        write_files(target, {NAME: data, "config.pbtxt": (model.localize() / "config.pbtxt").read_bytes()})
        if self.states:
            digests = {name: hashlib.new(name, data).hexdigest() for name in model.read_digests_wanted}
            model.keep_read_digests(NAME, digests)
        if self.moves:
            model.update_location(target)


def run(tmp_path: Path, guard: Agent, reader: Agent) -> Outcome:
    model = write_files(tmp_path / "m", {NAME: b"good"})
    config = 'name: "m"\nmodel_repository_agents { agents [ { name: "guard" }, { name: "reader" } ] }\n'
    (model / "config.pbtxt").write_text(config)
    with AgentHarness(tmp_path / "harness", {"guard": guard, "reader": reader}) as harness:
        return harness.run(model)


def test_the_reader_works_while_the_guard_asks(tmp_path: Path) -> None:
    guard, reader = Guard("digests", "digests"), Reader()
    outcome = run(tmp_path, guard, reader)
    assert outcome.error is None
    assert guard.seen[0] == reader.seen[0] == tmp_path / "m"
    order = [call for call in outcome.passed if call in ("guard LOAD", "guard digests", "reader LOAD")]
    assert order[:3] == ["guard LOAD", "guard digests", "reader LOAD"], outcome.passed


def test_a_guard_that_asks_again_once_the_model_is_loaded_is_given_what_is_there_now(tmp_path: Path) -> None:
    class Late(Guard):
        def load_complete(self, model: AgentModel) -> None:
            self.load(model)

    guard = Late("digests")
    outcome = run(tmp_path, guard, Reader())
    assert outcome.error is None
    assert guard.seen == [tmp_path / "m"] * 2
    (complete,) = [one for one in outcome.report.entries[0].actions if one.action == "LOAD_COMPLETE"]
    assert (complete.outcome, complete.bytes_read) == ("ok", len(b"good"))


def test_a_guard_may_have_a_private_copy_after_all(tmp_path: Path) -> None:
    guard, reader = Guard("isolate", "digests"), Reader()
    assert run(tmp_path, guard, reader).error is None
    assert guard.seen[0] == guard.seen[1] == reader.seen[0] != tmp_path / "m"


def test_a_private_copy_is_too_late_when_the_files_were_read(tmp_path: Path) -> None:
    assert "has read the files already" in str(run(tmp_path, Guard("digests", "isolate"), Reader()).error)


def test_a_guard_that_asked_for_nothing_has_judged_nothing(tmp_path: Path) -> None:
    outcome = run(tmp_path, Guard(), Reader())
    assert isinstance(outcome.error, InternalError)
    assert "without asking for their digests" in str(outcome.error)


def test_a_file_whose_reading_was_not_stated_is_refused(tmp_path: Path) -> None:
    outcome = run(tmp_path, Guard("digests"), Reader(states=False))
    assert "was not read with the other files" in str(outcome.error)


def test_what_was_judged_may_not_stay_where_others_write(tmp_path: Path) -> None:
    outcome = run(tmp_path, Guard("digests"), Reader(moves=False))
    assert isinstance(outcome.error, InternalError)
    assert "made no location of its own" in str(outcome.error)


@pytest.mark.parametrize("promise", ["guard", "judges_digests", "reads_once"])
def test_without_a_promise_the_guard_is_given_a_copy(
    promise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, reader = Guard("digests"), Reader()
    monkeypatch.setattr(Reader if promise == "reads_once" else Guard, promise, False)
    assert run(tmp_path, guard, reader).error is None
    assert (guard.seen[0] == reader.seen[0] == tmp_path / "m") is (promise == "guard")
