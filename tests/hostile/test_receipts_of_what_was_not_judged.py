"""T3: agents that change a model where it is, or move it where others write: its receipt states what is served."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import fsspec
import pytest

from repoagent.api import Agent, AgentModel, ArtifactType
from repoagent.api.attesting import Attestation, AttestedLoad
from repoagent.errors import RepoAgentError, UnavailableError
from repoagent.loader.attesting import Attesting, AttestSettings
from repoagent.loader.chain import LoadedChain
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.load_context import Services
from repoagent.loader.loader import Loader
from repoagent.public_text import hide_url
from repoagent.storage.repositories.sources import ModelSource, open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot
from repoagent.testing import write_files
from repoagent.testing.faults import FaultInjection, TestedAgents

NAME = "1/model.bin"
CONFIG = b'name: "m"\nmodel_repository_agents { agents [ { name: "a" } ] }\n'
GOOD, BAD = b"good", b"evil"
Load = Callable[..., LoadedChain]


class Recorder:
    """An attestor that keeps what it is given."""

    def __init__(self) -> None:
        self.loads: list[AttestedLoad] = []

    def attest(self, load: AttestedLoad) -> Attestation:
        self.loads.append(load)
        return Attestation(b"{}", "0")

    def stated(self, tree: str) -> str:
        """The digest of the model's file in the only receipt."""
        (load,) = self.loads
        return load.trees[tree][NAME]


class Doing(Agent):
    """Does what the test says when the model is loaded."""

    api_version = 1

    def __init__(self, what: Callable[[AgentModel], object]) -> None:
        self._what = what

    def load(self, model: AgentModel) -> None:
        self._what(model)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def load(tmp_path: Path, recorder: Recorder) -> Iterator[Load]:
    with ExitStack() as stack:
        workspaces = stack.enter_context(WorkspaceRoot(tmp_path / "workspace", allow_swap=True))

        def run(what: Callable[[AgentModel], object], source: ModelSource | None = None) -> LoadedChain:
            registry = AgentRegistry(None)
            attesting = Attesting(recorder, AttestSettings(key=""), registry, lambda _model: {})
            agents = TestedAgents({"a": Doing(what)}, registry, FaultInjection())
            loader = Loader(agents, workspaces, Services(attesting=attesting))
            stack.callback(loader.close, None)
            model = write_files(tmp_path / "m", {NAME: GOOD, "config.pbtxt": CONFIG})
            return loader.load(source or open_source("m", str(model)))

        yield run


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_what_an_agent_writes_into_the_copy_that_it_was_given_is_stated(load: Load, recorder: Recorder) -> None:
    chain = load(lambda model: (model.localize() / NAME).write_bytes(BAD))
    chain.attest([1])
    assert (recorder.stated("model"), recorder.stated("served")) == (sha256(GOOD), sha256(BAD))


@pytest.mark.parametrize("moved", [False, True])
def test_a_model_that_changes_its_own_files_when_it_is_loaded_is_stated_as_it_was(
    moved: bool, load: Load, recorder: Recorder
) -> None:
    """Its code has run by the time of the receipt, and has put the files there that an auditor holds."""

    def move(model: AgentModel) -> None:
        if moved:
            target = write_files(model.acquire_location(), {NAME: BAD, "config.pbtxt": CONFIG})
            model.update_location(target)

    chain = load(move)
    (Path(chain.location) / NAME).write_bytes(b"like an honest one")
    chain.attest([1])
    assert recorder.loads[0].trees.keys() == ({"model", "served"} if moved else {"model"})
    assert not moved or recorder.stated("served") == sha256(BAD)


def test_what_is_served_from_where_its_owner_writes_is_what_is_stated(
    load: Load, recorder: Recorder, tmp_path: Path
) -> None:
    elsewhere = write_files(tmp_path / "elsewhere", {NAME: b"else", "config.pbtxt": CONFIG})
    chain = load(lambda model: model.update_location(elsewhere))
    chain.attest([1])
    (elsewhere / NAME).write_bytes(BAD)
    assert recorder.stated("served") == sha256(b"else") == sha256(chain.files.bytes(NAME))


def test_what_is_served_from_a_store_is_stated(load: Load, recorder: Recorder) -> None:
    store = fsspec.filesystem("memory")
    store.pipe({f"/receipts/m/{NAME}": BAD, "/receipts/m/config.pbtxt": CONFIG})
    chain = load(lambda model: model.update_location("memory://receipts/m", ArtifactType.REMOTE_FILESYSTEM))
    chain.attest([1])
    store.pipe(f"/receipts/m/{NAME}", GOOD)
    assert recorder.stated("served") == sha256(BAD) == sha256(chain.files.bytes(NAME))


def test_an_attestor_that_fails_keeps_nothing_of_a_refused_model(
    load: Load, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent may report what no receipt can hold."""

    def fail(_load: AttestedLoad) -> Attestation:
        raise TypeError("Object of type bytes is not JSON serializable")

    monkeypatch.setattr(recorder, "attest", fail)
    chain = load(lambda _model: None)
    chain.fail(UnavailableError("the backend refused it"))
    assert not [path for path in (tmp_path / "workspace").rglob("*") if path.name == "model.bin"]


def test_an_agent_that_fails_before_its_turn_states_no_plaintext(
    load: Load, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for a confidential place at once, and reports what it wrote there."""

    def initialize(_agent: Agent, model: AgentModel) -> None:
        model.acquire_location(confidential=True)
        model.report(digests={"plain": "digest"})
        raise ValueError("no")

    monkeypatch.setattr(Doing, "model_initialize", initialize)
    with pytest.raises(RepoAgentError):
        load(lambda _model: None)
    (stated,) = recorder.loads
    assert stated.report.entries[0].actions[0].digests == {"plain": "digest"}
    assert stated.confidential_from == 0


def test_the_store_of_a_repository_is_not_named(load: Load, recorder: Recorder) -> None:
    """A client may ask for the receipt, and is told of the load what its report would tell."""
    fsspec.filesystem("memory").pipe({f"/private/models/m/{NAME}": GOOD, "/private/models/m/config.pbtxt": CONFIG})
    hide_url("memory://private/models", "model repository")
    chain = load(lambda _model: None, open_source("m", "memory://private/models/m"))
    chain.attest([1])
    assert "private" not in str(recorder.loads)
