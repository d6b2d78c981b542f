"""The one HTTP request."""

from typing import Any

import pytest
from repoagent_decrypt.providers.http import HttpRequest, check_base_url

from repoagent.api import InvalidArgumentError, UnavailableError


def test_redirects_are_not_followed(service: Any) -> None:
    service.answer = lambda _asked: (307, {"Location": "http://elsewhere.example/"}, b"")
    with pytest.raises(UnavailableError, match="redirect"):
        HttpRequest("it", service.url, {"X-Token": "t"}).send()
    assert len(service.asked) == 1


def test_endless_answers_are_refused(service: Any) -> None:
    service.answer = lambda _asked: (200, {}, bytes(2 << 20))
    with pytest.raises(UnavailableError, match="more than"):
        HttpRequest("it", service.url).send()


def test_nobody_there_is_said_with_the_address() -> None:
    with pytest.raises(UnavailableError, match=r"it at 127\.0\.0\.1:1 does not answer"):
        HttpRequest("it", "http://127.0.0.1:1/path").send()


@pytest.mark.parametrize("url", ["ftp://x", "http://", "file:///etc/passwd", "http://user:word@host", "http://h?a=b"])
def test_only_plain_http_urls_are_taken(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="THE_VARIABLE") as error:
        check_base_url(url, "THE_VARIABLE")
    assert "word" not in str(error.value)


def test_a_final_slash_is_dropped() -> None:
    assert check_base_url("https://vault:8200/", "X") == "https://vault:8200"
