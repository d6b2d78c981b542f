"""What an auditor asks for stands in the load report: what was verified, from where, by what, when, the result."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, read_identity, sign

from agents.fetch.tests.servers import Hub, sha256
from agents.verify.tests.issuing import issue, public_pem
from agents.verify.tests.private_sigstore import new_key
from repoagent.api import LoadReport
from repoagent.api.envelopes import key_id
from repoagent.errors import RepoAgentError
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.load_context import Services
from repoagent.loader.loader import Loader
from repoagent.loader.policy import PolicyPlanner, read_policy
from repoagent.storage.cache.cache import Cache
from repoagent.storage.repositories.sources import open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot

Load = Callable[..., LoadReport]


@pytest.fixture
def load(tmp_path: Path, model: Path) -> Load:
    """Load the model under a policy of these agents, with the trust root ``vendor``; the report, however it ends."""

    def run(trust_root: bytes, *agents: tuple[str, dict[str, str]]) -> LoadReport:
        (tmp_path / "root").write_bytes(trust_root)
        entries = [f"{{ agent = '{name}', parameters = {json.dumps(list(given.items()))} }}" for name, given in agents]
        (tmp_path / "policy.toml").write_text(
            '[[rule]]\nmodels = ["*"]\nmode = "enforce"\ntrust_roots = { vendor = "root" }\n'
            f"before = [ {', '.join(entries)} ]\n"
        )
        (model / "config.pbtxt").touch()
        with ExitStack() as stack:
            workspace = stack.enter_context(WorkspaceRoot(tmp_path / "workspace"))
            cache = stack.enter_context(Cache(tmp_path / "cache"))
            planner = PolicyPlanner(read_policy(tmp_path / "policy.toml"), AgentRegistry(None))
            loader = Loader(AgentRegistry(None), workspace, Services(cache=cache), planner=planner)
            stack.callback(loader.close)
            try:
                chain = loader.load(open_source("m", str(model)))
            except RepoAgentError as error:
                report: LoadReport = error.report
                return report
            chain.complete()
            chain.unload()
            chain.unload_complete()
            return chain.report

    return run


VERIFY = ("verify", {"trust_root": "vendor"})


def evidence_of(report: LoadReport) -> list[dict[str, str]]:
    """As it comes back from JSON."""
    again = LoadReport.from_dict(json.loads(report.to_json()))
    return [dict(record) for entry in again.entries for action in entry.actions for record in action.evidence]


def test_a_key_that_signed_is_named_with_all_that_identifies_the_verification(load: Load, model: Path) -> None:
    key = new_key()
    (model / "config.pbtxt").touch()
    (model / "model.sig").write_bytes(sign(model, Identity(key), Serialization(), signature="model.sig"))
    (record,) = evidence_of(load(public_pem(key), VERIFY))
    moment = datetime.fromisoformat(record.pop("time"))
    assert abs(datetime.now(UTC) - moment) < timedelta(hours=1)
    assert record.pop("digest").startswith("sha256:")
    fingerprint = key_id(key.public_key())
    assert record == {
        "source": "repository: m",
        "verifier": "repoagent-verify",
        "version": version("repoagent-verify"),
        "signer": f"key {fingerprint}",
        "method": "key",
        "trust_root": f"sha256:{fingerprint}",
        "result": "verified",
    }


def test_each_version_that_is_signed_by_itself_has_a_record(load: Load, model: Path) -> None:
    root = issue("root", authority=True)
    leaf = issue("Models", root)
    identity = read_identity(leaf.key_pem, None, [leaf.pem])
    (model / "2").mkdir()
    (model / "2" / "model.onnx").write_bytes(b"newer")
    for version_ in ("1", "2"):
        bundle = sign(model / version_, identity, Serialization(), signature="model.sig")
        (model / version_ / "model.sig").write_bytes(bundle)
    parameters = {"trust_root": "vendor", "directory": "*", "subject": "CN=Models"}
    records = evidence_of(load(root.pem, ("verify", parameters)))
    assert [(record["part"], record["signer"], record["result"]) for record in records] == [
        ("1", "CN=Models", "verified"),
        ("2", "CN=Models", "verified"),
    ]
    assert records[0]["digest"] != records[1]["digest"]


def test_a_refusal_is_evidence_too(load: Load, model: Path) -> None:
    key = new_key()
    (model / "config.pbtxt").touch()
    (model / "model.sig").write_bytes(sign(model, Identity(key), Serialization(), signature="model.sig"))
    (model / "1" / "model.onnx").write_bytes(b"changed")
    report = load(public_pem(key), VERIFY)
    (record,) = evidence_of(report)
    assert (record["result"], "digest" in record, "signer" in record) == ("refused", False, False)
    assert "changed after signing" in str(report.entries[0].actions[0].error)


def test_of_a_fetched_model_the_record_has_source_and_revision(
    load: Load, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    key = new_key()
    release = tmp_path / "release"
    release.mkdir()
    (release / "model.onnx").write_bytes(b"weights")
    signature = sign(release, Identity(key), Serialization(), signature="model.sig")
    for path in sorted(model.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", hub.large.host)
        hub.models["acme/m"] = {"model.onnx": b"weights", "model.sig": signature}
        url = f"hf://acme/m@{hub.commit}"
        agents = [("fetch", {"url": url}), ("verify", {"trust_root": "vendor", "directory": "1"})]
        fetched, verified = evidence_of(load(public_pem(key), *agents))
        again, _ = evidence_of(load(public_pem(key), *agents))
    origin = {"source": url, "revision": hub.commit}
    assert {name: fetched[name] for name in origin} == origin
    assert {name: verified[name] for name in origin} == origin
    assert (fetched["pinned"], fetched["result"], again["result"]) == ("yes", "fetched", "from the cache")
    assert (verified["result"], verified["part"]) == ("verified", "1")
    assert sha256(b"weights") not in verified["digest"]
