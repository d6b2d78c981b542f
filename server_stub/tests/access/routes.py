"""Every route of HTTP, and a path and a body for each."""

import re
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote

from repoagent_server.access import Need, Right, Scope
from repoagent_server.handlers.all import Handlers
from repoagent_server.http.openai_routes import OpenAiRoutes
from repoagent_server.http.router import Route
from repoagent_server.http.routes import api_routes
from repoagent_server.http.ui_routes import ui_routes

BODY: Final = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x"}
"""What makes a request to OpenAI's API one that is read, beside the model."""


def routes() -> list[Route]:
    core: Any = SimpleNamespace(audit=None)
    nothing: Any = SimpleNamespace(once=None, stream=None, core=core)
    handlers = Handlers.over(core, allow_load_parameters=False)
    metrics = Route("/metrics", frozenset({b"GET"}), needs=Need(Scope.SERVER, Right.METADATA))
    return [*api_routes(handlers, lambda *_: None, nothing), *OpenAiRoutes(nothing, nothing).routes(), metrics]


def path_of(pattern: str, model: str) -> str:
    """A path that ``pattern`` matches, for ``model``."""
    text = pattern.replace("(?P<model>[^/]+)", quote(model, safe="")).replace("(?P<model>.+)", quote(model, safe=""))
    text = text.replace("(?:/versions/(?P<version>[0-9]+))?", "").replace("(?:/(?P<repository>[^/]+))?", "")
    text = text.replace("(?:/region/(?P<region>[^/]+))?", "/region/r")
    assert re.fullmatch(pattern, text), pattern
    return text


CASES: Final = [(route, method.decode()) for route in routes() for method in sorted(route.methods)]
_NOTHING: Final[Any] = None
SESSION: Final = [(route, "GET") for route in ui_routes(_NOTHING, explicit=True) if route.pattern == "/ui/session"]
"""What the page asks about its viewer. The answer has names of models, though neither path nor body names one."""
