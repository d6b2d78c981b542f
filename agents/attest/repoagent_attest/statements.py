"""What a receipt states: a SLSA verification summary, and the details behind it.

Sources: the in-toto Statement 1, the SLSA Verification Summary Attestation 1. The details have a predicate of our own,
and the summary has the digest of their payload. Neither states that the model serves: they are signed before it does.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final
from urllib.parse import quote

from repoagent.api import tree_digest
from repoagent.api.attesting import AttestedLoad
from repoagent.api.report import EntryReport, LoadReport

SUMMARY_SUFFIX: Final = ".vsa.json"
DETAILS_SUFFIX: Final = ".load.json"
"""What the file of each statement is called behind the name of the load."""
SUMMARY_TYPE: Final = "https://slsa.dev/verification_summary/v1"
DETAILS_TYPE: Final = "urn:repoagent:load:v1"
TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
OWN_CONFIGURATION: Final = "REPOAGENT_OWN_CONFIGURATION"
"""The word among the levels for a load that brought no configuration but the model's own."""
_STATEMENT: Final = "https://in-toto.io/Statement/v1"
_NO_POLICY: Final = "urn:repoagent:no-policy"
_POLICY: Final = "urn:repoagent:policy"


def summary_of(load: AttestedLoad, verifier: str, details_sha256: str) -> dict[str, Any]:
    """The verification summary."""
    policy = load.report.details.get("policy") or {}
    return _statement(
        load,
        SUMMARY_TYPE,
        {
            "verifier": {"id": verifier, "version": _versions()},
            "timeVerified": datetime.now(UTC).strftime(TIME),
            "resourceUri": _resource(load.report),
            "policy": {"uri": _POLICY, "digest": {"sha256": policy["sha256"]}} if policy else {"uri": _NO_POLICY},
            "inputAttestations": [{"uri": DETAILS_TYPE, "digest": {"sha256": details_sha256}}],
            "verificationResult": "PASSED" if load.passed else "FAILED",
            "verifiedLevels": _levels(load) if load.passed else [],
            "slsaVersion": "1.1",
        },
    )


def details_of(load: AttestedLoad, verifier: str) -> dict[str, Any]:
    """The details: what was loaded by which rules, what each agent stated, every file."""
    report = load.report
    return _statement(
        load,
        DETAILS_TYPE,
        {
            "verifier": {"id": verifier, "version": _versions()},
            "model": report.model,
            "passed": load.passed,
            "load": {name: value for name, value in report.details.items() if value},
            "agents": [_agent(entry, load.confidential_from) for entry in report.entries],
            "trees": {
                name: [{"name": path, "digest": {"sha256": digest}} for path, digest in sorted(files.items())]
                for name, files in load.trees.items()
            },
        },
    )


def _statement(load: AttestedLoad, kind: str, predicate: Mapping[str, Any]) -> dict[str, Any]:
    names = {"model": load.report.model, "served": f"{load.report.model} as it is served"}
    return {
        "_type": _STATEMENT,
        "subject": [
            {"name": names[tree], "digest": {"sha256": tree_digest(files)}} for tree, files in load.trees.items()
        ],
        "predicateType": kind,
        "predicate": predicate,
    }


def _agent(entry: EntryReport, confidential_from: int | None) -> dict[str, Any]:
    """Without notes and errors: texts for the operator, which may name places of this machine."""
    calls = entry.actions
    hidden = confidential_from is not None and entry.index >= confidential_from
    return {
        "agent": entry.agent,
        "origin": entry.origin,
        "code": dict(entry.code),
        "outcome": next((call.outcome for call in calls if call.outcome != "ok"), "ok"),
        "digests": {} if hidden else {name: digest for call in calls for name, digest in call.digests.items()},
        "signers": sorted({signer for call in calls for signer in call.signers}),
        "evidence": [
            {name: text for name, text in record.items() if name != "digest" or not hidden}
            for call in calls
            for record in call.evidence
        ],
    }


def _levels(load: AttestedLoad) -> Sequence[str]:
    """Words of our own: levels of SLSA are about builds. What a model's own agents stated counts for nothing.

    Each is good news, so that who ignores one, or does not find it, trusts a load less, never more.
    """
    calls = [call for entry in load.report.entries for call in entry.actions]
    levels = ["REPOAGENT_AGENTS_PASSED"] if calls and all(call.outcome == "ok" for call in calls) else []
    if "override_sha256" not in load.report.details:
        levels.append(OWN_CONFIGURATION)
    if (load.report.details.get("policy") or {}).get("mode") == "enforce":
        levels.append("REPOAGENT_POLICY_ENFORCED")
    demanded = [entry for entry in load.report.entries if entry.origin == "policy"]
    if any(call.signers and call.outcome == "ok" for entry in demanded for call in entry.actions):
        levels.append("REPOAGENT_SIGNATURE_VERIFIED")
    return levels


def _resource(report: LoadReport) -> str:
    """Where the model comes from; a repository on this machine is named by the model alone."""
    source = str(report.details.get("source", ""))
    return source if "://" in source else f"urn:repoagent:model:{quote(report.model, safe='')}"


def _versions() -> dict[str, str]:
    found = {}
    for name in ("repoagent-core", "repoagent-attest"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a checkout that is not installed
            found[name] = "unknown"
    return found
