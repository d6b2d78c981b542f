"""The agent in the real loader, under a policy and without one."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign

from agents.verify.tests.issuing import public_pem
from repoagent.errors import RepoAgentError
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.loader import Loader
from repoagent.loader.policy import PolicyPlanner, read_policy
from repoagent.storage.repositories.sources import open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot

NewLoader = Callable[..., Loader]


@pytest.fixture
def new_loader(tmp_path: Path) -> Iterator[NewLoader]:
    with ExitStack() as stack:
        workspace = stack.enter_context(WorkspaceRoot(tmp_path / "workspace"))

        def new(**options: object) -> Loader:
            loader = Loader(AgentRegistry(None), workspace, **options)  # type: ignore[arg-type]
            stack.callback(loader.close)
            return loader

        yield new


@pytest.fixture
def public_key(tmp_path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    path = tmp_path / "vendor.pem"
    path.write_bytes(public_pem(key))
    return path


def configure(model: Path, **parameters: str) -> None:
    entries = ", ".join(f'parameters {{ key: "{name}" value: "{value}" }}' for name, value in parameters.items())
    (model / "config.pbtxt").write_text(f'model_repository_agents {{ agents [ {{ name: "verify", {entries} }} ] }}')


def load(loader: Loader, model: Path) -> dict[str, Any]:
    chain = loader.load(open_source("m", str(model)))
    report = chain.report.to_dict()["entries"][0]["actions"][0]
    chain.complete()
    chain.unload()
    chain.unload_complete()
    return dict(report)


def test_a_signed_model_loads_and_the_report_names_signer_and_digest(
    new_loader: NewLoader, model: Path, key: ec.EllipticCurvePrivateKey, public_key: Path
) -> None:
    configure(model, public_key=f"file:{public_key}")
    (model / "model.sig").write_bytes(sign(model, Identity(key), Serialization(), signature="model.sig"))
    report = load(new_loader(), model)
    assert str(report["notes"][-1]).startswith("3 files signed by key ")
    assert "the model itself names this agent" in str(report["notes"][-1])
    assert str(report["digests"]).startswith("{'model': 'sha256:")


def test_a_changed_file_refuses_the_model(
    new_loader: NewLoader, model: Path, key: ec.EllipticCurvePrivateKey, public_key: Path
) -> None:
    configure(model, public_key=f"file:{public_key}")
    (model / "model.sig").write_bytes(sign(model, Identity(key), Serialization()))
    (model / "1" / "model.onnx").write_bytes(b"other")
    with pytest.raises(RepoAgentError, match=r"agent 'verify': changed after signing: 1/model\.onnx"):
        load(new_loader(), model)


def test_an_unsigned_model_is_refused(new_loader: NewLoader, model: Path, public_key: Path) -> None:
    configure(model, public_key=f"file:{public_key}")
    with pytest.raises(RepoAgentError, match=r"not signed: there is no model\.sig"):
        load(new_loader(), model)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: path.symlink_to("/etc/hostname"), "'model.sig' is a link"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: subprocess.run(["mkfifo", str(path)], check=True), "neither a file nor a directory"),
        (
            lambda path: subprocess.run(["truncate", "--size=65M", str(path)], check=True),
            "is larger than 67108864 bytes",
        ),
    ],
    ids=["link", "directory", "pipe", "large"],
)
def test_a_signature_that_is_not_a_small_file_is_refused(
    new_loader: NewLoader, model: Path, public_key: Path, make: Callable[[Path], object], text: str
) -> None:
    configure(model, public_key=f"file:{public_key}")
    make(model / "model.sig")
    with pytest.raises(RepoAgentError, match=text):
        load(new_loader(), model)


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"0,", b'"a",'], ids=["lists", "objects", "numbers", "texts"])
def test_a_signature_of_a_million_values_is_refused_before_it_is_parsed(
    new_loader: NewLoader, model: Path, public_key: Path, unit: bytes
) -> None:
    """The parser holds the interpreter lock: 44 MB of empty lists stopped the server for 22 seconds."""
    configure(model, public_key=f"file:{public_key}")
    (model / "model.sig").write_bytes(b'{"mediaType": "", "x": [' + unit * 1_000_000 + b"0]}")
    with pytest.raises(RepoAgentError, match="the signature is not valid JSON: more than 10000 values"):
        load(new_loader(), model)


def test_a_model_that_names_another_file_as_its_key_learns_nothing_of_it(
    new_loader: NewLoader, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "id").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n")
    configure(model, public_key=f"file:{tmp_path / 'id'}")
    with pytest.raises(RepoAgentError, match="there is no usable file for the key reference file:") as raised:
        load(new_loader(), model)
    assert "OPENSSH" not in str(raised.value)
    assert "c2VjcmV0" not in str(raised.value)


def test_a_version_directory_can_be_signed_by_itself(
    new_loader: NewLoader, model: Path, key: ec.EllipticCurvePrivateKey, public_key: Path
) -> None:
    configure(model, public_key=f"file:{public_key}", directory="*")
    (model / "2").mkdir()
    (model / "2" / "model.onnx").write_bytes(b"newer")
    for version in ("1", "2"):
        bundle = sign(model / version, Identity(key), Serialization(), signature="model.sig")
        (model / version / "model.sig").write_bytes(bundle)
    report = load(new_loader(), model)
    assert str(report["notes"][-1]).startswith("3 files signed by")
    (model / "2" / "extra.py").write_bytes(b"")
    with pytest.raises(RepoAgentError, match=r"2: not signed: extra\.py"):
        load(new_loader(), model)


POLICY = """
[[rule]]
models = ["*"]
mode = "enforce"
trust_roots = {{ vendor = "{root}" }}
before = [ {{ agent = "verify", parameters = {{ trust_root = "vendor"{more} }} }} ]
"""


def under_policy(new_loader: NewLoader, tmp_path: Path, root: Path, more: str = "") -> Loader:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.format(root=root, more=more))
    return new_loader(planner=PolicyPlanner(read_policy(policy), AgentRegistry(None)))


def test_a_policy_names_the_trust_root_and_is_strict(
    new_loader: NewLoader, model: Path, key: ec.EllipticCurvePrivateKey, public_key: Path, tmp_path: Path
) -> None:
    loader = under_policy(new_loader, tmp_path, public_key)
    (model / "config.pbtxt").write_text("max_batch_size: 1")
    how = Serialization(ignore_paths=("config.pbtxt",))
    (model / "model.sig").write_bytes(sign(model, Identity(key), how, signature="model.sig"))
    with pytest.raises(RepoAgentError, match=r"not signed: config\.pbtxt"):
        load(loader, model)
    (model / "model.sig").write_bytes(sign(model, Identity(key), Serialization(), signature="model.sig"))
    report = load(loader, model)
    assert report["outcome"] == "ok"
    assert "the model itself" not in str(report["notes"])


def test_a_model_cannot_add_a_trust_root(new_loader: NewLoader, model: Path) -> None:
    configure(model, trust_root="mine")
    with pytest.raises(RepoAgentError, match="has no trust root 'mine' for this model; it has: none"):
        load(new_loader(), model)


def test_the_report_names_every_signer_of_several_directories(
    new_loader: NewLoader, model: Path, key: ec.EllipticCurvePrivateKey, public_key: Path
) -> None:
    """An audit log that names one signer for what two signed says something wrong of the second's files."""
    other = ec.generate_private_key(ec.SECP256R1())
    with public_key.open("ab") as file:
        file.write(public_pem(other))
    for version, signer in (("1", key), ("2", other)):
        (model / version).mkdir(exist_ok=True)
        (model / version / "weights").write_bytes(b"weights")
        bundle = sign(model / version, Identity(signer), Serialization(), signature="model.sig")
        (model / version / "model.sig").write_bytes(bundle)
    configure(model, public_key=f"file:{public_key}", directory="*")
    report = load(new_loader(), model)
    assert len(set(report["signers"])) == 2
    assert all(name in " ".join(report["notes"]) for name in report["signers"])
