"""A server with the page, with and without access control, and models that loaded, wait, or were refused."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from repoagent_server.access.access_file import AccessFile
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend

from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from server_stub.tests.served import identity

KEYS = {"boss": "infer metadata manage", "viewer": "metadata"}


@dataclass(frozen=True)
class Page:
    """Where the page is, and the core behind it."""

    url: str
    core: ServingCore


def _checked(folder: Path, name: str, digest: str) -> None:
    identity(folder, name, "FP32", "[4]", batch=8)
    config = folder / name / "config.pbtxt"
    agent = f'name: "checksum" parameters {{ key: "SHA256:1/model.py" value: "{digest}" }}'
    config.write_text(f"{config.read_text()}model_repository_agents {{ agents {{ {agent} }} }}\n")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingCore]:
    """Models ``good`` (loaded through an agent), ``wrong`` (its agent refuses it), ``later`` (not loaded)."""
    folder = tmp_path_factory.mktemp("page")
    models = folder / "models"
    for name in ("good", "wrong", "later"):
        _checked(models, name, "0" * 64)
    digest = hashlib.sha256((models / "good" / "1" / "model.py").read_bytes()).hexdigest()
    for name in ("good", "later"):
        config = models / name / "config.pbtxt"
        config.write_text(config.read_text().replace("0" * 64, digest))
    options = CoreOptions(
        repositories=(str(models),),
        control_mode=ControlMode.EXPLICIT,
        startup_models=("good", "wrong"),
        workspace_directory=folder / "work",
        cache_directory=folder / "cache",
        exit_on_error=False,
    )
    with ServingCore(options) as core:
        yield core


@pytest.fixture(scope="module")
def serve(core: ServingCore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Page]]:
    with ExitStack() as stack:

        def start(*, access: bool = False, explicit: bool = True, ui: bool = True) -> Page:
            rules = None
            if access:
                path = tmp_path_factory.mktemp("access") / "access.toml"
                path.write_text("\n".join(_client(name, rights) for name, rights in KEYS.items()))
                rules = stack.enter_context(AccessFile(path)).access
            service = api_service(Served(core, access=rules), ui=ui, explicit=explicit)
            front = HttpFrontend(Endpoint(port=0), service)
            stack.callback(front.stop)
            front.start()
            return Page(f"http://127.0.0.1:{front.bind()[1]}/ui/", core)

        yield start


def _client(name: str, rights: str) -> str:
    digest = hashlib.sha256(f"{name}-key".encode()).hexdigest()
    return f'[clients.{name}]\nkeys = ["sha256:{digest}"]\nmodels = ["*"]\nrights = {rights.split()!r}\n'


@pytest.fixture(scope="module")
def page(serve: Callable[..., Page]) -> Page:
    """Without access control."""
    return serve()


@pytest.fixture(scope="module")
def guarded_page(serve: Callable[..., Page]) -> Page:
    """With clients ``boss`` (all rights) and ``viewer`` (metadata), whose keys are ``NAME-key``."""
    return serve(access=True)
