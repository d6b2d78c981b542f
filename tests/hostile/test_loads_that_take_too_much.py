"""T11: what a model asks for before it answers anything is limited, and no file keeps a load waiting."""

import io
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_checksum.cli import checksum
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.scrypt import ScryptRecipient
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.writer import encrypt_stream
from repoagent_verify.cli import verify_command

from agents.verify.tests.issuing import public_pem
from repoagent.beneath.opening import DEEPEST, list_beneath
from repoagent.config import read_text
from repoagent.errors import CancelledError, InvalidArgumentError, RepoAgentError, UnavailableError, UnsafePathError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.core import ControlMode, ServingCore
from repoagent.storage.files.files import DirectoryFiles
from repoagent.storage.transfer.snapshot import snapshot
from repoagent.testing import AgentHarness, FakeKeys, FaultInjection, write_files
from tests.hostile.conftest import NewCore

BASE = (
    'backend: "identity" max_batch_size: 8 '
    'input { name: "INPUT0" data_type: TYPE_FP32 dims: [4] } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [4] } '
)
DECRYPTED = (
    b'model_repository_agents { agents [ { name: "decrypt" parameters { key: "identity" value: "fake:identity" } } ] }'
)
MANY = 2**31 - 1


@pytest.fixture
def write(repository: Path) -> Callable[[str], Path]:
    def make(text: str) -> Path:
        (repository / "m" / "1").mkdir(parents=True, exist_ok=True)
        (repository / "m" / "config.pbtxt").write_text(text)
        return repository / "m"

    return make


def refusal(core: ServingCore) -> str:
    with pytest.raises(RepoAgentError) as raised:
        core.load("m")
    assert not core.model_ready("m")
    return str(raised.value)


SAMPLE = (
    'model_warmup {{ name: "w" {} inputs {{ key: "INPUT0" '
    "value {{ data_type: TYPE_FP32 dims: [{}] zero_data: true }} }} }}"
)
STATE = (
    "sequence_batching { state { input_name: 'a' output_name: 'b' data_type: TYPE_FP32 dims: [1000000, 1000000]"
    " initial_state { data_type: TYPE_FP32 dims: [1000000, 1000000] zero_data: true name: 'i' } } }"
)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("instances", f"instance_group {{ count: {MANY} }}"),
        ("instances", "instance_group [" + ", ".join(["{ count: 100 }"] * 3) + "]"),
        ("sequence_slots", f"sequence_batching {{ oldest {{ max_candidate_sequences: {MANY} }} }}"),
        ("warmup_requests", SAMPLE.format(f"count: {MANY}", "4")),
        ("tensor_bytes", SAMPLE.format("", "1000000, 1000000")),
        ("tensor_bytes", SAMPLE.format(f"batch_size: {MANY}", "4")),
        ("tensor_bytes", STATE),
    ],
)
def test_a_configuration_asks_for_more_than_a_machine_has(
    field: str, text: str, write: Callable[[str], Path], new_core: NewCore
) -> None:
    write(BASE + text)
    said = refusal(new_core())
    assert Limits.flag(field) in said
    assert f"{getattr(DEFAULT_LIMITS, field)} are allowed" in said


def test_sequences_of_the_direct_strategy_are_as_many_as_the_batch(
    write: Callable[[str], Path], new_core: NewCore
) -> None:
    write(BASE.replace("max_batch_size: 8", f"max_batch_size: {MANY}") + "sequence_batching { direct { } }")
    assert Limits.flag("sequence_slots") in refusal(new_core())


def test_the_operator_may_allow_more_and_less(write: Callable[[str], Path], new_core: NewCore) -> None:
    write(BASE + "instance_group { count: 300 }")
    assert Limits.flag("instances") in refusal(new_core())
    core = new_core(limits=Limits(instances=300))
    core.load("m")
    assert core.model_ready("m")
    assert Limits.flag("instances") in refusal(new_core(limits=Limits(instances=299)))


@pytest.mark.parametrize("text", ["instance_group { count: 200 }", SAMPLE.format("count: 200", "4")])
def test_a_load_that_nobody_waits_for_ends_between_two_instances_and_two_requests(
    text: str, write: Callable[[str], Path], new_core: NewCore
) -> None:
    place = write(BASE + text)
    builder = new_core()._context.builder
    asked = itertools.count()
    with pytest.raises(CancelledError):
        builder.build("m", read_text(BASE + text), DirectoryFiles(place), [1], lambda: next(asked) == 20)
    assert next(asked) == 21


@pytest.mark.parametrize("size", [DEFAULT_LIMITS.config_bytes + 1, 3 << 30])
def test_a_configuration_is_not_read_whole(size: int, write: Callable[[str], Path], new_core: NewCore) -> None:
    with (write("") / "config.pbtxt").open("wb") as file:
        file.truncate(size)
    assert Limits.flag("config_bytes") in refusal(new_core())


@pytest.mark.slow
@pytest.mark.parametrize("control", [False, True], ids=["brought", "allowed"])
def test_a_configuration_that_a_load_brings_is_as_large_as_one_in_a_file(
    write: Callable[[str], Path], new_core: NewCore, control: bool
) -> None:
    """The parser stops every other thread: 14 MB of empty lists took the whole server 2.6 seconds."""
    write("")
    text = '{"backend": "identity", "x": [' + "[]," * (DEFAULT_LIMITS.config_bytes // 3) + "0]}"
    core = new_core(limits=Limits(config_bytes=len(text))) if control else new_core()
    with pytest.raises(InvalidArgumentError) as raised:
        core.load("m", config=text)
    assert (Limits.flag("config_bytes") in str(raised.value)) is not control


def test_a_file_of_labels_is_not_read_whole(write: Callable[[str], Path], new_core: NewCore) -> None:
    place = write(BASE.replace('output { name: "OUTPUT0"', 'output { name: "OUTPUT0" label_filename: "labels.txt"'))
    with (place / "labels.txt").open("wb") as file:
        file.truncate(3 << 30)
    assert Limits.flag("text_file_bytes") in refusal(new_core())


@pytest.mark.parametrize("name", ["config.pbtxt", "labels.txt", "warmup/data"])
def test_a_pipe_keeps_no_load_waiting(name: str, write: Callable[[str], Path], new_core: NewCore) -> None:
    text = BASE.replace('output { name: "OUTPUT0"', 'output { name: "OUTPUT0" label_filename: "labels.txt"')
    if name == "warmup/data":
        text = BASE + SAMPLE.format("", "4").replace("zero_data: true", 'input_data_file: "data"')
    place = write(text)
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).unlink(missing_ok=True)
    os.mkfifo(place / name)
    assert "neither a file nor a directory" in refusal(new_core())


@pytest.mark.parametrize("key", ["file", "ciphertext"])
@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
def test_a_key_in_a_file_that_is_none(
    key: str, kind: str, write: Callable[[str], Path], new_core: NewCore, tmp_path: Path
) -> None:
    path = tmp_path / "key"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(3 << 30)
    uri = f"file:{path}" if key == "file" else f"vault:transit/decrypt/x?ciphertext-file={path}"
    place = write(
        BASE + 'model_repository_agents { agents [{ name: "decrypt" parameters { key: "identity" '
        f'value: "{uri}" }} }}] }}'
    )
    (place / "1" / "x.age").write_bytes(b"age-encryption.org/v1\n")
    assert "agent 'decrypt'" in refusal(new_core(allow_swap=True))


def test_a_passphrase_that_takes_more_memory_than_the_operator_allows(
    write: Callable[[str], Path], new_core: NewCore, tmp_path: Path
) -> None:
    (tmp_path / "words").write_text("secret")
    agent = (
        'model_repository_agents {{ agents [{{ name: "decrypt" parameters {{ key: "passphrase" value: "file:{}" }} '
        "{} }}] }}"
    )
    more = 'parameters { key: "max_work_factor" value: "22" }'
    place = write(BASE + agent.format(tmp_path / "words", more))
    sealed = io.BytesIO()
    encrypt_stream(io.BytesIO(b"plain"), sealed, [ScryptRecipient(b"secret", work_factor=12)])
    (place / "1" / "x.age").write_bytes(sealed.getvalue())
    assert Limits.flag("scrypt_work_factor") in refusal(new_core(allow_swap=True))
    write(BASE + agent.format(tmp_path / "words", ""))
    assert "above the limit of 11" in refusal(new_core(allow_swap=True, limits=Limits(scrypt_work_factor=11)))
    core = new_core(allow_swap=True)
    core.load("m")
    assert core.model_ready("m")


@pytest.mark.parametrize("name", ["1/{}", "{}/", "1/{}/a/b/", "1/{}/x"], ids=["files", "directories", "deep", "both"])
@pytest.mark.parametrize("mode", [ControlMode.NONE, ControlMode.EXPLICIT])
def test_files_without_number(
    write: Callable[[str], Path], repository: Path, new_core: NewCore, name: str, mode: ControlMode
) -> None:
    """T25: each is looked at several times in a load, which keeps a thread of all models."""
    root = write(BASE)
    new_core(limits=Limits(model_files=40)).load("m")
    for number in range(40):
        path = root / name.format(f"n{number}")
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    core = new_core(limits=Limits(model_files=40), control_mode=mode)
    if mode is ControlMode.EXPLICIT:
        assert "--limit-model-files" in refusal(core)
    assert not core.model_ready("m")


def test_versions_without_number(write: Callable[[str], Path], new_core: NewCore) -> None:
    root = write(BASE + "version_policy { all {} }")
    for number in range(1, 5):
        (root / str(number)).mkdir(exist_ok=True)
    assert "--limit-model-versions" in refusal(new_core(limits=Limits(model_versions=3)))
    (root / "config.pbtxt").write_text(BASE)
    new_core(limits=Limits(model_versions=3)).load("m")


def counted(most: int) -> Callable[[], bool]:
    """A load that is given up after ``most`` steps: one that has no end fills no disk in a test."""
    asked = itertools.count()
    return lambda: next(asked) > most


def test_a_file_of_holes_is_not_copied_until_the_disk_is_full(tmp_path: Path) -> None:
    source = write_files(tmp_path / "m", {"1/model.bin": b""})
    with (source / "1" / "model.bin").open("wb") as file:
        file.truncate(shutil.disk_usage(tmp_path).total + (1 << 30))
    with pytest.raises(UnavailableError, match="a private copy of the model needs"):
        snapshot(source, tmp_path / "copy", cancelled=counted(20))


def test_a_file_that_grows_while_it_is_copied_has_an_end(tmp_path: Path) -> None:
    path = write_files(tmp_path / "m", {"1/model.bin": bytes(3 << 20)}) / "1" / "model.bin"

    def grow(_done: int, _total: int | None, _what: str) -> None:
        with path.open("ab") as file:
            file.write(bytes(2 << 20))

    snapshot(tmp_path / "m", tmp_path / "copy", cancelled=counted(20), progress=grow)
    assert (tmp_path / "copy" / "1" / "model.bin").stat().st_size == 3 << 20


@pytest.mark.parametrize("name", ["1/plain.bin", "1/a.bin.age", "1/armored.bin.age"])
def test_a_file_that_grows_while_it_is_decrypted_takes_no_more_memory_than_it_had(name: str, tmp_path: Path) -> None:
    """What was reserved is what it had when the load began; it is another, much larger one when its turn comes."""
    identity, faults = X25519Identity.generate(), FaultInjection()
    model = write_files(tmp_path / "m", {"config.pbtxt": DECRYPTED, "1/plain.bin": bytes(1 << 20)})
    (tmp_path / "plain").write_bytes(bytes(1 << 20))
    for target, armored in (("1/a.bin.age", False), ("1/armored.bin.age", True)):
        encrypt_file(tmp_path / "plain", model / target, [identity.recipient], armored=armored)
    (tmp_path / "plain").write_bytes(bytes(64 << 20))

    def grow() -> None:
        if name == "1/plain.bin":
            (tmp_path / "plain").rename(model / name)
        else:
            (model / name).unlink()
            encrypt_file(tmp_path / "plain", model / name, [identity.recipient], armored="armored" in name)

    faults.at("decrypt acquire_location", grow)
    keys = FakeKeys({"identity": identity.export().encode()})
    with AgentHarness(tmp_path / "harness", keys=keys, faults=faults) as harness:
        outcome = harness.run(model)
    assert "became larger while it was decrypted" in str(outcome.error)
    assert outcome.left == ()


# A thousand directories in one another: a walk that is recursive, or holds each open, ends more than this one load.

DEEP = 1500


def bury(place: Path) -> None:
    """A file below ``DEEP`` directories in ``place``."""
    fd = os.open(place, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)


@pytest.fixture
def model(repository: Path) -> Iterator[Path]:
    model = repository / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text("class TritonPythonModel:\n    def execute(self, requests): return []\n")
    bury(model)
    yield model
    # rmtree is recursive as well: cut the chain into pieces.
    for number in range(DEEP // 200):
        piece = model / "/".join(["d"] * (DEEP - (number + 1) * 200))
        piece.rename(model.parent / f"piece-{number}")
        shutil.rmtree(model.parent / f"piece-{number}")


CONFIG = 'backend: "python" model_repository_agents {{ agents [ {{ name: "{agent}" {parameters} }} ] }}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "parameters"),
    [
        ("verify", 'parameters { key: "public_key" value: "file:/x" }'),
        ("checksum", 'parameters { key: "manifest" value: "SHA256SUMS" }'),
        ("scan", ""),
        ("decrypt", 'parameters { key: "identity" value: "env:NONE" }'),
        ("fetch", 'parameters { key: "url" value: "https://vendor.example/m/" }'),
        ("license", 'parameters { key: "license" value: "l" } parameters { key: "public_key" value: "file:/x" }'),
        ("", ""),
    ],
)
def test_the_model_is_refused_in_one_line_and_the_others_load(
    new_core: NewCore, repository: Path, model: Path, agent: str, parameters: str
) -> None:
    good = repository / "good"
    shutil.copytree(model / "1", good / "1")
    (good / "config.pbtxt").write_text('backend: "python"')
    config = CONFIG.format(agent=agent, parameters=parameters) if agent else 'backend: "python"'
    (model / "config.pbtxt").write_text(config)
    core = new_core()
    files = len(os.listdir("/proc/self/fd"))
    if agent:
        with pytest.raises(RepoAgentError) as refused:
            core.load("m")
        assert "RecursionError" not in str(refused.value)
        assert "Too many open files" not in str(refused.value)
        assert "\n" not in str(refused.value).strip("\n;")
    assert len(os.listdir("/proc/self/fd")) <= files + 8
    core.load("good")


def ready(core: ServingCore) -> set[str]:
    return {entry["name"] for entry in core.index(ready_only=True)}


@pytest.mark.slow
def test_a_repository_with_such_a_model_can_be_polled(new_core: NewCore, repository: Path, model: Path) -> None:
    good = repository / "good"
    shutil.copytree(model / "1", good / "1")
    for place in (good, model):
        (place / "config.pbtxt").write_text('backend: "python"')
    core = new_core(control_mode=ControlMode.POLL)
    assert ready(core) >= {"good"}
    shutil.rmtree(good)
    core.poll()
    assert "good" not in ready(core)


@pytest.mark.slow
def test_a_snapshot_ends_at_the_limit(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsafePathError, match=f"more than {DEEPEST} directories in one another"):
        snapshot(model, tmp_path / "copy")


@pytest.mark.slow
def test_links_do_not_lead_deeper_than_names_may(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "/".join(["d"] * 100)).mkdir(parents=True)
    (root / "/".join(["d"] * 100) / "e" / "/".join(["d"] * 50)).mkdir(parents=True)
    (root / "on").symlink_to("d/" * 100 + "e")
    assert list_beneath(root, "on") == ["d"]
    with pytest.raises(UnsafePathError, match="directories in one another"):
        list_beneath(root, "on/" + "/".join(["d"] * 40))


def commands(model: Path, tmp_path: Path) -> list[Callable[[], object]]:
    (tmp_path / "key.pem").write_bytes(public_pem(ec.generate_private_key(ec.SECP256R1())))
    (model / "model.sig").write_text("{}")
    return [
        lambda: CliRunner().invoke(verify_command, [str(model), "--public-key", str(tmp_path / "key.pem")]),
        lambda: CliRunner().invoke(checksum, ["write", str(model)]),
    ]


@pytest.mark.slow
def test_the_commands_end_with_a_message(model: Path, tmp_path: Path) -> None:
    for command in commands(model, tmp_path):
        result = command()
        assert result.exit_code in (1, 2), result  # type: ignore[attr-defined]
