"""Whether an agent is one of those that a rule allows. Decided before its code is imported: importing is running."""

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from repoagent.loader.discovery import AgentInfo
from repoagent.loader.policy.rules import AllowedAgent

__all__ = ["code_digest", "objection"]


def objection(info: AgentInfo, allowed: Sequence[AllowedAgent] | None) -> str | None:
    """Why ``info`` may not be used, or None if it may. ``allowed`` None allows every agent."""
    if allowed is None:
        return None
    named = [entry for entry in allowed if entry.name == info.name]
    if not named:
        return f"the policy allows only: {', '.join(sorted({entry.name for entry in allowed})) or 'no agent'}"
    reasons = [_mismatch(info, entry) for entry in named]
    return None if None in reasons else "; ".join(reason for reason in reasons if reason)


def _mismatch(info: AgentInfo, entry: AllowedAgent) -> str | None:
    if entry.distribution is not None and info.distribution != entry.distribution:
        return f"it comes from {info.distribution or info.target}, the policy wants distribution {entry.distribution}"
    if entry.version is not None and not _version_fits(info.version, entry.version):
        return f"its version is {info.version or 'unknown'}, the policy wants {entry.version}"
    if entry.record_sha256 is not None:
        return _digest_mismatch(info, entry.record_sha256)
    return None


def _version_fits(version: str | None, wanted: str) -> bool:
    if version is None:
        return False
    prefix = wanted.removesuffix("*")
    return version.startswith(prefix) if prefix != wanted else version == wanted


def _digest_mismatch(info: AgentInfo, wanted: str) -> str | None:
    try:
        found = code_digest(info)
    except ValueError as error:
        return str(error)
    return None if found == wanted else f"its code has the digest {found}, the policy wants {wanted}"


def code_digest(info: AgentInfo) -> str:
    """SHA-256 of the distribution's RECORD, once every file has the digest that RECORD gives; or of ``agent.py``.

    Raises:
        ValueError: there is nothing to compare with, or a file was changed after it was installed.
    """
    if info.distribution is None:
        return hashlib.sha256(Path(info.target).read_bytes()).hexdigest()
    installed = distribution(info.distribution)
    record = _record(installed)
    _check_files(installed)
    return hashlib.sha256(record).hexdigest()


def _record(installed: Distribution) -> bytes:
    if json.loads(installed.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
        raise ValueError("it is an editable installation, whose code RECORD does not cover; install it as a wheel")
    for path in installed.files or ():
        if path.match("*.dist-info/RECORD"):
            return Path(str(path.locate())).read_bytes()
    raise ValueError("its distribution has no RECORD; install it as a wheel")


def _check_files(installed: Distribution) -> None:
    for path in installed.files or ():
        if path.hash is None:
            continue
        try:
            digest = hashlib.new(path.hash.mode, Path(str(path.locate())).read_bytes()).digest()
        except OSError:
            raise ValueError(f"its file {path} is missing") from None
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != path.hash.value:
            raise ValueError(f"its file {path} was changed after it was installed")
