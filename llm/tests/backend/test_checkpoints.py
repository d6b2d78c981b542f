"""A checkpoint of Hugging Face that agents make a model of: verified, decrypted, converted, served."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_llm.builder import build
from repoagent_llm.builder.safetensors import Checkpoint, write_safetensors
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign

from agents.verify.tests.issuing import public_pem
from examples.executor.synthetic import synthetic_checkpoint
from llm.tests.backend.conftest import Asker
from llm.tests.backend.tiny import byte_level
from llm.tests.conftest import need_openvino
from repoagent.errors import RepoAgentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore

pytestmark = pytest.mark.slow

GGUF = Path(__file__).parents[1] / "data" / "gguf"
AGENT = 'model_repository_agents {{ agents [ {{ name: "convert" {} }} ] }}'
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"

Write = Callable[..., Path]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """With its tokenizer, template and generation settings."""
    inner = byte_level()
    folder = synthetic_checkpoint(tmp_path / "checkpoint", vocab_size=inner.get_vocab_size() + 5)
    inner.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2]}')
    return folder


@pytest.fixture
def write(tmp_path: Path, checkpoint: Path) -> Write:
    """A model whose version is the checkpoint, with ``convert`` and these parameters of it."""

    def made(name: str = "m", **parameters: str) -> Path:
        place = tmp_path / "models" / name
        shutil.copytree(checkpoint, place / "1")
        given = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
        (place / "config.pbtxt").write_text(AGENT.format(given) if parameters else "")
        return place / "1"

    return made


def answer(core: ServingCore, model: str = "m") -> list[str]:
    return Asker(core).ask("hello", model, max_tokens=12).texts()


def notes(core: ServingCore, model: str = "m") -> str:
    report = core.report(model)
    assert report is not None
    return json.dumps(report.to_dict())


def test_a_checkpoint_is_served_as_the_decoder_that_is_built_of_it(
    core: ServingCore, write: Write, checkpoint: Path, tmp_path: Path
) -> None:
    write(to="decoder")
    core.load("m")
    build(checkpoint, tmp_path / "models" / "direct" / "1")
    core.load("direct")
    assert answer(core) == answer(core, "direct")
    request = Asker(core).request(json.dumps([{"role": "user", "content": "hello"}]), max_tokens=12)
    request.inputs = {("messages" if name == "text_input" else name): one for name, one in request.inputs.items()}
    assert answer(core, "direct")[0].endswith(Asker(core).send(request).texts()[0])
    assert "built after" in notes(core)


def test_the_second_time_the_result_comes_from_the_cache(core: ServingCore, write: Write) -> None:
    write("first", to="decoder", precision="int4", block="16")
    write("second", to="decoder", precision="int4", block="16")
    core.load("first")
    core.load("second")
    assert "from the cache" in notes(core, "second")
    assert "from the cache" not in notes(core, "first")
    assert answer(core, "first") == answer(core, "second")


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "fp16"},
        {"precision": "int8"},
        {"form": "std"},
        {"form": "std", "capacity": "65"},
        {"lora": "true"},
        {"form": "paged", "precision": "bf16"},
        {"form": "paged", "precision": "int4", "block": "16", "lora": "true"},
    ],
)
def test_forms_and_precisions_are_served(options: dict[str, str], core: ServingCore, write: Write) -> None:
    if options.get("form") == "paged":
        need_openvino()
    write(to="decoder", **options)
    core.load("m")
    assert answer(core)


def test_both_runners_answer_alike(core: ServingCore, write: Write) -> None:
    need_openvino()
    for form in ("gqa", "paged"):
        write(form, to="decoder", form=form)
        core.load(form)
    assert answer(core, "paged") == answer(core, "gqa")


def _shards(folder: Path) -> None:
    """Two files with weights, and the index that names them."""
    whole = Checkpoint(folder)
    names = whole.names()
    tensors = {name: whole.read(name) for name in names}
    for file in folder.glob("*.safetensors"):
        file.unlink()
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file_name, part in halves.items():
        write_safetensors(folder / file_name, {name: tensors[name] for name in part})
    index = {"weight_map": {name: file_name for file_name, part in halves.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_weights_in_several_files_are_one_checkpoint(core: ServingCore, write: Write) -> None:
    _shards(write(to="decoder"))
    core.load("m")
    assert answer(core)


def _change(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def _lose_a_shard(folder: Path) -> None:
    _shards(folder)
    (folder / "b.safetensors").unlink()


def _encrypt_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        file.rename(f"{file}.age")


def _to_gguf(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        file.rename(file.with_suffix(".gguf"))


def _cut(folder: Path) -> None:
    file = next(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (_lose_a_shard, "1: b.safetensors of 2 files with weights is missing; model.safetensors.index.json names it"),
        (lambda folder: _change(folder, model_type="rwkv"), "1: model_type 'rwkv' is not supported: the builder knows"),
        (lambda folder: _change(folder, vocab_size=100), "but config.json has a vocab_size of 100: they belong to"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "1: has no tokenizer.json, a file of Hugging Face's"),
        (lambda folder: (folder / "config.json").unlink(), "1: has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "1: config.json cannot be read"),
        (lambda folder: [file.unlink() for file in folder.glob("*.safetensors")], "1: has no *.safetensors file"),
        (
            _encrypt_weights,
            "1: has no *.safetensors file: model.safetensors.age is encrypted; name the agent 'decrypt'",
        ),
        # M12: the line did not say what the file is, nor which models there are.
        (_to_gguf, "1: has no *.safetensors file: model.gguf is a GGUF file, which is converted without config.json"),
        (_cut, "cut short"),
        (lambda folder: _change(folder, hidden_size=128), "config.json makes it"),
        (lambda folder: _change(folder, quantization_config={"bits": 4}), "a quantized checkpoint is not supported"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_one_clear_message(
    spoil: Callable[[Path], object], text: str, core: ServingCore, write: Write, tmp_path: Path
) -> None:
    spoil(write(to="decoder"))
    with pytest.raises(RepoAgentError) as failure:
        core.load("m")
    assert text in str(failure.value)
    assert str(tmp_path) not in str(failure.value)


@pytest.fixture
def write_gguf(tmp_path: Path) -> Write:
    """A model whose version is a GGUF file, with ``convert`` and these parameters of it."""

    def made(name: str, *files: str, **parameters: str) -> Path:
        place = tmp_path / "models" / name
        (place / "1").mkdir(parents=True)
        for file in files:
            shutil.copy(GGUF / f"{file}.gguf", place / "1")
        given = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
        (place / "config.pbtxt").write_text(AGENT.format(given))
        return place / "1"

    return made


@pytest.mark.parametrize(
    ("name", "precision", "note"),
    [
        ("llama-f32", "fp32", "GGUF with tensors of 12 F32, all of them exact in fp32"),
        ("llama-q4_0", "int4", "rounded to int4; matrices of Q4_0 in layers are taken as they are"),
        ("qwen2-f16", "int8", "rounded to int8"),
    ],
)
def test_a_gguf_file_is_served(name: str, precision: str, note: str, core: ServingCore, write_gguf: Write) -> None:
    place = write_gguf("m", name, to="decoder", precision=precision)
    core.load("m")
    assert note in notes(core)
    assert answer(core)
    request = Asker(core).request(json.dumps([{"role": "user", "content": "hello"}]), max_tokens=12)
    request.inputs = {("messages" if name == "text_input" else name): one for name, one in request.inputs.items()}
    assert Asker(core).send(request).texts()
    data = next(place.glob("*.gguf")).read_bytes()
    next(place.glob("*.gguf")).write_bytes(data[:-100])
    with pytest.raises(RepoAgentError, match=f"1: {name}.gguf: cut short, the tensor"):
        core.load("m")


def test_a_link_out_of_the_model_is_not_followed(core: ServingCore, write_gguf: Write, tmp_path: Path) -> None:
    """Nor is any of what it leads to in the message."""
    place = write_gguf("m", to="decoder")
    (tmp_path / "secret.gguf").write_bytes((GGUF / "llama-f32.gguf").read_bytes().replace(b"llama", b"lemma", 1))
    (place / "x.gguf").symlink_to(tmp_path / "secret.gguf")
    with pytest.raises(RepoAgentError) as failure:
        core.load("m")
    assert "x.gguf" in str(failure.value)
    assert "lemma" not in str(failure.value)
    assert "secret" not in str(failure.value)


def test_a_gguf_model_in_parts_is_served_and_a_part_that_is_a_link_is_not(
    core: ServingCore, write_gguf: Write, tmp_path: Path
) -> None:
    names = [f"qwen3-bf16-0000{number}-of-00003" for number in (1, 2, 3)]
    place = write_gguf("m", *names, to="decoder")
    core.load("m")
    assert answer(core)
    (place / f"{names[2]}.gguf").rename(tmp_path / "secret")
    with pytest.raises(RepoAgentError, match=rf"{names[2]}.gguf cannot be read: No such file"):
        core.load("m")
    (place / f"{names[2]}.gguf").symlink_to(tmp_path / "secret")
    with pytest.raises(RepoAgentError, match=rf"{names[2]}.gguf") as failure:
        core.load("m")
    assert "secret" not in str(failure.value)


def test_of_several_gguf_files_a_parameter_names_one(core: ServingCore, write_gguf: Write) -> None:
    write_gguf("m", "llama-f32", "llama-q4_0", to="decoder")
    with pytest.raises(RepoAgentError, match=r"1: has llama-f32.gguf and llama-q4_0.gguf; the parameter 'input' names"):
        core.load("m")
    write_gguf("n", "llama-f32", "llama-q4_0", to="decoder", input="llama-q4_0.gguf")
    core.load("n")
    assert "9 Q4_0" in notes(core, "n")


def test_a_checkpoint_without_an_agent_names_the_one_that_it_needs(core: ServingCore, write: Write) -> None:
    place = write()
    with pytest.raises(
        RepoAgentError, match=r"holds a checkpoint, .* name the agent 'convert' with the parameter to ="
    ):
        core.load("m")
    (place.parent / "config.pbtxt").write_text('backend: "llm"')
    with pytest.raises(RepoAgentError, match="version directory 1 of model 'm' holds a checkpoint"):
        core.load("m")


def _sum(root: Path) -> None:
    """As ``sha256sum`` does."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files]
    (root / "SHA256SUMS").write_text("".join(sums))


def _sign(root: Path) -> None:
    """As a vendor does whose key lies beside the repository."""
    key = ec.generate_private_key(ec.SECP256R1())
    (root.parents[1] / "vendor.pem").write_bytes(public_pem(key))
    (root / "model.sig").write_bytes(sign(root, Identity(key), Serialization(), signature="model.sig"))


@pytest.mark.parametrize(
    ("first", "parameter", "seal"),
    [("checksum", ("manifest", "SHA256SUMS"), _sum), ("verify", ("public_key", "file:{}/vendor.pem"), _sign)],
)
def test_an_encrypted_checkpoint_goes_through_four_agents_and_answers(
    first: str,
    parameter: tuple[str, str],
    seal: Callable[[Path], None],
    tmp_path: Path,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checked, decrypted, scanned, converted; what is made of a secret lies in memory alone."""
    identity = X25519Identity.generate()
    monkeypatch.setenv("CHECKPOINT_KEY", identity.export())
    place = write("m", to="decoder")
    write("plain", to="decoder")
    for path in sorted(place.iterdir()):
        encrypt_file(path, path.with_name(path.name + ".age"), [identity.recipient])
        path.unlink()
    key, value = parameter[0], parameter[1].format(tmp_path)
    agents = [
        f'{{ name: "{first}" parameters {{ key: "{key}" value: "{value}" }} }}',
        '{ name: "decrypt" parameters { key: "identity" value: "env:CHECKPOINT_KEY" } }',
        '{ name: "scan" }',
        '{ name: "convert" parameters { key: "to" value: "decoder" } }',
    ]
    (place.parent / "config.pbtxt").write_text(f"model_repository_agents {{ agents [ {', '.join(agents)} ] }}")
    seal(place.parent)
    options = CoreOptions(
        repositories=(str(tmp_path / "models"),),
        control_mode=ControlMode.EXPLICIT,
        workspace_directory=tmp_path / "work",
        cache_directory=tmp_path / "cache",
        allow_swap=True,
    )
    with ServingCore(options) as core:
        core.load("m")
        core.load("plain")
        assert answer(core) == answer(core, "plain")
        with (place / "config.json.age").open("ab") as file:
            file.write(b"x")
        with pytest.raises(RepoAgentError, match=r"config.json.age"):
            core.load("m")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"capacity": "65"}, "parameter 'capacity' is for decoders of the form std"),
        ({"form": "std", "capacity": "1"}, "'capacity': '1' is not a whole number from 2 to 257"),
        ({"form": "std", "capacity": "258"}, "'capacity': '258' is not a whole number from 2 to 257"),
    ],
)
def test_a_capacity_fits_the_form_and_the_model(
    options: dict[str, str], text: str, core: ServingCore, write: Write
) -> None:
    write(to="decoder", **options)
    with pytest.raises(RepoAgentError, match=text):
        core.load("m")


def test_other_backends_and_unknown_values_are_refused(core: ServingCore, write: Write) -> None:
    place = write(to="decoder", precision="fp8").parent
    with pytest.raises(RepoAgentError, match="'precision': 'fp8' is not a valid value"):
        core.load("m")
    with (place / "config.pbtxt").open("a") as file:
        file.write('\nbackend: "onnxruntime"')
    with pytest.raises(RepoAgentError, match="makes models of the backend 'llm', but the configuration has 'onnx"):
        core.load("m")
