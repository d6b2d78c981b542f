"""T3: a file of a private copy is changed after its digest was computed: whoever asks later is given no old digest."""

import hashlib
import mmap
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from repoagent.api import Agent, AgentModel, RemoteFile
from repoagent.errors import AgentRefusedError, InvalidArgumentError
from repoagent.testing import AgentHarness, write_files
from tests.file_server import FileServer
from tests.hostile.test_one_read_for_two_agents import racing

GOOD, BAD = b"good" * 4096, b"evil" * 4096
NAME = "1/model.bin"
WANTED = {NAME: ("sha256",)}


class Judging(Agent):
    """Asks for the digest twice, with ``between`` in between, and refuses what is not :data:`GOOD`."""

    api_version = 1
    guard = True
    compares_digests = True

    def __init__(self, between: Callable[[Path], object] = lambda _path: None) -> None:
        self._between = between

    def load(self, model: AgentModel) -> None:
        self._judge(model)
        self._between(model.localize() / NAME)
        self._judge(model)

    @staticmethod
    def _judge(model: AgentModel) -> None:
        if model.digests(WANTED)[NAME]["sha256"] != hashlib.sha256(GOOD).hexdigest():
            raise ValueError("changed")


class Moving(Agent):
    """Writes the model into a location of its own, does ``after`` there, and hands it on."""

    api_version = 1

    def __init__(self, after: Callable[[AgentModel, Path], object]) -> None:
        self._after = after

    def load(self, model: AgentModel) -> None:
        target = model.acquire_location()
        write_files(target, {NAME: GOOD})
        self._after(model, target / NAME)
        model.update_location(target)


def write(path: Path) -> None:
    path.write_bytes(BAD)


def write_and_set_times(path: Path) -> None:
    """What shows afterwards is the time of the last change of status alone."""
    status = path.stat()
    with path.open("r+b") as file:
        file.write(BAD)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def swap(path: Path) -> None:
    path.with_name("beside").write_bytes(BAD)
    path.with_name("beside").replace(path)


def swap_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name("aside"))
    write_files(path.parent.parent, {NAME: BAD})


def write_through_second_name(path: Path) -> None:
    os.link(path, path.with_name("second"))
    path.with_name("second").write_bytes(BAD)


def write_through_mapping(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:] = BAD


CHAIN = b'{ name: "brings" }, { name: "judges" }'
CHANGES = [write, write_and_set_times, swap, swap_directory, write_through_second_name, write_through_mapping]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_files(tmp_path / "m", {NAME: GOOD})


def run(tmp_path: Path, model: Path, agents: Mapping[str, Agent]) -> Any:
    entries = ", ".join(f'{{ name: "{name}" }}' for name in agents)
    (model / "config.pbtxt").write_text(f'name: "m"\nmodel_repository_agents {{ agents [ {entries} ] }}\n')
    with AgentHarness(tmp_path / "harness", agents) as harness:
        return harness.run(model)


def refused(outcome: Any) -> None:
    assert isinstance(outcome.error, AgentRefusedError)
    assert outcome.error.reason == "changed"


def test_what_does_not_change_is_read_once(tmp_path: Path, model: Path) -> None:
    """The snapshot hashes what it writes, so no guard reads it again."""
    outcome = run(tmp_path, model, {"first": Judging(), "second": Judging()})
    assert outcome.error is None
    assert [entry.actions[0].bytes_read for entry in outcome.report.entries] == [0, 0]


@pytest.mark.parametrize("change", CHANGES)
def test_a_guard_that_writes_is_not_vouched_for(change: Callable[[Path], None], tmp_path: Path, model: Path) -> None:
    refused(run(tmp_path, model, {"writes": Judging(change)}))


@pytest.mark.parametrize("change", CHANGES)
def test_an_agent_that_states_a_digest_and_writes_again_is_refused_itself(
    change: Callable[[Path], None], tmp_path: Path, model: Path
) -> None:
    def after(model: AgentModel, path: Path) -> None:
        status = path.stat()
        change(path)
        model.keep_digests(path, status, {"sha256": hashlib.sha256(GOOD).hexdigest()})

    outcome = run(tmp_path, model, {"moves": Moving(after), "judges": Judging()})
    assert isinstance(outcome.error, AgentRefusedError)
    assert "changed" in outcome.error.reason


@pytest.mark.parametrize("change", CHANGES)
def test_an_agent_that_writes_after_its_digest_was_taken_is_not_vouched_for(
    change: Callable[[Path], None], tmp_path: Path, model: Path
) -> None:
    """The digest is right, and so is its status; the agent writes when its LOAD is over."""
    places: list[Path] = []

    def after(model: AgentModel, path: Path) -> None:
        model.keep_digests(path, path.stat(), {"sha256": hashlib.sha256(GOOD).hexdigest()})
        places.append(path)

    class Late(Agent):
        api_version = 1

        def load(self, model: AgentModel) -> None:
            change(places[0])

    refused(run(tmp_path, model, {"moves": Moving(after), "late": Late(), "judges": Judging()}))


def test_a_mapping_that_stays_is_seen_whatever_the_times_show(tmp_path: Path, model: Path) -> None:
    """Its pages are writable already, so no later write through it changes a time."""
    held: list[mmap.mmap] = []

    def map_it(model: AgentModel, path: Path) -> None:
        with path.open("r+b") as file:
            held.append(mmap.mmap(file.fileno(), 0))
        held[0][:] = GOOD
        model.keep_digests(path, path.stat(), {"sha256": hashlib.sha256(GOOD).hexdigest()})

    def change(_path: Path) -> None:
        held[0][:] = BAD

    outcome = run(tmp_path, model, {"moves": Moving(map_it), "judges": Judging(change)})
    held[0].close()
    refused(outcome)


def test_a_mapping_that_is_there_while_a_digest_is_stated_is_seen(tmp_path: Path, model: Path) -> None:
    """Its pages are writable already, and it is gone when the next guard looks."""
    held: list[mmap.mmap] = []

    def map_it(model: AgentModel, path: Path) -> None:
        with path.open("r+b") as file:
            held.append(mmap.mmap(file.fileno(), 0))
        held[0][:] = GOOD
        model.keep_digests(path, path.stat(), {"sha256": hashlib.sha256(GOOD).hexdigest()})

    class Late(Agent):
        api_version = 1

        def load(self, model: AgentModel) -> None:
            held[0][:] = BAD
            held[0].close()

    refused(run(tmp_path, model, {"moves": Moving(map_it), "late": Late(), "judges": Judging()}))


def test_a_mapping_that_is_there_while_a_digest_is_computed_is_seen(tmp_path: Path, model: Path) -> None:
    class Maps(Agent):
        api_version = 1
        guard = True

        def load(self, model: AgentModel) -> None:
            with (model.localize() / NAME).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
                mapped[:] = GOOD
                model.digests(WANTED)
                mapped[:] = BAD

    refused(run(tmp_path, model, {"maps": Maps(), "judges": Judging()}))


def test_no_digest_can_be_stated_of_a_file_under_a_second_name(tmp_path: Path, model: Path) -> None:
    """It would be the digest of the copy that an earlier agent judged, which this one did not write."""

    class Linking(Agent):
        api_version = 1
        guard = True

        def load(self, model: AgentModel) -> None:
            (model.localize() / NAME).chmod(0o400)
            other = model.acquire_location() / "other"
            os.link(model.localize() / NAME, other)
            with suppress(InvalidArgumentError):
                model.keep_digests(other, other.stat(), {"sha256": hashlib.sha256(GOOD).hexdigest()})

    (model / NAME).write_bytes(BAD)
    refused(run(tmp_path, model, {"links": Linking(), "judges": Judging()}))


def test_a_place_behind_a_link_in_a_private_directory_is_not_private(tmp_path: Path, model: Path) -> None:
    """A guard is given a copy of it, so that its owner cannot change what was judged."""
    elsewhere = write_files(tmp_path / "elsewhere", {NAME: GOOD})

    class Pointing(Agent):
        api_version = 1

        def load(self, model: AgentModel) -> None:
            link = model.acquire_location() / "link"
            link.symlink_to(elsewhere)
            model.update_location(link)

    class Guarding(Agent):
        api_version = 1
        guard = True

        def load(self, model: AgentModel) -> None:
            write(elsewhere / NAME)
            assert (model.localize() / NAME).read_bytes() == GOOD

    assert run(tmp_path, model, {"points": Pointing(), "guards": Guarding()}).error is None


def test_a_link_to_the_owners_file_is_not_vouched_for(tmp_path: Path, model: Path) -> None:
    """The agent links instead of copying; the owner writes through the other name."""

    def link(_model: AgentModel, path: Path) -> None:
        path.unlink()
        os.link(model / NAME, path)

    outcome = run(tmp_path, model, {"moves": Moving(link), "judges": Judging(lambda _path: write(model / NAME))})
    refused(outcome)


@pytest.mark.parametrize("where", ["owner", "elsewhere"])
def test_no_digest_can_be_stated_of_a_file_that_is_not_the_agents(where: str, tmp_path: Path, model: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(GOOD)
    errors: list[Exception] = []

    def state(agent_model: AgentModel, path: Path) -> None:
        other = model / NAME if where == "owner" else path.parents[3] / ".." / "elsewhere"
        with pytest.raises(InvalidArgumentError) as raised:
            agent_model.keep_digests(other, path.stat(), {"sha256": "0"})
        errors.append(raised.value)

    assert run(tmp_path, model, {"moves": Moving(state)}).error is None
    assert errors


def test_what_a_racing_thread_writes_leaves_no_digest_of_other_bytes(tmp_path: Path, model: Path) -> None:
    found: list[tuple[str, str]] = []

    class Asking(Agent):
        api_version = 1
        guard = True
        compares_digests = True

        def load(self, model: AgentModel) -> None:
            path = model.localize() / NAME
            for last in [GOOD, BAD] * 10:
                with racing(path, GOOD, BAD):
                    for _ in range(5):
                        model.digests(WANTED)
                if last is BAD:
                    write_and_set_times(path)
                found.append((model.digests(WANTED)[NAME]["sha256"], hashlib.sha256(last).hexdigest()))

    assert run(tmp_path, model, {"asks": Asking()}).error is None
    assert [stated for stated, _ in found] == [right for _, right in found]


@pytest.mark.parametrize("damaged", [False, True])
def test_what_the_cache_noted_of_a_file_at_an_earlier_load_is_not_vouched_for(damaged: bool, tmp_path: Path) -> None:
    """A disk, or a crash of the machine, may have changed it since: the guard behind the download is to see that."""

    class Bringing(Agent):
        api_version = 1

        def __init__(self) -> None:
            self.loads = 0

        def load(self, model: AgentModel) -> None:
            self.loads += 1
            file = RemoteFile(NAME, f"{server.url}/w", digest=f"sha256:{hashlib.sha256(GOOD).hexdigest()}")

            def build(target: Path) -> None:
                (target / NAME).parent.mkdir()
                model.download([file], target, allow=[server.host])

            model.update_location(model.cache.get_or_build(f"load {self.loads}", build))

    model = write_files(tmp_path / "m", {"config.pbtxt": b"model_repository_agents { agents [ %s ] }" % CHAIN})
    with (
        FileServer({"/w": GOOD}) as server,
        AgentHarness(tmp_path / "harness", {"brings": Bringing(), "judges": Judging()}) as harness,
    ):
        first = harness.run(model)
        assert first.error is None
        assert first.report.entries[1].actions[0].bytes_read == 0, "what was just downloaded was hashed on the way"
        if damaged:
            for blob in tmp_path.glob(f"**/blobs/{hashlib.sha256(GOOD).hexdigest()}"):
                blob.chmod(0o600)
                blob.write_bytes(BAD)
                blob.chmod(0o400)
        second = harness.run(model)
    if damaged:
        refused(second)
    else:
        assert second.error is None
