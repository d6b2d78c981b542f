"""What a browser is given: the files, the headers that fence them in, and who may do what."""

import re
from collections.abc import Callable

import httpx
import pytest
from repoagent_server.http.ui_routes import POLICY, static_files

from .conftest import Page


@pytest.mark.slow
def test_the_files_are_served_with_their_types_and_a_strict_policy(page: Page) -> None:
    for name, file in static_files().items():
        answer = httpx.get(page.url + name)
        assert (answer.status_code, answer.content) == (200, file.content)
        assert answer.headers["content-type"].encode() == file.content_type
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert httpx.get(page.url).content == static_files()["index.html"].content


def test_a_file_that_has_not_changed_is_not_sent_again(page: Page) -> None:
    tag = httpx.get(page.url + "app.js").headers["etag"]
    again = httpx.get(page.url + "app.js", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_without_its_slash_leads_to_it(page: Page) -> None:
    answer = httpx.get(page.url.rstrip("/"))
    assert answer.status_code == 308
    assert answer.url.join(answer.headers["location"]) == page.url


@pytest.mark.parametrize("name", ["..%2ffiles.py", "../files.py", "static/app.js", "nothing.js", "app.js%00", "%2e%2e"])
def test_nothing_else_is_served(page: Page, name: str) -> None:
    assert httpx.get(page.url + name).status_code == 404


def test_every_file_is_used_and_none_names_another_host() -> None:
    text = {name: file.content.decode() for name, file in static_files().items()}
    used = {*re.findall(r'(?:src|href)="([\w.]+)"', text["index.html"]), "index.html"}
    used |= {name for content in text.values() for name in re.findall(r'from "\./([\w.]+)"', content)}
    assert used == set(text)
    hosts = {host for content in text.values() for host in re.findall(r"(?:https?:)?//([\w.-]+\.\w+)", content)}
    assert hosts <= {"www.w3.org"}  # the name of SVG's elements, which nothing is loaded from


def test_the_policy_would_not_block_what_the_files_contain() -> None:
    index = static_files()["index.html"].content.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", index)
    for name, file in static_files().items():
        if name.endswith(".js"):
            assert not re.search(
                r"innerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", file.content.decode()
            )


def test_there_is_no_page_unless_it_is_asked_for(serve: Callable[..., Page]) -> None:
    bare = serve(ui=False)
    assert [httpx.get(bare.url + path).status_code for path in ("", "app.js", "session")] == [404] * 3


def test_what_the_page_may_offer(page: Page, guarded_page: Page, serve: Callable[..., Page]) -> None:
    names = ["good", "later", "wrong"]
    assert httpx.get(page.url + "session").json() == {"client": None, "explicit": True, "manage": names, "infer": names}
    assert httpx.get(guarded_page.url + "session").status_code == 401
    found = {
        name: httpx.get(guarded_page.url + "session", headers={"authorization": f"Bearer {name}-key"}).json()
        for name in ("boss", "viewer")
    }
    assert found["boss"] == {"client": "boss", "explicit": True, "manage": names, "infer": names}
    assert found["viewer"] == {"client": "viewer", "explicit": True, "manage": [], "infer": []}
    assert httpx.get(serve(explicit=False).url + "session").json()["explicit"] is False
