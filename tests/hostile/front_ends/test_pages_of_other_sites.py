"""T12: a page in a browser on the same machine neither reads from a server on loopback nor changes anything there."""

import socket
from typing import Any

import pytest

OTHERS = ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example."]
OTHERS += ["[::1", "[::1]evil.example", "127.0.0.1:8000@evil.example", "localhost:evil", "x", "127.0.0.1 evil.example"]
OURS = ["127.0.0.1", "127.0.0.1:8000", "localhost", "LocalHost.:8000", "[::1]:8000", "10.1.2.3", "app.localhost", ""]
LOAD = "/v2/repository/models/numbers/load"
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}


@pytest.mark.parametrize("host", OTHERS)
@pytest.mark.parametrize("target", ["/v2/health/live", "/v2/models/numbers/config"])
def test_a_site_whose_name_resolves_to_this_machine_reads_nothing(ways: Any, host: str, target: str) -> None:
    response = ways.http.get(target, headers={"Host": host})
    assert response.status_code == 403
    assert "--http-allowed-host" in response.json()["error"]


def test_a_second_host_header_hides_nothing(ways: Any) -> None:
    """F18: 400, not 403 with advice."""
    with socket.create_connection(ways.address) as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        assert connection.makefile("rb").readline().split()[1] == b"400"  # F18


@pytest.mark.parametrize("host", [*OURS, socket.gethostname()])
def test_names_of_this_machine_and_addresses_are_answered(ways: Any, host: str) -> None:
    assert ways.http.get("/v2/health/live", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://6.6.6.6"},
        {"Origin": "file://localhost"},
        {"Origin": "http://localhost.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    ],
)
@pytest.mark.parametrize("target", [LOAD, "/v2/logging", "/v2/trace/setting", "/v2/models/numbers/infer"])
def test_a_page_of_another_site_changes_nothing(ways: Any, target: str, headers: dict[str, str]) -> None:
    simple = {"Content-Type": "text/plain", **headers}  # what a browser sends without asking first
    response = ways.http.post(target, json=BODY if target.endswith("infer") else {}, headers=simple)
    assert response.status_code == 403, response.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:9", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "same-origin"},
        {},
    ],
)
def test_pages_of_this_machine_and_programs_are_answered(ways: Any, headers: dict[str, str]) -> None:
    assert ways.http.post(LOAD, headers=headers).status_code == 200


def test_the_operator_adds_names(start_ways: Any) -> None:
    ways = start_ways(allowed_hosts=("Models.Example",))
    good = {"Host": "models.example:8000", "Origin": "https://models.example", "Sec-Fetch-Site": "cross-site"}
    assert ways.http.post(LOAD, headers=good).status_code == 200
    assert ways.http.post(LOAD, headers=good | {"Origin": "https://evil.example"}).status_code == 403
    assert ways.http.get("/v2", headers={"Host": "evil.example"}).status_code == 403


def test_a_star_turns_the_checks_off(start_ways: Any) -> None:
    ways = start_ways(allowed_hosts=("*",))
    assert ways.http.post(LOAD, headers={"Host": "a.example", "Origin": "https://b.example"}).status_code == 200


def test_on_every_address_hosts_are_the_operators_business_but_pages_still_change_nothing(start_ways: Any) -> None:
    ways = start_ways(address="0.0.0.0")
    service = {"Host": "models.cluster.local", "Origin": "https://shop.example"}
    assert ways.http.get("/v2", headers=service).status_code == 200
    assert ways.http.post("/v2/models/numbers/infer", json=BODY, headers=service).status_code == 200
    assert ways.http.post(LOAD, headers=service).status_code == 403
    assert ways.http.post(LOAD, headers=service | {"Origin": "https://models.cluster.local"}).status_code == 200
    strict = start_ways(address="0.0.0.0", allowed_hosts=("models.example",))
    assert strict.http.get("/v2", headers=service).status_code == 403
