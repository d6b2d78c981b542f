"""Every kind of client: what each sends, and how it is answered."""

from collections.abc import Callable
from typing import Any, Final

from repoagent_server.access import Right, Scope

MODEL: Final = "fraud-us"
UNKNOWN: Final = ("none", "wrong", "cut", "expired", "unsigned", "stranger", "twice")
"""Kinds that are no client."""
LIMITED: Final = ("lacking", "other")
"""Clients: without the right, and with all rights for another model alone."""
ADMITTED: Final = ("key", "api key", "token")


def headers(kind: str, right: Right | None, issuer: Any) -> list[tuple[str, str]]:
    """What a client of this kind sends to an operation that needs ``right``."""
    stranger = type(issuer)(issuer.folder)
    kinds: dict[str, Callable[[], list[tuple[str, str]]]] = {
        "none": list,
        "wrong": lambda: [("authorization", "Bearer someone-key")],
        "cut": lambda: [("authorization", "Bearer root-ke")],
        "expired": lambda: [("authorization", f"Bearer {issuer.token(seconds=-5)}")],
        "unsigned": lambda: [("authorization", f"Bearer {issuer.token().rpartition('.')[0]}.")],
        "stranger": lambda: [("authorization", f"Bearer {stranger.token()}")],
        "twice": lambda: [("authorization", "Bearer root-key"), ("x-api-key", "root-key")],
        "lacking": lambda: [("authorization", f"Bearer without-{right or Right.INFER}-key")],
        "other": lambda: [("x-api-key", "eu-key")],
        "key": lambda: [("authorization", "Bearer root-key")],
        "api key": lambda: [("x-api-key", "root-key")],
        "token": lambda: [("authorization", f"Bearer {issuer.token()}")],
    }
    return kinds[kind]()


def expected(kind: str, scope: Scope) -> int:
    """The status of HTTP; 200 for any that is neither 401 nor 403."""
    if scope is Scope.OPEN:
        return 200
    if kind in UNKNOWN:
        return 401
    return 403 if kind in LIMITED and scope in (Scope.MODEL, Scope.BODY, Scope.SERVER) else 200
