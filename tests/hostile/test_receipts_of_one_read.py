"""T3: files change while `verify` judges what `decrypt` reads: the receipt states what was judged, or there is none."""

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_verify.manifest import Serialization

from repoagent.api.attesting import Attestation, AttestedLoad
from repoagent.errors import RepoAgentError
from repoagent.loader.attesting import Attesting, AttestSettings
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.load_context import Services
from repoagent.testing import AgentHarness, FaultInjection
from tests.hostile import test_one_read_for_two_agents as one_read
from tests.hostile.test_one_read_for_two_agents import BEFORE, CHANGES, MOMENTS, model, restoring, sealed, signed

__all__ = ["model"]


class Recorder:
    """An attestor that keeps what it is given."""

    def __init__(self) -> None:
        self.loads: list[AttestedLoad] = []

    def attest(self, load: AttestedLoad) -> Attestation:
        self.loads.append(load)
        return Attestation(b"{}", "0")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def faults() -> FaultInjection:
    return FaultInjection()


@pytest.fixture
def plaintext() -> bool:
    return False


@pytest.fixture
def harness(
    tmp_path: Path, faults: FaultInjection, recorder: Recorder, plaintext: bool, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AgentHarness]:
    settings = AttestSettings(key="", plaintext=plaintext)
    attesting = Attesting(recorder, settings, AgentRegistry(None), lambda _model: {})
    monkeypatch.setattr("repoagent.testing.harness.Services", partial(Services, attesting=attesting))
    yield from one_read.harness.__wrapped__(tmp_path, faults)  # type: ignore[attr-defined]


def digests(root: Path) -> dict[str, str]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def load(harness: AgentHarness, root: Path) -> RepoAgentError | None:
    """Load up to serving, and end that."""
    try:
        chain = harness.load(root)
    except RepoAgentError as error:
        return error
    chain.attest([1])
    chain.complete()
    chain.unload()
    chain.unload_complete()
    return None


@pytest.mark.parametrize("plaintext", [False, True])
def test_a_receipt_costs_no_copy_and_no_read(
    plaintext: bool, model: Path, harness: AgentHarness, recorder: Recorder
) -> None:
    """By the kernel's counters: all that this process reads and writes meanwhile."""
    assert load(harness, signed(model)) is None  # imports what it needs
    (model / "model.sig").unlink()
    recorder.loads.clear()
    plain = os.urandom(8 << 20)
    sealed(model / "1" / "a.bin.age", plain)
    expected = digests(signed(model))
    size = sum(path.stat().st_size for path in model.rglob("*") if path.is_file())
    before = counters()
    chain = harness.load(model)
    chain.attest([1])
    read, written = (after - start for after, start in zip(counters(), before, strict=True))
    assert read / size < 1.05
    assert written / size < 1.05
    (stated,) = recorder.loads
    assert stated.passed
    assert stated.trees["model"] == expected
    served = digests(Path(chain.location)) if plaintext else None
    assert stated.trees.get("served") == served
    chain.complete()


def counters() -> tuple[int, int]:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"]), int(lines["wchar"])


def other_signature(path: Path) -> None:
    """Not that which is trusted: the guard has read it, and no one reads it again."""
    (path.parents[1] / "model.sig").write_bytes(b"another")


@pytest.mark.parametrize(
    ("moment", "back"), [*((moment, False) for moment in MOMENTS), *((moment, True) for moment in BEFORE)]
)
@pytest.mark.parametrize("change", [*CHANGES, other_signature])
def test_what_is_stated_is_what_was_judged(
    change: Callable[[Path], None],
    moment: str,
    back: bool,
    model: Path,
    harness: AgentHarness,
    faults: FaultInjection,
    recorder: Recorder,
) -> None:
    """A receipt of a load that passed states what was signed; one of a refused load never does."""
    restore, expected = restoring(signed(model)), digests(model)
    faults.at(moment, lambda: change(model / "1" / "a.bin.age"))
    if back:
        faults.at("decrypt update_location", restore)
    error = load(harness, model)
    for stated in recorder.loads:
        assert stated.passed is (error is None)
        assert (stated.trees["model"] == expected) is stated.passed
        assert "served" not in stated.trees
    assert len(recorder.loads) == 1 or (error is not None and not recorder.loads)
    assert harness.left_over() == []


def test_a_refusal_before_the_files_were_read_states_them(
    model: Path, harness: AgentHarness, recorder: Recorder
) -> None:
    (signed(model) / "model.sig").write_bytes(b"{}")
    error = load(harness, model)
    assert error is not None
    assert "verify" in str(error)
    (stated,) = recorder.loads
    assert (stated.passed, stated.trees["model"]) == (False, digests(model))
    assert [entry.agent for entry in stated.report.entries] == ["verify"]


def test_a_file_for_another_key_is_refused_and_stated_without_its_plaintext(
    model: Path, harness: AgentHarness, recorder: Recorder
) -> None:
    (model / "plain").write_bytes(b"plain")
    encrypt_file(model / "plain", model / "1" / "c.bin.age", [X25519Identity.generate().recipient])
    (model / "plain").unlink()
    assert "decrypt" in str(load(harness, signed(model)))
    (stated,) = recorder.loads
    assert (stated.passed, stated.trees) == (False, {"model": digests(model)})
    assert [entry.agent for entry in stated.report.entries] == ["verify", "decrypt"]
    assert stated.confidential_from == 1
    assert harness.left_over() == []


def test_a_link_is_refused_although_a_load_begins_again(model: Path, harness: AgentHarness, recorder: Recorder) -> None:
    (signed(model) / "1" / "link").symlink_to("labels.txt")
    assert "is a link" in str(load(harness, model))
    assert recorder.loads == []


def test_signed_ranges_are_stated_as_the_private_copy_has_them(
    model: Path, harness: AgentHarness, recorder: Recorder
) -> None:
    expected = digests(signed(model, Serialization(shard_size=65536)))
    assert load(harness, model) is None
    (stated,) = recorder.loads
    assert (stated.passed, stated.trees["model"]) == (True, expected)
