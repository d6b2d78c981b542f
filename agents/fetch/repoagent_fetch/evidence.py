"""What an auditor asks of a fetch: from where, which revision, when."""

from datetime import UTC, datetime

from repoagent_fetch.plan import Plan

__all__ = ["evidence"]


def evidence(plan: Plan, fetched: bool) -> dict[str, str]:
    """One record of the load report; later agents add its source and revision to their own.

    Args:
        plan: What was fetched.
        fetched: Whether this load did it; else it came from the cache.
    """
    record = {"source": plan.source}
    if plan.revision:
        record["revision"] = plan.revision
    return {
        **record,
        "pinned": "yes" if plan.pinned else "no",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "result": "fetched" if fetched else "from the cache",
    }
