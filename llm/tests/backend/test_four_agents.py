"""A checkpoint on a web server, signed and encrypted: fetched, verified, decrypted, converted, served."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
from repoagent.errors import RepoAgentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from tests.file_server import FileServer

FOUR = ("fetch", "verify", "decrypt", "convert")


class Vendor:
    """Publishes a checkpoint on a web server, and the operator's model that names where it is."""

    def __init__(self, server: FileServer, place: Path) -> None:
        self.server = server
        self.place = place
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.identity = X25519Identity.generate()
        (place / "signer.pem").write_bytes(public_pem(self.key))
        self.checkpoint = self._checkpoint(place / "checkpoint")

    def _checkpoint(self, folder: Path) -> Path:
        """With weights in two files."""
        words = byte_level()
        synthetic_checkpoint(folder, vocab_size=words.get_vocab_size() + 5)
        words.save(str(folder / "tokenizer.json"))
        whole = Checkpoint(folder)
        tensors = {name: whole.read(name) for name in whole.names()}
        for file in folder.glob("*.safetensors"):
            file.unlink()
        names = list(tensors)
        halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file_name, part in halves.items():
            write_safetensors(folder / file_name, {name: tensors[name] for name in part})
        index = {"weight_map": {name: file_name for file_name, part in halves.items() for name in part}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    def publish(self, *, encrypted: bool = True, altered: Callable[[Path], object] = lambda release: None) -> None:
        """Put the checkpoint on the server; ``altered`` changes it after it was signed, before digests are listed."""
        release = self.place / "release"
        release.mkdir()
        for file in sorted(self.checkpoint.iterdir()):
            if encrypted:
                encrypt_file(file, release / f"{file.name}.age", [self.identity.recipient])
            else:
                shutil.copyfile(file, release / file.name)
        (release / "model.sig").write_bytes(sign(release, Identity(self.key), Serialization(), signature="model.sig"))
        altered(release)
        files = {file.name: file.read_bytes() for file in sorted(release.iterdir())}
        listing = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items())
        files["SHA256SUMS"] = listing.encode()
        self.server.files.update({f"/vendor/{name}": content for name, content in files.items()})
        self.digest = hashlib.sha256(listing.encode()).hexdigest()

    def model(self, *agents: str) -> None:
        """A model that is nothing but its configuration, with ``agents``."""
        parameters = {
            "fetch": {"url": f"{self.server.url}/vendor/", "manifest": f"SHA256SUMS=sha256:{self.digest}"},
            "verify": {"public_key": f"file:{self.place}/signer.pem", "directory": "1", "unsigned": "SHA256SUMS"},
            "decrypt": {"identity": "env:FOUR_AGENTS_IDENTITY"},
            "convert": {"to": "decoder"},
        }
        entries = []
        for name in agents:
            given = "".join(f' parameters {{ key: "{key}" value: "{text}" }}' for key, text in parameters[name].items())
            entries.append(f'{{ name: "{name}"{given} }}')
        folder = self.place / "models" / "m"
        folder.mkdir(parents=True)
        (folder / "config.pbtxt").write_text(f"model_repository_agents {{ agents [ {', '.join(entries)} ] }}")


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    with FileServer() as server:
        made = Vendor(server, tmp_path)
        monkeypatch.setenv("FOUR_AGENTS_IDENTITY", made.identity.export())
        monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", server.host)
        yield made


@contextmanager
def started(place: Path) -> Iterator[ServingCore]:
    """A server over the models; each start has the cache of the one before."""
    options = CoreOptions(
        repositories=(str(place / "models"),),
        control_mode=ControlMode.EXPLICIT,
        workspace_directory=place / "work",
        cache_directory=place / "cache",
        allow_swap=True,
    )
    with ServingCore(options) as core:
        yield core


def answer(core: ServingCore) -> list[str]:
    return Asker(core).ask("hello", max_tokens=12).texts()


def notes(core: ServingCore) -> dict[str, str]:
    """What each agent noted at the load."""
    report = core.report("m")
    assert report is not None
    return {
        entry.agent: "; ".join(note for action in entry.actions if action.action == "LOAD" for note in action.notes)
        for entry in report.entries
    }


def load_fails(place: Path) -> str:
    with started(place) as core:
        with pytest.raises(RepoAgentError) as failure:
            core.load("m")
        text = str(failure.value).rstrip(";\n")
    assert "\n" not in text
    assert str(place) not in text
    return text


@pytest.mark.slow
def test_it_answers_as_the_decoder_that_is_built_of_the_plain_checkpoint(vendor: Vendor, tmp_path: Path) -> None:
    vendor.publish()
    vendor.model(*FOUR)
    build(vendor.checkpoint, tmp_path / "models" / "direct" / "1")
    with started(tmp_path) as core:
        core.load("m")
        core.load("direct")
        assert answer(core) == Asker(core).ask("hello", "direct", max_tokens=12).texts()
        report = core.report("m")
    assert report is not None
    done = [(entry.agent, action.outcome) for entry in report.entries for action in entry.actions[:1]]
    assert done == [(name, "ok") for name in FOUR]


@pytest.mark.slow
def test_the_second_start_takes_the_decoder_from_the_cache_and_asks_no_server(vendor: Vendor, tmp_path: Path) -> None:
    vendor.publish(encrypted=False)
    vendor.model("fetch", "verify", "convert")
    with started(tmp_path) as core:
        core.load("m")
        first, before = notes(core), answer(core)
    assert "built after" in first["convert"]
    assert first["fetch"].startswith("fetched http://")
    asked = len(vendor.server.requests)
    with started(tmp_path) as core:
        core.load("m")
        second = notes(core)
        assert answer(core) == before
    assert "from the cache" in second["convert"]
    assert "/vendor/, from the cache; pinned" in second["fetch"]
    assert len(vendor.server.requests) == asked


@pytest.mark.slow
def test_of_an_encrypted_one_only_what_was_fetched_is_cached(vendor: Vendor, tmp_path: Path) -> None:
    vendor.publish()
    vendor.model(*FOUR)
    for _ in range(2):
        with started(tmp_path) as core:
            core.load("m")
            assert answer(core)
            found = notes(core)
        assert ", not kept: " in found["convert"]
        asked = len(vendor.server.requests)
    assert "from the cache" in found["fetch"]
    assert len(vendor.server.requests) == asked
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [path for path in kept if path.name.endswith(".safetensors.age")]
    plain = {file.read_bytes() for file in vendor.checkpoint.iterdir()}
    assert [path for path in kept if path.name == "genai_config.json" or path.read_bytes() in plain] == []


def _change(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (
            lambda folder: (folder / "b.safetensors").unlink(),
            "agent 'convert': 1: b.safetensors of 2 files with weights is missing; model.safetensors.index.json names",
        ),
        (
            lambda folder: _change(folder, model_type="rwkv"),
            "agent 'convert': 1: model_type 'rwkv' is not supported: the builder knows gpt2, llama",
        ),
        (
            lambda folder: _change(folder, vocab_size=100),
            "but config.json has a vocab_size of 100: they belong to different models",
        ),
    ],
    ids=["a missing shard", "an unknown architecture", "a tokenizer of another model"],
)
def test_a_checkpoint_that_cannot_be_converted_is_refused_in_one_line(
    spoil: Callable[[Path], object], text: str, vendor: Vendor, tmp_path: Path
) -> None:
    spoil(vendor.checkpoint)
    vendor.publish()
    vendor.model(*FOUR)
    assert text in load_fails(tmp_path)


def test_a_file_with_another_digest_is_refused(vendor: Vendor, tmp_path: Path) -> None:
    vendor.publish()
    vendor.model(*FOUR)
    served = vendor.server.files["/vendor/a.safetensors.age"]
    vendor.server.files["/vendor/a.safetensors.age"] = served[:-1] + bytes([served[-1] ^ 1])
    text = load_fails(tmp_path)
    assert re.search(r"agent 'fetch': http://\S+/a\.safetensors\.age has the digest sha256:\w+; expected sha256:", text)


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("alter", "text"),
    [
        (lambda release: _flip(release / "a.safetensors.age"), "changed after signing: a.safetensors.age"),
        (lambda release: (release / "b.safetensors.age").unlink(), "signed, but missing: b.safetensors.age"),
        (lambda release: (release / "extra.age").write_bytes(b"x"), "not signed: extra.age"),
        (lambda release: (release / "model.sig").unlink(), "the model is not signed: there is no model.sig"),
    ],
    ids=["changed", "missing", "added", "not signed"],
)
def test_what_was_changed_after_signing_is_refused(
    alter: Callable[[Path], object], text: str, vendor: Vendor, tmp_path: Path
) -> None:
    vendor.publish(altered=alter)
    vendor.model(*FOUR)
    assert re.search(f"agent 'verify': .*{re.escape(text)}", load_fails(tmp_path))


def test_without_convert_the_model_names_the_agent_that_it_needs(vendor: Vendor, tmp_path: Path) -> None:
    vendor.publish()
    vendor.model("fetch", "verify", "decrypt")
    text = (
        "version directory 1 of model 'm' holds a checkpoint, which no backend runs as it is: name the agent 'convert'"
    )
    assert text in load_fails(tmp_path)


def test_without_decrypt_the_message_names_the_encrypted_files(vendor: Vendor, tmp_path: Path) -> None:
    vendor.publish()
    vendor.model("fetch", "verify", "convert")
    assert "config.json.age is encrypted; name the agent 'decrypt' before 'convert'" in load_fails(tmp_path)
