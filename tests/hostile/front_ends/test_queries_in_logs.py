"""Clients put secrets into queries: what is logged about a request has its path alone."""

import logging

import pytest
from repoagent_server.http.access import route_of
from repoagent_server.http.messages import Frame, Request
from repoagent_server.http.service import answer_to

SECRET = "api_key=s3cret"


def test_a_fault_is_logged_without_the_query(caplog: pytest.LogCaptureFixture) -> None:
    request = Request(b"POST", b"/v2/models/m/infer?" + SECRET.encode(), (), Frame())
    with caplog.at_level(logging.ERROR):
        answer_to(RuntimeError("broken"), request)
    assert "POST /v2/models/m/infer" in caplog.text
    assert "s3cret" not in caplog.text
    assert len(route_of(Request(b"GET", b"/" + b"x" * 60_000, (), Frame()))) < 600
