"""A decoder folder that comes encrypted: decrypted by its agent into memory, gone once it is loaded, and served."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity

from llm.tests.backend.conftest import Asker, WriteModel
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> X25519Identity:
    """An identity that the agent finds as ``env:LLM_KEY``."""
    identity = X25519Identity.generate()
    monkeypatch.setenv("LLM_KEY", identity.export())
    return identity


@pytest.fixture
def core(tmp_path: Path) -> Iterator[ServingCore]:
    options = CoreOptions(
        repositories=(str(tmp_path / "models"),),
        control_mode=ControlMode.EXPLICIT,
        workspace_directory=tmp_path / "work",
        cache_directory=tmp_path / "cache",
        allow_swap=True,
    )
    (tmp_path / "models").mkdir()
    with ServingCore(options) as core:
        yield core


def holding(marker: bytes, root: Path) -> list[Path]:
    """The decoders' configurations below ``root`` that hold ``marker``; others may come and go meanwhile."""
    found = []
    for path in root.glob("**/genai_config.json"):
        with suppress(OSError):
            found += [path] if marker in path.read_bytes() else []
    return found


def test_an_encrypted_decoder_is_decrypted_and_served(
    core: ServingCore, write_llm: WriteModel, key: X25519Identity, tmp_path: Path
) -> None:
    write_llm("plain")
    agent = '{ name: "decrypt" parameters { key: "identity" value: "env:LLM_KEY" } }'
    version = write_llm("secret", f"model_repository_agents {{ agents {agent} }}") / "1"
    marker = os.urandom(8).hex()
    described = json.loads((version / "genai_config.json").read_text())
    (version / "genai_config.json").write_text(json.dumps({**described, "comment": marker}))
    for path in list(version.iterdir()):
        encrypt_file(path, path.with_name(path.name + ".age"), [key.recipient])
        path.unlink()
    for name in ("plain", "secret"):
        core.load(name)
    asker = Asker(core)
    wanted = asker.ask("hello", "plain", max_tokens=20).texts()
    assert not holding(marker.encode(), Path("/dev/shm"))
    assert asker.ask("hello", "secret", max_tokens=20).texts() == wanted
    assert not holding(marker.encode(), tmp_path)
    core.unload("secret", wait=True)
