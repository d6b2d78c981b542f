"""Conversations as requests: a model with a chat template, one without, and what else may be the prompt."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm.tests.backend.conftest import Asker, WriteModel
from llm.tests.backend.tiny import byte_level, write_decoder
from repoagent.errors import RepoAgentError
from repoagent.serving.core import ServingCore

pytestmark = pytest.mark.slow

TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ mood }}"
HELLO = json.dumps([{"role": "user", "content": "hello é"}])


@pytest.fixture(scope="session")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder folder whose tokenizer puts a special token before every text, as its template does."""
    from tokenizers import processors

    inner = byte_level()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder = write_decoder(tmp_path_factory.mktemp("llm") / "chatty", inner)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}}))
    return folder


@pytest.fixture
def chat(core: ServingCore, write_llm: WriteModel, chatty: Path) -> Asker:
    write_llm(folder=chatty)
    core.load("m")
    return Asker(core)


Ask = Callable[..., Any]


@pytest.fixture
def ask(chat: Asker) -> Ask:
    """The answer to a request without ``text_input``."""

    def one(**inputs: Any) -> Any:
        return chat.send(chat.request("", prompt="", **inputs))

    return one


def test_a_conversation_is_the_prompt_that_its_template_makes(chat: Asker, ask: Ask) -> None:
    wanted: dict[str, Any] = {"max_tokens": 12, "return_num_input_tokens": True, "exclude_input_in_output": True}
    plain = chat.ask("[user]hello églad", **wanted).one()
    talk = ask(messages=HELLO, chat_template_kwargs='{"mood": "glad"}', **wanted).one()
    # The special token at the beginning is there once, though template and tokenizer both write it.
    for name in ("text_output", "num_input_tokens"):
        assert talk.outputs[name].array.tolist() == plain.outputs[name].array.tolist()


def test_the_answer_has_no_prompt_in_it_unless_it_is_wanted(ask: Ask) -> None:
    (answer,) = ask(messages=HELLO, max_tokens=5).texts()
    (whole,) = ask(messages=HELLO, max_tokens=5, exclude_input_in_output=False).texts()
    assert whole == "[user]hello é" + answer


def test_tokens_are_a_prompt_as_they_are(chat: Asker, ask: Ask) -> None:
    wanted: dict[str, Any] = {"max_tokens": 12, "exclude_input_in_output": True}
    ids = [1, *byte_level().encode("hello").ids]
    assert ask(input_ids=ids, **wanted).texts() == chat.ask("hello", **wanted).texts()


def test_without_a_limit_a_conversation_is_answered_as_long_as_there_is_room(
    core: ServingCore, write_llm: WriteModel, chatty: Path
) -> None:
    write_llm(folder=chatty, max_seq_len=64)
    core.load("m")
    asker = Asker(core)
    request = asker.request("", end_id=-1, return_num_output_tokens=True, return_num_input_tokens=True)
    request.inputs = {**asker.request(HELLO).inputs, **request.inputs}
    request.inputs["messages"] = asker.request(HELLO).inputs["text_input"]
    del request.inputs["text_input"]
    outputs = asker.send(request).one().outputs
    assert outputs["num_input_tokens"].array[0] + outputs["num_output_tokens"].array[0] == 64


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({}, "needs one of the inputs text_input, messages, input_ids; this one has none of them"),
        ({"messages": HELLO, "input_ids": [1]}, "this one has 'messages' and 'input_ids'"),
        ({"messages": "{}"}, "messages must be a JSON list"),
        ({"messages": b"\xff"}, "input 'messages' is not UTF-8"),
        ({"input_ids": [1], "chat_template_kwargs": "{}"}, "'chat_template_kwargs' is for 'messages'"),
        ({"input_ids": [1] * 4000}, "the prompt has 4000 tokens"),
        ({"input_ids": [-1]}, "tokens outside of 0 to"),
        ({"input_ids": [1 << 30]}, "tokens outside of 0 to"),
        ({"messages": json.dumps([{"role": "user", "content": "x" * 70_000}])}, "the prompt has"),
    ],
)
def test_what_is_no_prompt_is_refused(inputs: dict[str, Any], text: str, ask: Ask) -> None:
    (response,) = ask(max_tokens=2, **inputs).wait()
    assert text in str(response.error)


def test_a_model_without_a_template_refuses_conversations_by_name(asker: Asker) -> None:
    request = asker.request(HELLO, prompt="messages")
    (response,) = asker.send(request).wait()
    assert "input 'messages' needs a chat template, which this model does not have" in str(response.error)


def test_a_model_whose_configuration_names_its_prompt_answers_conversations(
    core: ServingCore, write_llm: WriteModel, chatty: Path
) -> None:
    write_llm("m", 'input { name: "text_input" data_type: TYPE_STRING dims: 1 }', folder=chatty)
    core.load("m")
    asker = Asker(core)
    request = asker.request(HELLO, max_tokens=3, prompt="messages")
    assert len(asker.send(request).texts()) == 1


def test_rows_of_a_batch_are_conversations_each(core: ServingCore, write_llm: WriteModel, chatty: Path) -> None:
    write_llm("m", "max_batch_size: 4", folder=chatty)
    core.load("m")
    asker = Asker(core)
    request = asker.request(HELLO, batching=True, max_tokens=3, prompt="messages")
    assert len(asker.send(request).texts()) == 1


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("chat_template.jinja", "{% if %}", "'1': the model's chat template fails: TemplateSyntaxError"),
        ("chat_template.jinja", b"\xff", "'1/chat_template.jinja' is not UTF-8"),
        ("tokenizer_config.json", "{", "'1/tokenizer_config.json' is not valid JSON"),
        ("tokenizer_config.json", "[" * 100_000, "'1/tokenizer_config.json' is not valid JSON"),
        ("tokenizer_config.json", '{"chat_template": [{"name": 1}]}', "chat_template must be a text, or a list"),
        ("tokenizer_config.json", "[]", "must be a JSON object"),
    ],
)
def test_a_file_that_makes_no_sense_fails_the_load(
    name: str, content: str | bytes, text: str, core: ServingCore, write_llm: WriteModel
) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    (write_llm() / "1" / name).write_bytes(data)
    with pytest.raises(RepoAgentError) as failure:
        core.load("m")
    assert text in str(failure.value)


def test_templates_come_from_any_of_their_files(core: ServingCore, write_llm: WriteModel) -> None:
    folder = write_llm() / "1"
    named = [{"name": "default", "template": "x"}, {"name": "rag", "template": "of the list"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("of a file")
    core.load("m")
    asker = Asker(core)
    for options, prompt in (
        ("{}", "x"),
        ('{"chat_template": "rag"}', "of the list"),
        ('{"tools": []}', "of a file"),
    ):
        request = asker.request(
            HELLO, max_tokens=2, exclude_input_in_output=False, chat_template_kwargs=options, prompt="messages"
        )
        assert asker.send(request).texts()[0].startswith(prompt)
