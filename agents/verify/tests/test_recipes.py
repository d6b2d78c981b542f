"""The recipes of the README, as they stand there: signed by others, demanded by a policy, loaded by the loader."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from repoagent_verify.cli import sign_command, verify_command
from repoagent_verify.manifest import Serialization
from repoagent_verify.options import parse_parameters
from repoagent_verify.signing import read_identity, sign

from agents.verify.tests.issuing import NOW, issue, key_pem, public_pem
from agents.verify.tests.private_sigstore import IDENTITY, ISSUER, PrivateSigstore, new_key
from agents.verify.tests.sigstore_servers import SigstoreServers, token
from agents.verify.tests.test_keyless import payload_of
from repoagent.api import InvalidArgumentError, Parameters
from repoagent.errors import RepoAgentError
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.loader import Loader
from repoagent.loader.policy import PolicyPlanner, read_policy
from repoagent.storage.repositories.sources import open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot

README = (Path(__file__).parents[1] / "README.md").read_text()
WORKFLOW = f"{IDENTITY.partition('@')[0]}@refs/tags/*"
Load = Callable[..., dict[str, Any]]


@pytest.fixture
def load(tmp_path: Path, model: Path) -> Load:
    """Load the model under a policy that has ``trust_root`` and demands verify with the parameters; its report."""

    def run(trust_root: bytes, **parameters: str) -> dict[str, Any]:
        (tmp_path / "root").write_bytes(trust_root)
        pairs = [["trust_root", "vendor"], *([name, value] for name, value in parameters.items())]
        (tmp_path / "policy.toml").write_text(
            '[[rule]]\nmodels = ["*"]\nmode = "enforce"\ntrust_roots = { vendor = "root" }\n'
            f"before = [ {{ agent = 'verify', parameters = {json.dumps(pairs)} }} ]\n"
        )
        (model / "config.pbtxt").touch()
        with ExitStack() as stack:
            workspace = stack.enter_context(WorkspaceRoot(tmp_path / "workspace"))
            planner = PolicyPlanner(read_policy(tmp_path / "policy.toml"), AgentRegistry(None))
            loader = Loader(AgentRegistry(None), workspace, planner=planner)
            stack.callback(loader.close)
            chain = loader.load(open_source("m", str(model)))
            chain.complete()
            chain.unload()
            chain.unload_complete()
            return dict(chain.report.to_dict()["entries"][0]["actions"][0])

    return run


def test_the_readme_has_the_recipes() -> None:
    for title in ("A vendor's signed model", "A chain of certificates", "Keyless, in CI", "Old certificates"):
        assert f"**{title}.**" in README
    pairs = re.findall(r'\["(\w+)", "([^"]+)"\]', README)
    assert parse_parameters(Parameters(pairs)).identity == WORKFLOW
    assert dict(pairs)["issuer"] == ISSUER


# -- a vendor's signed model: NVIDIA NGC -------------------------------------------------------------------------------


def test_a_vendors_model_is_verified_below_a_configuration_of_ones_own(load: Load, model: Path) -> None:
    """What NVIDIA's page describes: a certificate of the vendor's own authority, the signature beside the files."""
    root = issue("NVIDIA root", authority=True)
    middle = issue("NVIDIA models", root, authority=True)
    leaf = issue("NGC", middle)
    identity = read_identity(leaf.key_pem, None, [leaf.pem, middle.pem])
    (model / "1" / "model.sig").write_bytes(sign(model / "1", identity, Serialization(), signature="model.sig"))
    (model / "config.pbtxt").write_text("max_batch_size: 4")
    report = load(root.pem, directory="*", subject="CN=NGC")
    assert "2 files signed by CN=NGC; method certificate" in str(report["notes"])
    with pytest.raises(RepoAgentError, match="signed by 'CN=NGC', expected 'CN=Other'"):
        load(root.pem, directory="*", subject="CN=Other")
    (model / "1" / "model.onnx").write_bytes(b"other")
    with pytest.raises(RepoAgentError, match=r"1: changed after signing: model\.onnx"):
        load(root.pem, directory="*", subject="CN=NGC")


# -- a key of one's own ------------------------------------------------------------------------------------------------


def test_a_key_of_ones_own_by_the_command_line(load: Load, model: Path, tmp_path: Path) -> None:
    key = new_key()
    (tmp_path / "signer.key").write_bytes(key_pem(key))
    arguments = [str(model), "--key", str(tmp_path / "signer.key")]
    assert CliRunner().invoke(sign_command, arguments).exit_code == 0
    assert "method key" in str(load(public_pem(key))["notes"])
    with pytest.raises(RepoAgentError, match="which is not trusted; trusted: "):
        load(public_pem(new_key()))


# -- a chain of certificates, one of which is revoked or expired -------------------------------------------------------


def test_a_chain_of_certificates_and_a_list_of_revoked_ones(load: Load, model: Path, tmp_path: Path) -> None:
    root = issue("root", authority=True)
    middle = issue("middle", root, authority=True)
    leaf = issue("Models", middle)
    for name, data in {"leaf.key": leaf.key_pem, "leaf.pem": leaf.pem, "middle.pem": middle.pem}.items():
        (tmp_path / name).write_bytes(data)
    chain = ["--certificate", str(tmp_path / "leaf.pem"), "--certificate", str(tmp_path / "middle.pem")]
    signed = CliRunner().invoke(sign_command, [str(model), "--key", str(tmp_path / "leaf.key"), *chain])
    assert signed.exit_code == 0, signed.output
    assert "signed by CN=Models" in str(load(root.pem, subject="CN=Models")["notes"])

    builder = x509.CertificateRevocationListBuilder().issuer_name(middle.certificate.subject)
    entry = x509.RevokedCertificateBuilder().serial_number(leaf.certificate.serial_number).revocation_date(NOW)
    builder = builder.add_revoked_certificate(entry.build()).last_update(NOW).next_update(NOW + timedelta(5))
    revoked = builder.sign(middle.key, hashes.SHA256()).public_bytes(Encoding.PEM)
    with pytest.raises(RepoAgentError, match="the certificate 'CN=Models' was revoked by 'CN=middle'"):
        load(root.pem + revoked, subject="CN=Models")


def test_an_old_certificate_needs_its_moment(load: Load, model: Path) -> None:
    root = issue("root", authority=True, days=(-400, 10))
    leaf = issue("Models", root, days=(-300, -200))
    identity = read_identity(leaf.key_pem, None, [leaf.pem])
    (model / "config.pbtxt").touch()
    (model / "model.sig").write_bytes(sign(model, identity, Serialization(), signature="model.sig"))
    with pytest.raises(RepoAgentError, match="the certificate 'CN=Models' expired at "):
        load(root.pem, subject="CN=Models")
    moment = (NOW - timedelta(250)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert "signed by CN=Models" in str(load(root.pem, subject="CN=Models", at=moment)["notes"])


# -- keyless, in CI ----------------------------------------------------------------------------------------------------


@pytest.fixture
def sigstore(model: Path) -> PrivateSigstore:
    pytest.importorskip("sigstore")
    sigstore = PrivateSigstore()
    (model / "config.pbtxt").touch()
    (model / "model.sig").write_text(json.dumps(sigstore.bundle(payload_of(model))))
    return sigstore


def test_a_model_that_ci_signed_is_demanded_by_its_workflow(load: Load, model: Path, sigstore: PrivateSigstore) -> None:
    report = load(sigstore.trusted_root(), identity=WORKFLOW, issuer=ISSUER)
    assert f"3 files signed by {IDENTITY} (issuer {ISSUER}); method sigstore" in str(report["notes"])
    with pytest.raises(RepoAgentError, match=r"expected 'https://github\.com/acme/other/"):
        load(sigstore.trusted_root(), identity=WORKFLOW.replace("models", "other"), issuer=ISSUER)
    with pytest.raises(RepoAgentError, match="the keyless signature does not hold"):
        load(PrivateSigstore().trusted_root(), identity=WORKFLOW, issuer=ISSUER)
    (model / "1" / "model.onnx").write_bytes(b"other")
    with pytest.raises(RepoAgentError, match=r"changed after signing: 1/model\.onnx"):
        load(sigstore.trusted_root(), identity=WORKFLOW, issuer=ISSUER)


def test_what_the_client_of_ci_signs_is_demanded_by_its_workflow(
    load: Load, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way, with Sigstore's own client: a token of CI, a certificate for it, a signature, an entry in the log.

    ``model_signing sign sigstore`` makes the same statement and gives it to the same client.
    """
    pytest.importorskip("sigstore")
    from sigstore.dsse import Statement
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityToken
    from sigstore.sign import SigningContext

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (model / "config.pbtxt").touch()
    sigstore = PrivateSigstore()
    with SigstoreServers(sigstore) as servers:
        context = SigningContext.from_trust_config(ClientTrustConfig.from_json(servers.trust_config()))
        identity = IdentityToken(token(IDENTITY.removeprefix("https://github.com/"), ISSUER))
        with context.signer(identity) as signer:
            bundle = signer.sign_dsse(Statement(payload_of(model)))
    (model / "model.sig").write_text(bundle.to_json())
    report = load(sigstore.trusted_root(), identity=WORKFLOW, issuer=ISSUER)
    assert f"3 files signed by {IDENTITY} (issuer {ISSUER}); method sigstore" in str(report["notes"])
    with pytest.raises(RepoAgentError, match="another issuer than"):
        load(sigstore.trusted_root(), identity=WORKFLOW, issuer="https://accounts.google.com")


def test_a_root_of_sigstore_without_an_identity_refuses_every_model(
    load: Load, model: Path, sigstore: PrivateSigstore
) -> None:
    with pytest.raises(RepoAgentError, match="everyone can sign with that: give 'identity' and 'issuer'"):
        load(sigstore.trusted_root())
    with pytest.raises(RepoAgentError, match="'identity' is given without a root of Sigstore"):
        load(public_pem(new_key()), identity=WORKFLOW, issuer=ISSUER)
    shutil.copy(model / "model.sig", model / "other.sig")
    with pytest.raises(RepoAgentError, match=r"not signed: other\.sig"):
        load(sigstore.trusted_root(), identity=WORKFLOW, issuer=ISSUER)


@pytest.mark.parametrize(
    ("identity", "issuer"),
    [
        ("a@b.example", None),
        (None, ISSUER),
        ("*", ISSUER),
        ("*@vendor.example", ISSUER),
        ("https://github.com/*", ISSUER),
        ("https://github.com/acme/*@refs/tags/v1", ISSUER),
        ("https://github.com/acme/m/.github/workflows/a.yml@*", ISSUER),
        ("", ISSUER),
        ("a@b.example", ""),
    ],
)
def test_an_identity_that_stands_for_too_many_is_refused(identity: str | None, issuer: str | None) -> None:
    given = [("identity", identity), ("issuer", issuer)]
    pairs = [("trust_root", "x"), *((name, value) for name, value in given if value is not None)]
    with pytest.raises(InvalidArgumentError, match=r"needs both|is not valid: give the whole of it"):
        parse_parameters(Parameters(pairs))


def test_the_command_line_takes_a_root_and_an_identity(model: Path, sigstore: PrivateSigstore, tmp_path: Path) -> None:
    (tmp_path / "trusted_root.json").write_bytes(sigstore.trusted_root())
    root = [str(model), "--sigstore-root", str(tmp_path / "trusted_root.json")]
    good = CliRunner().invoke(verify_command, [*root, "--identity", WORKFLOW, "--issuer", ISSUER])
    assert good.exit_code == 0, good.output
    assert f"signed by {IDENTITY} (issuer {ISSUER}) (method sigstore)" in good.output
    for more in ([], ["--identity", IDENTITY], ["--identity", "a@b.example", "--issuer", ISSUER]):
        assert CliRunner().invoke(verify_command, [*root, *more]).exit_code == 1
