"""The page in a real headless Chromium: each view, by mouse, by keyboard, on a narrow screen, and no other host.

Needs Chromium (Debian's package ``chromium``) and ``pip install playwright``. Pictures go to the folder that
REPOAGENT_SCREENSHOTS names, else to the test's own.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from .conftest import Page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
expect: Any = sync_api.expect


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Open a page; at the end take a picture of it, and check that it went nowhere else and logged no error."""
    opened: list[tuple[Any, set[str], list[str]]] = []
    folder = Path(os.environ.get("REPOAGENT_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def start(url: str, *, width: int = 1100, colors: str = "light") -> Any:
        tab = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=colors)
        hosts: set[str] = set()
        errors: list[str] = []
        tab.on("request", lambda sent: hosts.add(urlsplit(sent.url).netloc))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda line: errors.append(line.text) if "Content Security Policy" in line.text else None)
        opened.append((tab, hosts, errors))
        tab.goto(url)
        return tab

    yield start
    for number, (tab, hosts, errors) in enumerate(opened):
        tab.screenshot(path=folder / f"{request.node.name}-{number}.png", full_page=True)
        assert hosts == {urlsplit(tab.url).netloc}
        assert errors == []
        tab.close()


def test_the_models_with_states_and_reasons(open_page: Callable[..., Any], page: Page) -> None:
    tab = open_page(page.url)
    expect(tab.get_by_role("row", name="good")).to_contain_text("READY")
    expect(tab.get_by_role("row", name="wrong")).to_contain_text("UNAVAILABLE")
    expect(tab.locator("tr.reason")).to_contain_text("Mismatched SHA256 hash")
    expect(tab.get_by_role("row", name="later")).to_contain_text("not loaded")
    expect(tab.get_by_text("1 ready, 1 not loaded, 1 unavailable")).to_be_visible()
    for label, text in (("Versions", "1"), ("Load time", " ms"), ("Size", " B"), ("Agents", "checksum")):
        expect(tab.get_by_role("row", name="good").locator(f'[data-label="{label}"]')).to_contain_text(text)
    expect(tab.locator("#server")).to_have_text(re.compile(r"^version \d+\.\d+\.\d+$"))


def test_the_way_back_from_a_model(open_page: Callable[..., Any], page: Page) -> None:
    """U8: there was none."""
    tab = open_page(page.url + "#/models/good")
    tab.get_by_role("link", name="All models").click()
    expect(tab.get_by_role("heading", name="Models", level=2)).to_be_visible()


def test_a_load_as_a_timeline_of_its_agents(open_page: Callable[..., Any], page: Page) -> None:
    tab = open_page(page.url + "#/models/good")
    expect(tab.locator(".timeline rect.ok").first).to_be_visible()
    expect(tab.locator(".timeline svg text")).to_have_text(["checksum", "backend"])
    row = tab.locator(".timeline tbody tr").first
    expect(row).to_contain_text("checksum")
    expect(row).to_contain_text("LOAD")
    tab.get_by_text("1 digest").first.click()
    expect(tab.get_by_text("sha256:").first).to_be_visible()


def test_a_load_that_an_agent_refuses(open_page: Callable[..., Any], page: Page) -> None:
    tab = open_page(page.url + "#/models/wrong")
    tab.get_by_role("button", name="Load", exact=True).click()
    expect(tab.locator("#status")).to_contain_text("Mismatched SHA256 hash")
    expect(tab.locator(".timeline rect.failed").first).to_be_visible()
    expect(tab.locator("main").get_by_text("Mismatched SHA256 hash")).to_have_count(1)  # not again in the last load


def test_load_ask_and_unload(open_page: Callable[..., Any], page: Page) -> None:
    tab = open_page(page.url + "#/models/later")
    tab.get_by_role("button", name="Load", exact=True).click()
    expect(tab.locator("#status")).to_contain_text("done")
    tab.get_by_label("Shape").fill("[1, 4]")
    tab.get_by_label("Data, as a JSON list").fill("[1, 2.5, 3, 4]")
    tab.get_by_role("button", name="Send the request").click()
    expect(tab.get_by_label("Answer")).to_contain_text("2.5")
    tab.get_by_label("Data, as a JSON list").fill("[1, ")
    tab.get_by_role("button", name="Send the request").click()
    expect(tab.get_by_role("alert")).to_contain_text("The data of 'INPUT0' is not valid JSON")
    expect(tab.locator(".plot").first).to_contain_text("/s", timeout=10_000)
    tab.get_by_role("button", name="Unload").click()
    expect(tab.locator("#status")).to_contain_text("Unloading 'later': done")
    assert not page.core.model_ready("later")


def test_a_key_is_asked_for_and_a_viewer_can_only_look(open_page: Callable[..., Any], guarded_page: Page) -> None:
    tab = open_page(guarded_page.url)
    key = tab.get_by_label("Key or token")
    key.fill("nonsense")
    tab.get_by_role("button", name="Sign in").click()
    expect(tab.get_by_role("alert")).to_be_visible()
    tab.get_by_label("Key or token").fill("viewer-key")
    tab.keyboard.press("Enter")
    expect(tab.locator("#server")).to_contain_text("as viewer")
    tab.get_by_role("link", name="good").click()
    expect(tab.get_by_text("You may look only")).to_be_visible()
    expect(tab.get_by_role("button", name="Unload")).to_have_count(0)
    tab.get_by_role("button", name="Sign out").click()
    expect(tab.get_by_label("Key or token")).to_be_visible()


def test_an_unload_without_the_right_is_refused_whatever_the_page_offers(
    open_page: Callable[..., Any], guarded_page: Page
) -> None:
    tab = open_page(guarded_page.url)
    tab.get_by_label("Key or token").fill("viewer-key")
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("row", name="good")).to_be_visible()
    status = tab.evaluate(
        """async () => (await fetch("../v2/repository/models/good/unload", {
            method: "POST", headers: {authorization: "Bearer viewer-key"}})).status"""
    )
    assert status == 403
    assert guarded_page.core.model_ready("good")


def test_all_by_keyboard(open_page: Callable[..., Any], page: Page) -> None:
    tab = open_page(page.url)
    expect(tab.get_by_role("row", name="good")).to_be_visible()
    tab.keyboard.press("Tab")
    for _ in range(10):
        if tab.evaluate("document.activeElement.textContent") == "good":
            break
        tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("heading", name="good", level=2)).to_be_visible()
    tab.get_by_role("button", name="Send the request").focus()
    tab.keyboard.press("Enter")
    expect(tab.get_by_label("Answer")).to_contain_text("OUTPUT0")


def test_no_screen_needs_no_scrolling_sideways(open_page: Callable[..., Any], page: Page) -> None:
    """U8: from a telephone to a wide screen, light and dark."""
    views = ("", "#/models/good", "#/models/wrong")
    for path, width, colors in product(views, (360, 768, 1280, 1920), ("light", "dark")):
        tab = open_page(page.url + path, width=width, colors=colors)
        expect(tab.get_by_role("heading", level=2)).to_be_visible()
        expect(tab.locator("table").first).to_be_visible()
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
