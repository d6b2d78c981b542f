"""T11: what a model asks for before it answers anything is limited, and no file keeps a load waiting."""

import io
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from repoagent_decrypt.age.stanzas.scrypt import ScryptRecipient
from repoagent_decrypt.age.writer import encrypt_stream

from repoagent.config import read_text
from repoagent.errors import CancelledError, InvalidArgumentError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.core import ControlMode, ServingCore
from repoagent.storage import DirectoryFiles
from tests.hostile.conftest import NewCore

BASE = (
    'backend: "identity" max_batch_size: 8 '
    'input { name: "INPUT0" data_type: TYPE_FP32 dims: [4] } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [4] } '
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
