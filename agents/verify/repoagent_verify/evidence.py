"""What an auditor asks of a verification. The loader adds where the model comes from."""

from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from repoagent_verify.verifying import Verified

__all__ = ["evidence"]

_VERIFIER: Final = "repoagent-verify"


def evidence(part: str, verified: Verified | None) -> dict[str, str]:
    """One record of the load report.

    Args:
        part: The directory that was signed by itself; empty: the whole model.
        verified: What holds; None: the model is refused, and the report has the reason beside the record.
    """
    record = {"verifier": _VERIFIER, "version": _version(), "time": datetime.now(UTC).isoformat(timespec="seconds")}
    if part:
        record["part"] = part
    if verified is None:
        return {**record, "result": "refused"}
    signer = verified.signer
    return {
        **record,
        "result": "verified",
        "digest": f"sha256:{verified.manifest.root_digest}",
        "signer": signer.name,
        "method": signer.method,
        "trust_root": f"sha256:{signer.trust_root}",
    }


@cache
def _version() -> str:
    try:
        return version(_VERIFIER)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
