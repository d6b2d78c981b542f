"""Which route a request takes. Targets seen before are looked up, new ones are matched once."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

from repoagent_server.access import Need
from repoagent_server.handlers.operations import Pool
from repoagent_server.handlers.restrictions import Api, Restriction, Restrictions
from repoagent_server.http.messages import Exchange, Request, Response, error_response

Params = Mapping[str, str]
"""The named parts of the path: ``model``, ``version``, ..., decoded; "" for one that is absent."""

Answer = Callable[[Request, Params], Response]
Deferred = Callable[[Request, Params, Exchange], None]


class Guard:
    """A restriction, ready to be compared with requests."""

    __slots__ = ("_name", "_restriction")

    def __init__(self, restriction: Restriction) -> None:
        self._restriction = restriction
        self._name = restriction.header.lower().encode()

    def refusal(self, request: Request) -> str | None:
        """Why ``request`` is not let in, or None if it has the header with the value that it must have."""
        if self._restriction.admits(request.header(self._name)):
            return None
        return f"This API is restricted, expecting header '{self._restriction.header}'"


@dataclass(frozen=True, slots=True)
class Route:
    """One path (a regular expression) with its methods.

    Either ``answer`` or ``deferred`` is set, which answers through the exchange when it can.
    """

    pattern: str
    methods: frozenset[bytes]
    answer: Answer | None = None
    deferred: Deferred | None = None
    pool: Pool = ""
    """Where ``answer`` runs; "" for the event loop."""
    asks: Callable[[Params], bool] | None = None
    """For the pool ``asks``: whether the answer waits for a model this time. Otherwise the event loop runs it."""
    while_stopping: bool = True
    """Whether it is still served when the server is going down."""
    needs: Need | None = None
    """What a client needs where access is controlled; without it every client is refused."""
    api: Api | None = None
    """What it belongs to when parts of the API are restricted."""
    guard: Guard | None = None
    """Set by the router where that part is restricted."""
    refuse: Callable[[str, int], Response] = error_response
    """How its errors are written."""
    off: str = ""
    """Why it is not served: those who are let in get 404 with this text, whatever the method. Empty if it is."""


@dataclass(frozen=True, slots=True)
class Match:
    """A route, and the parts of its path."""

    route: Route
    params: Params = field(default_factory=dict)


_OPEN: Final[Restrictions] = MappingProxyType({})
_CACHE_SIZE: Final = 1024
_CACHED_TARGET_SIZE: Final = 512


class Router:
    """Finds routes. The first pattern that matches the whole path wins."""

    def __init__(self, routes: list[Route], restrictions: Restrictions = _OPEN) -> None:
        guards = {api: Guard(restriction) for api, restriction in restrictions.items()}
        guarded = [route if route.api is None else replace(route, guard=guards.get(route.api)) for route in routes]
        self._routes = [(re.compile(route.pattern), route) for route in guarded]
        self._seen: dict[bytes, Match] = {}

    @property
    def routes(self) -> list[Route]:
        """All of them, in the order in which they are tried."""
        return [route for _, route in self._routes]

    def match(self, target: bytes) -> Match | None:
        """The route for a request target (path and query as sent)."""
        found = self._seen.get(target)
        if found is None:
            found = self._search(target)
            if found is not None and len(self._seen) < _CACHE_SIZE and len(target) <= _CACHED_TARGET_SIZE:
                self._seen[target] = found
        return found

    def _search(self, target: bytes) -> Match | None:
        path = _path(target)
        for pattern, route in self._routes:
            match = pattern.fullmatch(path)
            if match is not None:
                params = {name: unquote(value or "") for name, value in match.groupdict().items()}
                return Match(route, params)
        return None


def _path(target: bytes) -> str:
    """The path of an origin-form or absolute-form target, still encoded."""
    text = target.decode("latin-1")
    if not text.startswith("/") and "://" in text:
        text = "/" + text.split("://", 1)[1].partition("/")[2]
    return text.partition("?")[0]
