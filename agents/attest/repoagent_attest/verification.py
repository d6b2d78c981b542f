"""Verifying a receipt: its signatures, the link between its parts, and what it states against a model and a policy."""

import hashlib
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from repoagent.api import InvalidArgumentError, digest_files, tree_digest, walk_beneath
from repoagent.api.envelopes import PublicKey, read_document, verify
from repoagent_attest.statements import DETAILS_TYPE, OWN_CONFIGURATION, SUMMARY_TYPE
from repoagent_attest.statements import TIME as _TIME

_FEW: Final = 3
_AHEAD: Final = timedelta(minutes=5)
"""What the clock of a server may be ahead of ours."""
_LOCK: Final = ".repoagent-prepared"
"""The empty file that ``repoagent prepare`` locks in its directory; it is beside the model, not of it."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A receipt whose signatures hold. ``details`` is None if only the summary was given."""

    summary: Mapping[str, Any]
    details: Mapping[str, Any] | None
    digest: str
    """SHA-256 of the summary's payload."""

    @property
    def predicate(self) -> Mapping[str, Any]:
        """The verification summary."""
        found: Mapping[str, Any] = self.summary["predicate"]
        return found

    @property
    def name(self) -> str:
        """The name of the model."""
        return str(self.summary["subject"][0]["name"])

    @property
    def audit(self) -> Mapping[str, Any]:
        """The last line of the server's audit log before the receipt: ``seq`` and ``hash``; empty without one."""
        found = {} if self.details is None else self.details["predicate"].get("load", {}).get("audit")
        return found if isinstance(found, dict) else {}

    @property
    def overridden(self) -> bool:
        """Whether the load brought another configuration than that among the model's files, or may have done so."""
        stated = self.details is not None and "override_sha256" in self.details["predicate"].get("load", ())
        return stated or OWN_CONFIGURATION not in self.predicate["verifiedLevels"]

    @property
    def trees(self) -> list[str]:
        """The digests of the trees that it is about."""
        return [one["digest"]["sha256"] for one in self.summary["subject"]]


def read_receipt(document: dict[str, Any], details: dict[str, Any] | None, key: PublicKey) -> Receipt:
    """The receipt in ``document``: what a server sends, or a bundle with the summary, whose details are elsewhere.

    Raises:
        InvalidArgumentError: a signature does not hold, it is not a receipt, or the parts do not belong together.
    """
    if "summary" in document:
        document, details = _part(document, "summary"), _part(document, "details")
    payload = verify(document, key)
    summary = _statement(payload, SUMMARY_TYPE)
    found = None
    if details is not None:
        text = verify(details, key)
        found = _statement(text, DETAILS_TYPE)
        linked = [one["digest"]["sha256"] for one in summary["predicate"]["inputAttestations"]]
        if hashlib.sha256(text).hexdigest() not in linked:
            raise InvalidArgumentError("the details are those of another receipt: the summary names another digest")
    return Receipt(summary, found, hashlib.sha256(payload).hexdigest())


def differences(
    receipt: Receipt,
    model: Path | None = None,
    policy: bytes | None = None,
    *,
    name: str | None = None,
    most_age: timedelta | None = None,
    levels: Collection[str] = (),
) -> Iterator[str]:
    """What contradicts the receipt, one sentence each: its own result, the files of ``model``, the ``policy``.

    And that it is about a model of another ``name``, older than ``most_age``, or without one of ``levels``.
    """
    predicate = receipt.predicate
    if name is not None and receipt.name != name:
        yield f"the receipt is about the model '{receipt.name}'"
    if most_age is not None:
        age = datetime.now(UTC) - datetime.strptime(predicate["timeVerified"], _TIME).replace(tzinfo=UTC)
        if not -_AHEAD <= age <= most_age:
            yield f"the receipt is of {predicate['timeVerified']}"
    if predicate.get("verificationResult") != "PASSED":
        yield "the load was refused: verificationResult is not PASSED"
    for level in levels:
        if level not in predicate["verifiedLevels"]:
            yield f"the receipt does not state {level}"
    if policy is not None:
        found = predicate["policy"].get("digest", {}).get("sha256")
        if found != hashlib.sha256(policy).hexdigest():
            yield "the model was loaded by another policy" if found else "the model was loaded without a policy"
    if model is not None:
        yield from _changed(receipt, model)


def _changed(receipt: Receipt, model: Path) -> Iterator[str]:
    walked = [one for one in walk_beneath(model, follow=True) if not stat.S_ISDIR(one.mode)]
    entries = [(path, mode) for path, mode, size in walked if (path, size) != (_LOCK, 0)]
    special = [path for path, mode in entries if not stat.S_ISREG(mode)]
    if special:
        yield _listed("neither a file nor a directory", special)
        return
    found = digest_files(model, {path: ("sha256",) for path, _ in entries}, follow=True)
    files = {path: digests["sha256"] for path, digests in found.items()}
    if tree_digest(files) in receipt.trees:
        return
    trees = {} if receipt.details is None else receipt.details["predicate"]["trees"]
    stated = {one["name"]: one["digest"]["sha256"] for one in trees.get("model", ())}
    if not stated or stated == files:
        yield f"{model.name} is another model, or has changed since the receipt was made"
        return
    for what, paths in (
        ("changed", [path for path in stated.keys() & files.keys() if stated[path] != files[path]]),
        ("missing", stated.keys() - files.keys()),
        ("new", files.keys() - stated.keys()),
    ):
        if paths:
            yield _listed(f"{what} since the receipt was made", paths)


def _listed(what: str, paths: Collection[str]) -> str:
    more = f", and {len(paths) - _FEW} more" if len(paths) > _FEW else ""
    return f"{what}: {', '.join(sorted(paths)[:_FEW])}{more}"


def _part(document: dict[str, Any], name: str) -> dict[str, Any]:
    part = document.get(name)
    if not isinstance(part, dict):
        raise InvalidArgumentError(f"the receipt has no {name}")
    return part


def _statement(payload: bytes, kind: str) -> Mapping[str, Any]:
    statement = read_document(payload, "the payload of the receipt")
    if statement.get("predicateType") != kind:
        raise InvalidArgumentError(f"the receipt has another predicateType than {kind}")
    try:
        for subject in statement["subject"]:
            subject["digest"]["sha256"].encode()
        predicate = statement["predicate"]
        predicate.items()
        if kind == DETAILS_TYPE:
            predicate.get("load", {}).items()
            for files in predicate["trees"].values():
                [one["name"] + one["digest"]["sha256"] for one in files]
        else:
            ", ".join([predicate["resourceUri"], *predicate["verifiedLevels"]])
            datetime.strptime(predicate["timeVerified"], _TIME)
            statement["subject"][0]["name"].encode()
            predicate["verifier"]["id"].encode()
            predicate["policy"].get("digest", {}).get("sha256")
            [one["digest"]["sha256"] for one in predicate["inputAttestations"]]
    except (LookupError, TypeError, AttributeError, ValueError):
        raise InvalidArgumentError("the receipt is signed, but not in a form that this version knows") from None
    return statement
