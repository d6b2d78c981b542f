"""Front ends for a platform over the fake core."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.http.hosting.service import Platform, hosted

Host = Callable[..., httpx.Client]


@pytest.fixture
def host(core: Any) -> Iterator[Host]:
    """Start a front end for a platform; the client talks to it. Arguments are those of ``api_service``."""
    with ExitStack() as stack:

        def start(platform: Platform, **settings: Any) -> httpx.Client:
            front = HttpFrontend(Endpoint(port=0), api_service(Served(core), make_service=hosted(platform), **settings))
            stack.callback(front.stop)
            front.start()
            address, port = front.bind()
            return stack.enter_context(httpx.Client(base_url=f"http://{address}:{port}"))

        yield start
