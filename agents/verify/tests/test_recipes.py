"""The recipes of the README, as they stand there: signed by others, demanded by a policy, loaded by the loader."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from repoagent_verify.cli import sign_command, verify_command
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import read_identity, sign
from repoagent_verify.verify_options import parse_parameters

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
from tests.file_server import FileServer

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


@pytest.mark.slow
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


@pytest.fixture
def signs(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """``repoagent sign --keyless`` at services of the test."""
    pytest.importorskip("sigstore")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (model / "config.pbtxt").touch()
    sigstore = PrivateSigstore()
    (tmp_path / "trusted_root.json").write_bytes(sigstore.trusted_root())
    with SigstoreServers(sigstore) as servers:
        (tmp_path / "trust_config.json").write_text(servers.trust_config())
        (tmp_path / "token").write_text(token(IDENTITY.removeprefix("https://github.com/"), ISSUER) + "\n")

        def run(*more: str) -> Result:
            options = ["--trust-config", str(tmp_path / "trust_config.json"), *more]
            return CliRunner().invoke(sign_command, [str(model), "--keyless", *options])

        yield run


def test_what_is_signed_in_ci_is_demanded_by_its_workflow(
    load: Load, tmp_path: Path, signs: Callable[..., Result]
) -> None:
    """The whole way: a token of CI, a certificate for it, a signature, an entry in the log."""
    done = signs("--identity-token", str(tmp_path / "token"))
    assert done.exit_code == 0, done.output
    root = (tmp_path / "trusted_root.json").read_bytes()
    report = load(root, identity=WORKFLOW, issuer=ISSUER)
    assert f"3 files signed by {IDENTITY} (issuer {ISSUER}); method sigstore" in str(report["notes"])
    with pytest.raises(RepoAgentError, match="another issuer than"):
        load(root, identity=WORKFLOW, issuer="https://accounts.google.com")


def test_github_actions_gives_the_token_by_itself(
    load: Load, tmp_path: Path, signs: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a job with ``id-token: write`` finds in its environment."""
    value = json.dumps({"value": (tmp_path / "token").read_text().strip()}).encode()
    with FileServer({"/token": value}) as actions:
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "of the job")
        monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{actions.url}/token?x=1")
        done = signs()
    assert done.exit_code == 0, done.output
    assert actions.seen_headers[0]["Authorization"] == "bearer of the job"
    load((tmp_path / "trusted_root.json").read_bytes(), identity=IDENTITY, issuer=ISSUER)


def test_signing_without_a_key_needs_an_identity_and_its_services(
    model: Path, tmp_path: Path, signs: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "CIRCLECI", "BUILDKITE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "rubbish").write_text("not.a.token")
    config = str(tmp_path / "rubbish")
    secret = (tmp_path / "token").read_text().strip()
    for more, text in [
        ((), "there is no identity token"),
        (("--identity-token", config), "Sigstore did not sign: IdentityError"),
        (("--identity-token", str(tmp_path / "token"), "--trust-config", config), "Sigstore did not sign: "),
    ]:
        done = signs(*more)
        assert (done.exit_code, text in done.output, secret in done.output) == (1, True, False), done.output
        assert not (model / "model.sig").exists()


@pytest.mark.parametrize("wrong", [[], ["--keyless", "--key", "K"], ["--key", "K", "--trust-config", "K"]])
def test_a_signer_is_either_a_key_or_an_identity(model: Path, tmp_path: Path, wrong: list[str]) -> None:
    (tmp_path / "K").touch()
    arguments = [str(tmp_path / "K") if one == "K" else one for one in wrong]
    assert CliRunner().invoke(sign_command, [str(model), *arguments]).exit_code == 2
    keyless = ["--keyless", "--certificate", str(tmp_path / "K")]
    assert CliRunner().invoke(sign_command, [str(model), *keyless]).exit_code == 2


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
