"""Conversations rendered with templates of published models, beside what transformers renders."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from repoagent_llm.backend.chat import renderer, template_child
from repoagent_llm.backend.chat.renderer import ChatRenderer
from repoagent_llm.backend.chat.source import ChatSource

from repoagent.errors import ConfigError, InvalidArgumentError, UnavailableError, UnsupportedError
from repoagent.limits import Limits

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data" / "chat"
STORED: dict[str, Any] = json.loads((DATA / "pairs.json").read_text(encoding="utf-8"))
TEMPLATES = {file.name: file.read_text(encoding="utf-8") for file in DATA.glob("*.jinja")}
DATED = {name for name, text in TEMPLATES.items() if "strftime_now" in text}
USER = '[{"role": "user", "content": "hello"}]'


def source(template: str, **further: str) -> ChatSource:
    return ChatSource({"default": template, **further}, STORED["special"])


@pytest.fixture
def made() -> Iterator[Any]:
    """Makes renderers, which end with the test."""
    renderers: list[ChatRenderer] = []

    def make(template: str, limits: Limits | None = None, **further: str) -> ChatRenderer:
        renderers.append(ChatRenderer(source(template, **further), "1", limits or Limits()))
        return renderers[-1]

    yield make
    for one in renderers:
        one.close()


def conversation(case: str) -> tuple[str, str]:
    stored = STORED["cases"][case]
    return json.dumps(stored["messages"]), json.dumps(stored["options"])


@pytest.mark.parametrize("name", sorted(TEMPLATES.keys() - DATED))
def test_a_published_template_renders_as_in_transformers(name: str, made: Any) -> None:
    pairs = {pair["case"]: pair["text"] for pair in STORED["pairs"] if pair["template"] == name}
    assert set(pairs) == set(STORED["cases"])
    renders = made(TEMPLATES[name])
    for case, text in pairs.items():
        if text is not None:
            assert renders.render(*conversation(case)) == text, case
            continue
        with pytest.raises(InvalidArgumentError, match="the model's chat template"):
            renders.render(*conversation(case))


@pytest.mark.parametrize("name", sorted(DATED))
def test_a_template_with_the_date_renders_as_in_transformers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    today = datetime.fromisoformat(STORED["today"])
    monkeypatch.setattr(template_child, "_now", today.strftime)
    renders = template_child._Renderer(
        {"templates": {"default": TEMPLATES[name]}, "special": STORED["special"], "longest": 1 << 20, "seconds": 1}
    )
    for pair in STORED["pairs"]:
        if pair["template"] == name:
            try:
                text = renders.render(*conversation(pair["case"]))
            except Exception:
                text = None
            assert text == pair["text"], pair["case"]


def test_there_are_eight_families_and_more() -> None:
    assert len(TEMPLATES) >= 8


def test_the_date_is_todays(made: Any) -> None:
    before = datetime.now().date()
    text = made("{{ strftime_now('%Y-%m-%d') }}").render(USER)
    assert before <= datetime.fromisoformat(text).date() <= datetime.now().date()


def test_named_templates_are_chosen_by_name_and_by_tools(made: Any) -> None:
    renders = made("plain", tool_use="with tools", rag="with documents")
    assert renders.render(USER) == "plain"
    assert renders.render(USER, '{"tools": []}') == "with tools"
    assert renders.render(USER, '{"chat_template": "rag"}') == "with documents"
    with pytest.raises(InvalidArgumentError, match="name of a template of the model: default, rag, tool_use"):
        renders.render(USER, '{"chat_template": "{{ 1 }}"}')


def test_options_reach_the_template_and_special_tokens_can_be_replaced(made: Any) -> None:
    renders = made("{{ bos_token }}{{ colour }}{% if add_generation_prompt %}!{% endif %}")
    assert renders.render(USER, '{"colour": "red"}') == "<s>red!"
    assert renders.render(USER, '{"bos_token": "", "add_generation_prompt": false}') == ""


@pytest.mark.parametrize(
    ("messages", "options", "text"),
    [
        ("{", None, "messages is not valid JSON"),
        ("[" * 100_000, None, "messages is not valid JSON"),
        ("[]", None, "at least one message"),
        ('{"role": "user"}', None, "at least one message"),
        ('["hello"]', None, r"messages\[0\] must be an object with a 'role'"),
        ('[{"role": "user"}, {"content": "x"}]', None, r"messages\[1\] must be an object with a 'role'"),
        (USER, "[]", "chat_template_kwargs must be a JSON object"),
        (USER, '{"messages": []}', "cannot have the name 'messages'"),
        (USER, '{"__class__": 1}', "cannot have the name '__class__'"),
        (USER, '{"continue_final_message": true, "add_generation_prompt": true}', "exclude each other"),
        ('[{"role": "user"}]', '{"continue_final_message": true}', "whose content is a text"),
        (USER, '{"continue_final_message": true, "colour": "red"}', "not in the text"),
    ],
)
def test_values_that_make_no_sense_are_refused(messages: str, options: str | None, text: str, made: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        made("nothing of it").render(messages, options)


def test_a_template_that_cannot_be_read_fails_the_load() -> None:
    with pytest.raises(ConfigError, match=r"'1': the model's chat template fails: TemplateSyntaxError: "):
        ChatRenderer(source("{% if %}"), "1")


def test_after_the_end_nothing_is_rendered_and_the_process_is_gone(made: Any) -> None:
    renders = made("x")
    process = renders._process._process
    renders.close()
    assert process.returncode is not None
    with pytest.raises(UnavailableError, match="unloaded"):
        renders.render(USER)


def test_a_process_that_was_killed_is_started_again(made: Any) -> None:
    renders = made("x")
    renders._process._process.kill()
    with pytest.raises(UnavailableError, match="ended with status"):
        renders.render(USER)
    assert renders.render(USER) == "x"


def test_a_library_with_known_holes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "version", lambda _: "3.1.5")
    with pytest.raises(UnsupportedError, match=r"needs jinja2 3.1.6 or newer; from a checkout: pip install '.\[llm\]'"):
        ChatRenderer(source("x"), "1")
