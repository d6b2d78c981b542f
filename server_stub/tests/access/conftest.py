"""A real core whose every front end is guarded by one access file, and clients of every kind."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from repoagent_server.access import Denied
from repoagent_server.access.access_file import AccessChange, AccessFile
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served
from repoagent_server.handlers.shared_memory import Regions
from repoagent_server.http.api import api_service, metrics_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.http.service import ServiceFactory
from repoagent_server.shared.grpc_options import GrpcOptions

from repoagent.audit.log import AuditLog
from repoagent.serving.core import ServingCore
from server_stub.tests.cores import every_model
from server_stub.tests.served import identity

PATIENCE: Final = 120
ISSUER: Final = "https://login.test/"
AUDIENCE: Final = "models"

_ENSEMBLE: Final = """
platform: "ensemble"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
ensemble_scheduling {
  step [ {
    model_name: "shared" model_version: -1
    input_map { key: "INPUT0" value: "X" }
    output_map { key: "OUTPUT0" value: "Y" }
  } ]
}
"""


@contextmanager
def client_of(service: ServiceFactory) -> Iterator[httpx.Client]:
    """A client of a port with ``service`` alone."""
    front = HttpFrontend(Endpoint(port=0), service)
    front.start()
    try:
        with httpx.Client(base_url="http://{}:{}".format(*front.bind())) as http:
            yield http
    finally:
        front.stop()


def digest(key: str) -> str:
    """A key as the access file has it."""
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def client(name: str, *, models: str = "*", rights: str = "infer metadata manage", **more: Any) -> str:
    """A table of the access file. Without ``more`` the client's key is ``NAME-key``."""
    more = more or {"keys": [digest(f"{name}-key")]}
    lines = [f"{key} = {json.dumps(value)}" for key, value in more.items() if not isinstance(value, dict)]
    lines += [
        f"{key} = {{ {', '.join(f'{json.dumps(k)} = {json.dumps(v)}' for k, v in value.items())} }}"
        for key, value in more.items()
        if isinstance(value, dict)
    ]
    lines += [f"models = {json.dumps(models.split())}", f"rights = {json.dumps(rights.split())}"]
    return "\n".join([f"[clients.{name}]", *lines, ""])


@dataclass
class Issuer:
    """Someone who signs tokens."""

    folder: Path
    key: Any = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def table(self, name: str = "corp", **more: Any) -> str:
        """Its table in the access file; the key set lies beside that."""
        fields = {"issuer": ISSUER, "audience": AUDIENCE, "algorithms": ["ES256"], "key_set": "keys.json", **more}
        return "\n".join([f"[issuers.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items()), ""])

    def public(self, kid: str = "one") -> dict[str, Any]:
        """The public key as an entry of a key set."""
        entry: dict[str, Any] = ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {**entry, "kid": kid, "use": "sig"}

    def publish(self, *entries: Mapping[str, Any]) -> None:
        """Write the key set."""
        temporary = self.folder / "keys.new"
        temporary.write_text(json.dumps({"keys": list(entries or [self.public()])}))
        temporary.rename(self.folder / "keys.json")

    def token(self, *, headers: Mapping[str, Any] | None = None, seconds: float = 600.0, **claims: Any) -> str:
        """A token that is good for ``seconds``."""
        told = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + seconds, **claims}
        made: str = jwt.encode(told, self.key, "ES256", headers={"kid": "one", **(headers or {})})
        return made


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    made = Issuer(tmp_path)
    made.publish()
    return made


Follow = Callable[..., AccessFile]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the access file of :func:`follow` lies."""
    return tmp_path / "access.toml"


@pytest.fixture
def follow(path: Path) -> Iterator[Follow]:
    """Write tables into an access file, and follow it until the end of the test."""
    with ExitStack() as stack:

        def start(*tables: str, **options: Any) -> AccessFile:
            path.write_text("\n".join(tables))
            return stack.enter_context(AccessFile(path, **options))

        yield start


@dataclass(frozen=True)
class Guarded:
    """Front ends over one core, and their access file."""

    core: ServingCore
    file: AccessFile
    path: Path
    issuer: Issuer
    denied: list[Denied]
    http: str
    metrics: str
    grpc: str
    audit: Path
    changes: SimpleQueue[AccessChange]
    """What the access file has reported."""

    def audited(self) -> list[dict[str, Any]]:
        """The lines of the core's audit log."""
        return [json.loads(line) for line in self.audit.read_text().splitlines()]

    def write(self, *tables: str) -> None:
        """Replace the access file as an operator does, and return once it is in force."""
        text = "\n".join(tables)
        if text != self.path.read_text():
            replace_file(self.path, text)
            until_read(self.changes, self.path)


def replace_file(path: Path, text: str) -> None:
    """Write ``text`` beside ``path``, then rename it."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.rename(path)


def until_read(changes: SimpleQueue[AccessChange], path: Path) -> AccessChange:
    """The report of what ``path`` holds now, once it has come."""
    wanted = hashlib.sha256(path.read_bytes()).hexdigest()
    while True:
        change = changes.get(timeout=PATIENCE)
        if change.sources[str(path)] == wanted:
            return change


OTHERS: Final = ("infer", "metadata", "manage")


def tables(issuer: Issuer) -> list[str]:
    """Clients of every kind. ``without-R`` has all rights but R; ``eu`` has all rights for one model."""
    return [
        issuer.table(),
        client("root"),
        client("eu", models="fraud-eu"),
        client("fraud", models="fraud-*", rights="infer metadata"),
        *(client(f"without-{right}", rights=" ".join(one for one in OTHERS if one != right)) for right in OTHERS),
        client("people", issuer="corp"),
    ]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Models ``fraud-eu``, ``fraud-us``, ``shared``, and ``fraud-all``, an ensemble of ``shared``."""
    folder = tmp_path_factory.mktemp("guarded")
    for name in ("fraud-eu", "fraud-us", "shared"):
        identity(folder / "models", name, "FP32", batch=8)
    (folder / "models" / "fraud-all").mkdir()
    (folder / "models" / "fraud-all" / "config.pbtxt").write_text(_ENSEMBLE)
    issuer = Issuer(folder)
    issuer.publish()
    path = folder / "access.toml"
    path.write_text("\n".join(tables(issuer)))
    with ExitStack() as stack:
        audit = AuditLog(folder / "audit.log", sync=False)
        stack.callback(audit.close)
        core = stack.enter_context(ServingCore(replace(every_model(folder), audit=audit)))
        file = stack.enter_context(AccessFile(path))
        changes: SimpleQueue[AccessChange] = SimpleQueue()
        file.observe(changes.put)
        denied: list[Denied] = []
        file.access.observe(denied.append)
        regions = Regions(allowed=True)
        stack.callback(regions.close)

        def page() -> str:
            return "page 1\n"

        fronts: list[Any] = [
            HttpFrontend(
                Endpoint(port=0),
                api_service(
                    Served(core, allow_load_parameters=True, regions=regions, access=file.access),
                    metrics=page,
                    openai=True,
                    ui=True,
                ),
            ),
            HttpFrontend(Endpoint(port=0), metrics_service(page, file.access)),
            GrpcFrontend(
                Served(core, allow_load_parameters=True, regions=regions, access=file.access), GrpcOptions(port=0)
            ),
        ]
        for front in fronts:
            stack.callback(front.stop)
            front.start()
        ports = [front.bind()[1] for front in fronts]
        yield Guarded(
            core,
            file,
            path,
            issuer,
            denied,
            f"http://127.0.0.1:{ports[0]}",
            f"http://127.0.0.1:{ports[1]}",
            f"127.0.0.1:{ports[2]}",
            folder / "audit.log",
            changes,
        )
