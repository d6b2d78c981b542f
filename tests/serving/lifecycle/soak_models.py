"""The models of test_soak.py: of random kinds, in a directory or on an S3 server that can be stopped."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from tests.serving.lifecycle.raising_agents import AGENTS
from tests.serving.mixed_models import double_onnx

MODELS: Final = ("a", "b", "c", "d", "e", "f")
_WRITING: Final = {name: threading.Lock() for name in MODELS}

_TENSORS: Final = (
    'input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] } output { name: "y" data_type: TYPE_FP32 dims: [-1, 4] } '
)
_PYTHON: Final = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        if {fails}:
            raise RuntimeError("made on purpose")

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x * np.float32(2))]) for x in inputs]
"""
_ENSEMBLE: Final = (
    f'platform: "ensemble" {_TENSORS} ensemble_scheduling {{ step {{ '
    'model_name: "MEMBER" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } } '
)


def model_files(name: str, chance: random.Random) -> dict[str, bytes]:
    """A model of a random kind, with a random chain, and one or two versions."""
    agents = chance.choices(AGENTS, k=chance.randint(0, 4))
    chain = "".join(f'agents {{ name: "{agent}" }} ' for agent in agents)
    agents_of = f"model_repository_agents {{ {chain} }} " if agents else ""
    settings = agents_of + f"instance_group {{ kind: KIND_CPU count: {chance.randint(1, 3)} }} "
    versions = chance.sample((1, 2, 3), chance.randint(1, 3))
    settings += (
        f'version_policy {{ all {{}} }} parameters {{ key: "try" value {{ string_value: "{chance.randint(1, 2)}" }} }} '
    )
    if name in ("e", "f") and chance.random() < 0.7:
        member = "abcd"[chance.randrange(4)] if name == "e" else chance.choice("abe")
        return {"config.pbtxt": (_ENSEMBLE.replace("MEMBER", member) + agents_of).encode()}
    if chance.random() < 0.5:
        return {
            "config.pbtxt": f'backend: "onnxruntime" {_TENSORS}{settings}'.encode(),
            **{f"{version}/model.onnx": double_onnx() for version in versions},
        }
    code = {version: _PYTHON.format(fails=chance.random() < 0.05) for version in versions}
    return {
        "config.pbtxt": f'backend: "python" {_TENSORS}{settings}'.encode(),
        **{f"{version}/model.py": text.encode() for version, text in code.items()},
    }


def write_local(repository: Path, name: str, files: dict[str, bytes]) -> None:
    """In the place of what was there, one writer at a time. Loads may see it half done: that is the point."""
    with _WRITING[name]:
        _write_local(repository / name, files)


def _write_local(directory: Path, files: dict[str, bytes]) -> None:
    wanted = {directory / path for path in files}
    for path in [path for path in directory.rglob("*") if path.is_file() and path not in wanted]:
        path.unlink()
    for path in [path for path in directory.glob("*") if path.is_dir() and not any(path.iterdir())]:
        path.rmdir()
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        if not (directory / name).exists() or (directory / name).read_bytes() != content:  # Else its version is kept.
            (directory / name).write_bytes(content)


class Store:
    """An S3 server in a process of its own, which can be stopped."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(
            AWS_ACCESS_KEY_ID="test-id",
            AWS_SECRET_ACCESS_KEY="test-secret",
            AWS_DEFAULT_REGION="us-east-1",
            AWS_EC2_METADATA_DISABLED="true",
            NO_PROXY="127.0.0.1",
        )
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _wait_for(port)
        import s3fs

        endpoint = f"http://127.0.0.1:{port}"
        self._fs = s3fs.S3FileSystem(endpoint_url=endpoint, use_listings_cache=False)
        self._fs.mkdir("models")
        self.url = f"s3://{endpoint}/models"

    def write(self, name: str, files: dict[str, bytes]) -> None:
        """As :func:`write_local`."""
        with _WRITING[name]:
            for path in self._fs.find(f"models/{name}"):
                if path.removeprefix(f"models/{name}/") not in files:
                    self._fs.rm_file(path)
            for path, content in files.items():
                self._fs.pipe_file(f"models/{name}/{path}", content)

    def stop_for(self, seconds: float) -> None:
        """Answer nobody for so long."""
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("the S3 server does not answer")
