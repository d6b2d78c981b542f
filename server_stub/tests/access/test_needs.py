"""Every route and every method has what it needs: one that has nothing is refused, and fails here."""

import pytest
from repoagent_server.access import Access, AccessError, Caller, Client, Grant, NotPermittedError, Right, Scope
from repoagent_server.access.credentials import Given
from repoagent_server.access.rules import Rules
from repoagent_server.grpc.access import NEEDS
from repoagent_server.grpc.service import METHODS
from repoagent_server.http.openai_answers import openai_error

from server_stub.tests.access.routes import routes


def test_every_route_states_what_it_needs() -> None:
    assert [route.pattern for route in routes() if route.needs is None] == []


def test_every_method_states_what_it_needs() -> None:
    assert set(NEEDS) == {*METHODS, "ModelStreamInfer"}


def test_only_the_health_of_the_server_and_the_files_of_the_page_are_open() -> None:
    opened = [route.pattern for route in routes() if route.needs is not None and route.needs.scope is Scope.OPEN]
    assert opened == ["/v2/health/live", "/v2/health/ready", "/ui", "/ui/(?P<file>[a-z_]+[.][a-z]+)?"]
    assert {name for name, need in NEEDS.items() if need.scope is Scope.OPEN} == {"ServerLive", "ServerReady"}


def test_a_route_with_a_model_in_its_path_checks_that_model() -> None:
    for route in routes():
        assert route.needs is not None
        assert ("(?P<model>" in route.pattern) is (route.needs.scope is Scope.MODEL), route.pattern


def test_an_api_that_is_off_needs_what_it_needs_when_it_is_on() -> None:
    def needed(openai: bool) -> list[object]:
        return [(route.pattern, route.methods, route.needs, route.api) for route in routes(openai=openai)]

    assert needed(False) == needed(True)
    assert [route.pattern for route in routes(openai=False) if route.off] == [
        route.pattern for route in routes() if route.refuse is openai_error
    ]


def test_what_states_nothing_is_refused_to_the_mightiest_client() -> None:
    client = Client("root", [Grant(("*",), frozenset(Right))])
    with pytest.raises(NotPermittedError):
        Access().require(Caller(client, Given(), Rules()), None)


def test_without_rules_nobody_is_let_in() -> None:
    with pytest.raises(AccessError):
        Access().caller(Given(b"key"))
