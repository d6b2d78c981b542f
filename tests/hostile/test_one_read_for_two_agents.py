"""T3: files change while `verify` judges what `decrypt` reads for it. What is loaded is what was signed, or nothing is.

Whoever changes them can encrypt for the server's key, as anyone can: only the signature distinguishes the files.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign

from repoagent.errors import AgentRefusedError
from repoagent.testing import AgentHarness, FakeKeys, FaultInjection, Outcome, write_files

GOOD, BAD = os.urandom(200_000), b"evil" * 50_000
IDENTITY, SIGNER = X25519Identity.generate(), ec.generate_private_key(ec.SECP256R1())
CONFIG = (
    'name: "m"\nmodel_repository_agents {\n'
    '  agents [ { name: "verify" parameters { key: "public_key" value: "fake:signer" } } ]\n'
    '  agents [ { name: "decrypt" parameters { key: "identity" value: "fake:identity" } } ]\n}\n'
)
PLAIN = {"1/a.bin": GOOD, "1/b.bin": GOOD[::-1], "1/labels.txt": b"one\n", "config.pbtxt": CONFIG.encode()}


def sealed(path: Path, content: bytes, armored: bool = False) -> None:
    """Another file of the same name, for the same key."""
    beside = path.parent.parent / "beside"
    beside.write_bytes(content)
    path.unlink(missing_ok=True)
    encrypt_file(beside, path, [IDENTITY.recipient], armored=armored)
    beside.unlink()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    root = write_files(tmp_path / "m", {path: data for path, data in PLAIN.items() if not path.endswith(".bin")})
    for path, content in PLAIN.items():
        if path.endswith(".bin"):
            sealed(root / f"{path}.age", content)
    return root


def signed(model: Path, how: Serialization | None = None) -> Path:
    (model / "model.sig").write_bytes(sign(model, Identity(SIGNER), how or Serialization(), signature="model.sig"))
    return model


@pytest.fixture
def faults() -> FaultInjection:
    return FaultInjection()


@pytest.fixture
def harness(tmp_path: Path, faults: FaultInjection) -> Iterator[AgentHarness]:
    public = SIGNER.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    keys = FakeKeys({"signer": public, "identity": IDENTITY.export().encode()})
    with AgentHarness(tmp_path / "harness", keys=keys, faults=faults) as made:
        yield made


def plain_of(outcome: Outcome) -> dict[str, bytes]:
    return {path: data for path, data in outcome.files.items() if path != "model.sig"}


def reads(outcome: Outcome) -> int:
    return sum(action.bytes_read for entry in outcome.report.entries for action in entry.actions)


def notes(outcome: Outcome) -> str:
    return str([action.notes for entry in outcome.report.entries for action in entry.actions])


def test_the_files_are_read_once_and_not_copied(model: Path, harness: AgentHarness) -> None:
    size = sum(path.stat().st_size for path in model.rglob("*") if path.is_file())
    outcome = harness.run(signed(model))
    assert outcome.error is None
    assert plain_of(outcome) == PLAIN
    assert size <= reads(outcome) < size + 10_000
    assert "snapshot" not in notes(outcome)
    assert outcome.report.entries[0].actions[0].evidence[0]["result"] == "verified"


@pytest.mark.parametrize("algorithm", ["blake2b", "blake3"])
def test_other_algorithms_of_a_signature_are_computed_while_reading(
    algorithm: str, model: Path, harness: AgentHarness
) -> None:
    outcome = harness.run(signed(model, Serialization(hash_type=algorithm)))
    assert plain_of(outcome) == PLAIN
    assert "snapshot" not in notes(outcome)


def test_a_format_that_is_not_read_in_order_is_read_from_a_copy_in_memory(model: Path, harness: AgentHarness) -> None:
    sealed(model / "1" / "a.bin.age", GOOD, armored=True)
    outcome = harness.run(signed(model))
    assert plain_of(outcome) == PLAIN
    assert "snapshot" not in notes(outcome)


def test_signed_ranges_are_read_from_a_private_copy(model: Path, harness: AgentHarness) -> None:
    outcome = harness.run(signed(model, Serialization(shard_size=65536)))
    assert plain_of(outcome) == PLAIN
    assert "verify isolate" in str(outcome.passed)


def test_a_version_that_is_signed_by_itself_is_judged_by_what_was_read(model: Path, harness: AgentHarness) -> None:
    config = CONFIG.replace('"fake:signer" }', '"fake:signer" } parameters { key: "directory" value: "1" }')
    (model / "config.pbtxt").write_text(config)
    how = Identity(SIGNER)
    (model / "1" / "model.sig").write_bytes(sign(model / "1", how, Serialization(), signature="model.sig"))
    outcome = harness.run(model)
    assert outcome.error is None
    assert "snapshot" not in notes(outcome)
    sealed(model / "1" / "a.bin.age", BAD)
    assert "changed after signing: a.bin.age" in str(harness.run(model).error)


def write(path: Path) -> None:
    """Into the same file, which stays where it is."""
    sealed(path.with_name("other"), BAD)
    data = path.with_name("other").read_bytes()
    path.with_name("other").unlink()
    path.write_bytes(data)


def overwrite(path: Path) -> None:
    """Without a change of its directory, even for a moment."""
    elsewhere = path.parents[2] / "elsewhere" / "1"
    elsewhere.mkdir(parents=True, exist_ok=True)
    sealed(elsewhere / "x", BAD)
    path.write_bytes((elsewhere / "x").read_bytes())


def replace(path: Path) -> None:
    sealed(path.with_name("other"), BAD)
    path.with_name("other").replace(path)


def remove(path: Path) -> None:
    path.unlink()


def link(path: Path) -> None:
    elsewhere = path.parents[2] / "elsewhere" / "1"
    elsewhere.mkdir(parents=True, exist_ok=True)
    sealed(elsewhere / "x", BAD)
    path.unlink()
    path.symlink_to(elsewhere / "x")


def add(path: Path) -> None:
    sealed(path.with_name("new.bin.age"), BAD)


def add_version(path: Path) -> None:
    write_files(path.parents[1], {"2/a.bin": BAD})


def other_config(path: Path) -> None:
    with (path.parents[1] / "config.pbtxt").open("r+b") as file:
        file.write(CONFIG.replace('"m"', '"n"').encode())


def other_labels(path: Path) -> None:
    (path.parent / "labels.txt").write_bytes(b"two\n")


CHANGES = [write, overwrite, replace, remove, link, add, add_version, other_config, other_labels]
BEFORE = ["verify digests", "decrypt key", "decrypt keep_read_digests"]
MOMENTS = [*BEFORE, "decrypt update_location", "after decrypt LOAD", "after verify LOAD"]


def restoring(model: Path) -> Callable[[], None]:
    """What gives every file the content that it has now, and removes what is not there now."""
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}

    def restore() -> None:
        for path in model.rglob("*"):
            if path.is_symlink() or (path.is_file() and path not in before):
                path.unlink()
        for path, content in before.items():
            path.write_bytes(content)

    return restore


@pytest.mark.parametrize(
    ("moment", "back"), [*((moment, False) for moment in MOMENTS), *((moment, True) for moment in BEFORE)]
)
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_loaded_is_what_was_signed(
    change: Callable[[Path], None], moment: str, back: bool, model: Path, harness: AgentHarness, faults: FaultInjection
) -> None:
    """At any moment, and also if the signed files are ``back`` before anyone looks a second time."""
    signed(model)
    restore = restoring(model)
    faults.at(moment, lambda: change(model / "1" / "a.bin.age"))
    if back:
        faults.at("decrypt update_location", restore)
    outcome = harness.run(model)
    assert outcome.left == ()
    if outcome.loaded:
        assert plain_of(outcome) == PLAIN
    else:
        assert isinstance(outcome.error, Exception)
        assert outcome.files == {}


def swap_link(place: Path, other: Path) -> None:
    """The model's directory is a link, as operators have it; neither of the two directories changes."""
    target = place.readlink()
    beside = place.with_name("beside")
    beside.symlink_to(other.readlink())
    beside.replace(place)
    other.unlink()
    other.symlink_to(target)


def swap_above(place: Path, other: Path) -> None:
    """A directory above the model's is renamed, which changes nothing in the model's own."""
    aside = place.parent.with_name("aside")
    place.parent.rename(aside)
    other.parent.rename(place.parent)
    aside.rename(other.parent)


@pytest.mark.parametrize("moment", BEFORE[:2])
@pytest.mark.parametrize("swap", [swap_link, swap_above])
def test_what_another_directory_has_besides_is_not_read(
    swap: Callable[[Path, Path], None],
    moment: str,
    tmp_path: Path,
    model: Path,
    harness: AgentHarness,
    faults: FaultInjection,
) -> None:
    """It has the signed files, and stands in the model's place for as long as `decrypt` reads."""
    place, other = tmp_path / "repository" / "m", tmp_path / "mine" / "m"
    if swap is swap_link:
        shutil.copytree(signed(model), tmp_path / "forged")
        for link, target in ((place, model), (other, tmp_path / "forged")):
            link.parent.mkdir()
            link.symlink_to(target)
    else:
        shutil.copytree(signed(model), other)
        shutil.copytree(model, place)
    sealed(other / "1" / "more.bin.age", BAD)
    write_files(other, {"2/model.py": BAD})
    faults.at(moment, lambda: swap(place, other))
    faults.at("decrypt update_location", lambda: swap(place, other))
    outcome = harness.run(place)
    assert outcome.left == ()
    assert not outcome.loaded or plain_of(outcome) == PLAIN


def test_a_load_that_another_configuration_planned_is_refused(
    model: Path, harness: AgentHarness, faults: FaultInjection
) -> None:
    """It need not name the signer of the files, and is gone when they are read."""
    signed(model)
    good = (model / "config.pbtxt").read_bytes()
    (model / "config.pbtxt").write_bytes(good + b"# planned by this")
    faults.at("decrypt key", lambda: (model / "config.pbtxt").write_bytes(good))
    outcome = harness.run(model)
    assert "changed while the model was being loaded" in str(outcome.error)
    assert (outcome.files, outcome.left) == ({}, ())


def test_a_changed_byte_is_the_guards_to_refuse(model: Path, harness: AgentHarness) -> None:
    path = signed(model) / "1" / "b.bin.age"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    outcome = harness.run(model)
    assert isinstance(outcome.error, AgentRefusedError)
    assert outcome.error.agent == "verify"
    assert "changed after signing: 1/b.bin.age" in outcome.error.reason
    assert outcome.report.entries[0].actions[0].evidence[0]["result"] == "refused"
    assert outcome.left == ()


def test_what_decrypts_to_something_else_is_the_guards_to_refuse(model: Path, harness: AgentHarness) -> None:
    sealed(signed(model) / "1" / "a.bin.age", BAD)
    outcome = harness.run(model)
    assert isinstance(outcome.error, AgentRefusedError)
    assert (outcome.error.agent, outcome.left) == ("verify", ())


def test_a_signed_file_for_another_key_is_an_error_of_decrypt(model: Path, harness: AgentHarness) -> None:
    encrypt_file(model / "config.pbtxt", model / "1" / "c.bin.age", [X25519Identity.generate().recipient])
    outcome = harness.run(signed(model))
    assert isinstance(outcome.error, AgentRefusedError)
    assert (outcome.error.agent, outcome.left) == ("decrypt", ())


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_cancelled_load_leaves_nothing(
    moment: str, model: Path, harness: AgentHarness, faults: FaultInjection
) -> None:
    faults.cancel(moment)
    outcome = harness.run(signed(model))
    assert (outcome.loaded, outcome.left) == (False, ())


@contextmanager
def racing(path: Path, good: bytes, bad: bytes) -> Iterator[None]:
    """A thread that writes ``bad`` and ``good`` in turn, for a block."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            for content in (bad, good):
                with path.open("r+b") as file:
                    file.write(content)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_racing_thread_gets_nothing_loaded_that_was_not_signed(model: Path, harness: AgentHarness) -> None:
    """It writes another file for the same key and the signed one in turn."""
    path = signed(model) / "1" / "a.bin.age"
    good = path.read_bytes()
    overwrite(path)
    with racing(path, good, path.read_bytes()):
        outcomes = [harness.run(model) for _ in range(30)]
    for outcome in outcomes:
        assert not outcome.loaded or plain_of(outcome) == PLAIN
        assert outcome.left == ()
