"""A repository in which an attacker writes, a policy that only the operator writes, and every way to load a model."""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

from repoagent.config import read_text, write_json
from repoagent.errors import RepoAgentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from tests.warm import Warm

Files = Mapping[str, bytes]

_MEMBER_TENSOR: Final = "data_type: TYPE_FP32 dims: [4]"


class Ground:
    """One repository and the cores over it. The model under attack is always called ``m``."""

    def __init__(self, path: Path, stack: ExitStack, warm: Warm) -> None:
        self.path = path
        self.warm = warm
        self.repository = path / "repository"
        self.repository.mkdir()
        self.policy = path / "policy.toml"
        self._stack = stack

    def write(self, files: Files, name: str = "m") -> Path:
        """Put a model into the repository; what was there under its name stays."""
        directory = self.repository / name
        for file, content in files.items():
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            (directory / file).write_bytes(content)
        return directory

    def core(self, policy: str, **options: Any) -> ServingCore:
        """A started core under ``policy``; it is stopped when the test ends."""
        self.policy.write_text(policy)
        settings: dict[str, Any] = {"control_mode": ControlMode.EXPLICIT, "exit_on_error": False}
        core = ServingCore(
            CoreOptions(
                repositories=(str(self.repository),),
                workspace_directory=self.path / "workspace",
                agent_policy=self.policy,
                **settings | options,
            )
        )
        return self._stack.enter_context(core)


Road = Callable[[Ground, str], str]
"""Load ``m`` under a policy in one way; the reason of the refusal, or nothing if it is served."""


def reason_of(core: ServingCore) -> str:
    """Why ``m`` is not served; nothing if it is."""
    if core.model_ready("m"):
        return ""
    return next(str(entry.get("reason")) for entry in core.index() if entry["name"] == "m")


def refusal_of(call: Callable[[], object]) -> str:
    """The text of the error that ``call`` raises; nothing if it raises none."""
    try:
        call()
    except RepoAgentError as error:
        return str(error)
    return ""


def at_the_start(ground: Ground, policy: str) -> str:
    """All models, in control mode NONE."""
    return reason_of(ground.core(policy, control_mode=ControlMode.NONE))


def by_a_load_request(ground: Ground, policy: str) -> str:
    """A load request that brings nothing."""
    core = ground.core(policy)
    return refusal_of(lambda: core.load("m"))


def by_polling(ground: Ground, policy: str) -> str:
    """The model appears while the server runs."""
    elsewhere = ground.path / "elsewhere"
    (ground.repository / "m").rename(elsewhere)
    core = ground.core(policy, control_mode=ControlMode.POLL, poll_seconds=3600)
    elsewhere.rename(ground.repository / "m")
    core.poll()
    return reason_of(core)


def on_demand(ground: Ground, policy: str) -> str:
    """The first request for the model loads it."""
    core = ground.core(policy, on_demand=True)
    array = np.zeros((1, 4), np.float32)
    refusal = refusal_of(lambda: core.infer(InferRequest(Asked("m", {"x": Tensor.of(array)}))))
    return "" if core.model_ready("m") else refusal


def as_a_member(ground: Ground, policy: str) -> str:
    """An ensemble that no rule limits names it."""
    ground.write({"config.pbtxt": _ensemble().encode(), "1/.keep": b""}, "e")
    core = ground.core(f'[[rule]]\nmodels = ["e"]\n{policy}')
    refusal_of(lambda: core.load("e"))
    return reason_of(core)


def by_contents_sent_along(ground: Ground, policy: str) -> str:
    """A load request with the files of the model, and their configuration."""
    directory = ground.repository / "m"
    files = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    config = json.dumps(write_json(read_text(files.pop("config.pbtxt", b"").decode())))
    core = ground.core(policy)
    return refusal_of(lambda: core.load("m", config=config, files=files))


ROADS: Final[Mapping[str, Road]] = {
    "at the start": at_the_start,
    "by a load request": by_a_load_request,
    "by polling": by_polling,
    "on demand": on_demand,
    "as a member": as_a_member,
    "by contents sent along": by_contents_sent_along,
}
"""Each is given a repository with the model ``m`` in it and a policy with a rule for ``m``."""


def _by_command(*words: str) -> Road:
    """Another server is to have the model; the rule that allows a backend names the command, too."""

    def road(ground: Ground, policy: str) -> str:
        ground.policy.write_text(policy.replace('["onnxruntime"]', '["onnxruntime"]\ncommands = ["prepare", "true"]'))
        command, *others = [word.format(model=ground.repository / "m", out=ground.path / "out") for word in words]
        flags = [f"--agent-policy={ground.policy}", f"--workspace-directory={ground.path / 'workspace'}"]
        result = ground.warm.run([command, *flags, "--allow-swap", *others])
        assert result.returncode in (0, 1), result.stderr
        assert result.returncode == 0 or command == "run" or not any((ground.path / "out").iterdir())
        return result.stderr.splitlines()[-1] if result.returncode else ""

    return road


COMMANDS: Final[Mapping[str, Road]] = {
    "by prepare": _by_command("prepare", "--allow-disk", "{model}", "{out}"),
    "by run": _by_command("run", "{model}", "--", "true"),
}
"""As ``ROADS``, to another server."""


def _ensemble() -> str:
    return (
        f'platform: "ensemble" max_batch_size: 8 input [{{ name: "a" {_MEMBER_TENSOR} }}] '
        f'output [{{ name: "b" {_MEMBER_TENSOR} }}] ensemble_scheduling {{ step [{{ model_name: "m" model_version: -1 '
        'input_map { key: "x" value: "a" } output_map { key: "y" value: "b" } }] }'
    )


def sha256(content: bytes) -> str:
    """The digest as ``sha256sum`` prints it."""
    return hashlib.sha256(content).hexdigest()


def digest_list(files: Files) -> bytes:
    """The lines of ``sha256sum`` for ``files``; a digest file does not list itself."""
    listed = {name: content for name, content in files.items() if name != "SHA256SUMS"}
    return b"".join(f"{sha256(content)}  {name}\n".encode() for name, content in listed.items())
