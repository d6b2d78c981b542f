"""``tpm:`` against a TPM in software, which seals and unseals as a chip does."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.providers import tpm
from repoagent_decrypt.providers.tpm import fetch

from repoagent.api import InvalidArgumentError, UnavailableError, UnsupportedError

Seal = Callable[..., str]
PROGRAMS = ("swtpm", "tpm2_unseal", "tpm2_create")
needs_tpm = pytest.mark.skipif(
    not all(shutil.which(program) for program in PROGRAMS), reason="swtpm and tpm2-tools are not installed"
)


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A running TPM. The directory is short because the names of sockets must be."""
    with tempfile.TemporaryDirectory(prefix="tpm", dir="/tmp") as directory:
        sockets = [f"--ctrl=type=unixio,path={directory}/s.ctrl", f"--server=type=unixio,path={directory}/s"]
        command = ["swtpm", "socket", "--tpm2", f"--tpmstate=dir={directory}", *sockets, "--flags=startup-clear"]
        # As a daemon: the command returns once its child listens.
        subprocess.run([*command, "--daemon", f"--pid=file={directory}/pid"], check=True)
        monkeypatch.setenv("TPM2TOOLS_TCTI", f"swtpm:path={directory}/s")
        try:
            yield Path(directory)
        finally:
            os.kill(int(Path(directory, "pid").read_text()), signal.SIGKILL)


@pytest.fixture
def seal(chip: Path) -> Seal:
    def run(*command: str, given: bytes = b"") -> None:
        subprocess.run(command, cwd=chip, check=True, capture_output=True, input=given)
        for kind in ("-t", "-l", "-s"):  # no resource manager makes room for the next command
            subprocess.run(["tpm2_flushcontext", kind], cwd=chip, check=True, capture_output=True)

    def make(secret: bytes, registers: str | None = None, handle: str = "0x81000001") -> str:
        run("tpm2_createprimary", "-C", "o", "-c", "primary.ctx")
        policy = []
        if registers is not None:
            run("tpm2_createpolicy", "--policy-pcr", "-l", registers, "-L", "policy")
            policy = ["-L", "policy"]
        run("tpm2_create", "-C", "primary.ctx", "-u", "pub", "-r", "priv", "-i", "-", *policy, given=secret)
        run("tpm2_load", "-C", "primary.ctx", "-u", "pub", "-r", "priv", "-c", "sealed.ctx")
        run("tpm2_evictcontrol", "-C", "o", "-c", "sealed.ctx", handle)
        return f"tpm:{handle}"

    return make


@pytest.mark.slow
@needs_tpm
def test_a_sealed_identity_comes_back(seal: Seal) -> None:
    secret = X25519Identity.generate().export().encode() + b"\n"
    assert fetch(seal(secret)) == secret


@pytest.mark.slow
@needs_tpm
def test_a_secret_under_a_policy_needs_the_registers_as_they_were(seal: Seal, chip: Path) -> None:
    reference = seal(b"secret", "sha256:0,16")
    assert fetch(f"{reference}?pcrs=sha256:0,16") == b"secret"
    with pytest.raises(UnavailableError, match=r"does not unseal the key reference tpm:0x81000001"):
        fetch(reference)
    digest = "sha256=" + "1" * 64
    subprocess.run(["tpm2_pcrextend", f"16:{digest}"], check=True, capture_output=True)
    with pytest.raises(UnavailableError, match="does not unseal"):
        fetch(f"{reference}?pcrs=sha256:0,16")


@needs_tpm
def test_an_empty_handle_is_unavailable(chip: Path) -> None:
    with pytest.raises(UnavailableError, match="does not unseal the key reference tpm:0x81000009"):
        fetch("tpm:0x81000009")


@pytest.mark.parametrize(
    "uri",
    ["tpm:", "tpm:0x80000001", "tpm:/etc/passwd", "tpm:0x81000001/../x", "tpm://host/0x81000001", "tpm:-h"],
)
def test_what_is_not_a_persistent_handle_is_refused(uri: str) -> None:
    with pytest.raises(InvalidArgumentError, match="should look like tpm:0x81000001"):
        fetch(uri)


@pytest.mark.parametrize("registers", ["", "0,7", "sha256:", "sha256:0;id", "sha256:0+sha1:1"])
def test_registers_of_another_form_are_refused(registers: str) -> None:
    with pytest.raises(InvalidArgumentError, match="should look like sha256:0,7"):
        fetch(f"tpm:0x81000001?pcrs={registers}")


def test_a_machine_without_the_tools_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpm, "_PROGRAM", "no-such-program-of-a-tpm")
    with pytest.raises(UnsupportedError, match="install tpm2-tools"):
        fetch("tpm:0x81000001")


def test_the_program_inherits_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "tpm2_unseal"
    program.write_text("#!/bin/sh\nenv\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("REPOAGENT_SERVE_HTTP_RESTRICTED_API", "MODEL_KEY", "TPM2TOOLS_TCTI"):
        monkeypatch.setenv(name, "value")
    names = {line.partition("=")[0] for line in fetch("tpm:0x81000001").decode().splitlines()}
    assert {"PATH", "TPM2TOOLS_TCTI"} <= names
    assert not names & {"REPOAGENT_SERVE_HTTP_RESTRICTED_API", "MODEL_KEY"}
