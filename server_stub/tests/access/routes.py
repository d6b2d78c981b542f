"""Every route of HTTP, taken from a service with everything on, and every path that a route stands for."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote

from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.service import Route

BODY: Final = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "tokens": [1]}
"""What makes a request to OpenAI's API one that is read, beside the model."""

_OPTIONAL: Final = re.compile(r"\(\?:((?:[^()]|\([^()]*\))*)\)\?")
_PART: Final = re.compile(r"\(\?P<(\w+)>[^()]*\)")
_MAYBE_PART: Final = re.compile(rf"({_PART.pattern})\?")
_PARTS: Final = {
    "model": "{model}",
    "version": "1",
    "repository": "r",
    "region": "r",
    "file": "index.html",
    "adapter": ":a",
}
"""What stands for the named parts of a path. One that is missing here fails: its route is new, and needs a look."""


def routes(*, openai: bool = True) -> list[Route]:
    """Those of a port with everything on, unless ``openai`` is off."""
    core: Any = SimpleNamespace(audit=None)
    nothing: Any = SimpleNamespace(work=None, long=None, waits=None, asks=None)
    loop = asyncio.new_event_loop()
    try:
        make = api_service(Served(core, allow_load_parameters=True), metrics=str, openai=openai, ui=True, explicit=True)
        return make(loop, nothing).routes
    finally:
        loop.close()


@dataclass(frozen=True)
class Case:
    """A route, one of its methods, and one form of its path."""

    route: Route
    method: str
    form: str

    def path(self, model: str) -> str:
        """The path for ``model``."""
        return self.form.format(model=quote(model, safe=""))


def forms_of(pattern: str) -> Iterator[str]:
    """Every form of the paths that ``pattern`` matches: with and without each of its optional parts."""
    optional = _OPTIONAL.search(pattern)
    maybe = _MAYBE_PART.search(pattern)
    if optional is not None:
        for part in ("", optional[1]):
            yield from forms_of(pattern[: optional.start()] + part + pattern[optional.end() :])
    elif maybe is not None:
        for part in ("", maybe[1]):
            yield from forms_of(pattern[: maybe.start()] + part + pattern[maybe.end() :])
    else:
        yield _PART.sub(lambda part: _PARTS[part[1]], pattern)


def _cases() -> Iterator[Case]:
    for route in routes():
        forms = list(forms_of(route.pattern))
        assert all(re.fullmatch(route.pattern, form.format(model="m")) for form in forms), route.pattern
        for method in sorted(route.methods):
            yield from (Case(route, method.decode(), form) for form in forms)


CASES: Final = list(_cases())
