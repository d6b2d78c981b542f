"""Which models a client is shown."""

from typing import Any

from repoagent_server.access import Caller

__all__ = ["visible"]


def visible(rows: list[dict[str, Any]], caller: Caller | None) -> list[dict[str, Any]]:
    """Those of ``rows`` whose ``name`` is a model that ``caller`` may see; all of them without access control."""
    return rows if caller is None else [row for row in rows if caller.sees(row["name"])]
