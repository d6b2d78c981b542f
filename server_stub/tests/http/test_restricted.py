"""Parts of the HTTP API that need a header."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import httpx
import pytest
from repoagent_server.handlers.headers import Api, Restriction
from repoagent_server.handlers.operations import Operations
from repoagent_server.http.frontend import HttpFrontend
from repoagent_server.http.routes import api_routes

#: The headers that were asked for in the recording.
HEADERS: Final = dict(zip(Api, ["h", "m", "i", "s", "c", "r", "st", "t", "l"], strict=True))
SECRET: Final = "a=b,c:d"


def _url(front: HttpFrontend) -> str:
    host, port = front.bind()
    return f"http://{host}:{port}"


@pytest.fixture
def restricted(start: Callable[..., HttpFrontend]) -> str:
    """A server whose every part is restricted."""
    return _url(start(restrictions={api: Restriction(header, SECRET.encode()) for api, header in HEADERS.items()}))


def test_every_path_is_refused_as_by_triton_whatever_the_method(restricted: str, recorded: dict[str, Any]) -> None:
    with httpx.Client(base_url=restricted) as client:
        for case in recorded["http restricted"]:
            response = client.delete(case["path"])
            assert (response.status_code, response.text) == (case["status"], case["response"]), case


def test_every_route_belongs_to_a_part(core: Any) -> None:
    operations = Operations(core)
    nothing: Any = SimpleNamespace(once=None, stream=None, table=None)
    routes = api_routes(operations, lambda *_: None, nothing)
    assert [route.pattern for route in routes if route.api is None] == []


@pytest.mark.parametrize("name", ["l", "L"])
def test_who_has_the_header_gets_through(restricted: str, name: str) -> None:
    assert httpx.get(f"{restricted}/v2/logging", headers={name: SECRET}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("l", "")],
        [("l", SECRET + "x")],
        [("l", SECRET[:-1])],
        [("l", SECRET.upper())],
        [("t", SECRET)],
        [("l", "x"), ("l", SECRET)],
    ],
    ids=str,
)
def test_who_does_not_have_it_is_refused_without_a_word_of_the_value(
    restricted: str, headers: list[tuple[str, str]]
) -> None:
    response = httpx.get(f"{restricted}/v2/logging", headers=headers)
    assert response.status_code == 403
    assert response.text == '{"error":"This API is restricted, expecting header \'l\'"}'


def test_of_several_values_the_first_counts(restricted: str) -> None:
    assert httpx.get(f"{restricted}/v2/logging", headers=[("l", SECRET), ("l", "x")]).status_code == 200


def test_the_rest_stays_open(start: Callable[..., HttpFrontend]) -> None:
    url = _url(start(restrictions={Api.INFERENCE: Restriction("key", b"value")}))
    assert httpx.post(f"{url}/v2/models/ident/infer").status_code == 403
    assert httpx.get(f"{url}/v2/health/ready").status_code == 200
    assert httpx.get(f"{url}/nosuch").status_code == 404


def test_values_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return True

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert Restriction("key", b"value").admits(b"given")
    assert compared == [(b"given", b"value")]
    assert "value'" not in repr(Restriction("key", b"value"))
