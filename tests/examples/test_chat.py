"""The chat model of examples/chat: what it knows, how it writes, and that it is what its scripts make."""

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment
from repoagent_server import KServeHttp
from tokenizers import Tokenizer

from repoagent.server import ModelControlMode, Server

pytestmark = pytest.mark.slow

CHAT = Path(__file__).resolve().parents[2] / "examples" / "chat"
CHECKPOINT = CHAT / "repository" / "elmbrook" / "1"
LARGEST = 10_000_000
LEAST_RIGHT = {"follow-up": 0.95, "reading": 0.4, "unknown": 0.95, "villagers": 0.95, "world": 0.7, "yes or no": 0.9}
"""The share of right answers that each kind of question must reach; what it is, judge.py prints."""


@pytest.fixture(scope="module", autouse=True)
def _scripts() -> Iterator[None]:
    """The example's modules can be imported."""
    sys.path.insert(0, str(CHAT))
    yield
    sys.path.remove(str(CHAT))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("chat")
    with Server(
        model_repository=str(CHAT / "repository"),
        model_control_mode=ModelControlMode.EXPLICIT,
        workspace_directory=str(place / "work"),
        agent_cache_directory=str(place / "cache"),
    ) as server:
        server.load("elmbrook")
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    openai = pytest.importorskip("openai")
    with (
        KServeHttp(server, KServeHttp.Options(port=0, allow_openai=True)) as http,
        openai.OpenAI(base_url="http://{}:{}/v1".format(*http.address), api_key="any") as client,
    ):
        yield client


def ask(client: Any, text: str, **fields: Any) -> str:
    messages = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model="elmbrook", messages=messages, **fields)
    return str(answer.choices[0].message.content)


def test_it_answers_questions_that_it_has_not_seen(server: Server) -> None:
    shares = import_module("judge").judge(server.model("elmbrook"))
    assert shares.keys() == LEAST_RIGHT.keys()
    assert min(total for _, total in shares.values()) >= 30
    right, total = (sum(numbers) for numbers in zip(*shares.values(), strict=True))
    assert total > 300
    assert right >= 0.83 * total
    weak = {kind: share for kind, share in shares.items() if share[0] < LEAST_RIGHT[kind] * share[1]}
    assert weak == {}


def test_it_is_not_trained_with_the_questions_that_judge_it() -> None:
    conversations = import_module("elmbrook.conversations")
    asked = {tuple(message["content"] for message in exam.messages) for exam in import_module("judge").exams()}
    assert len(asked) > 300
    draw = random.Random(3)
    for number in range(6000):
        turns = (conversations.practice_text if number % 2 else conversations.training_text)(draw)
        assert not asked & {(wish,) for wish, _ in turns}
        assert not asked & {(wish, answer, after) for (wish, answer), (after, _) in pairwise(turns)}


def test_every_fact_is_trained_in_some_wording() -> None:
    questions = import_module("elmbrook.questions")
    every = questions.questions()
    trained = {question.fact for question in every if not questions.held_out(question.text)}
    assert {question.fact for question in every} == trained


STORY = "Tell me a story about an owl."


def test_a_story_reads_as_language(client: Any) -> None:
    stories = import_module("elmbrook.stories")
    draw = random.Random(4)
    known = {word for _ in range(3000) for word in re.findall(r"[\w']+", stories.story(draw))}
    story = ask(client, STORY, temperature=0)
    assert len(story.split()) > 40
    assert "owl" in story
    assert set(re.findall(r"[\w']+", story)) <= known
    assert len(set(story.split()) & set(stories._NAMES)) == 1, "the hero keeps its name"
    assert re.fullmatch(r'[A-Z].*[.!?]"?', story)
    assert len(re.findall(r'[.!?]"?(?: [A-Z"]|$)', story)) >= 5


def test_greedy_sampled_and_guided_answers_differ(client: Any) -> None:
    greedy = [ask(client, STORY, temperature=0) for _ in range(2)]
    assert greedy[0] == greedy[1]
    sampled = [ask(client, STORY, temperature=1, seed=seed) for seed in range(4)]
    assert len({*greedy, *sampled}) == 5
    assert ask(client, STORY, temperature=1, seed=2) == sampled[2]


@pytest.mark.parametrize(
    "keys", [("name", "job"), ("job", "pet", "friend"), ("name", "job", "pet", "home", "food", "friend")]
)
def test_a_guided_answer_is_json_with_the_facts(keys: tuple[str, ...], client: Any) -> None:
    world = import_module("elmbrook.world")
    described = import_module("elmbrook.conversations").JSON_KEYS
    schema = {
        "type": "object",
        "properties": {key: {"enum": sorted({described[key](one) for one in world.VILLAGERS})} for key in keys},
        "required": list(keys),
        "additionalProperties": False,
    }
    guide = {"type": "json_schema", "json_schema": {"name": "villager", "schema": schema}}
    found = {}
    for person in world.VILLAGERS:
        wish = f"Tell me about {person.name}."
        answer = json.loads(ask(client, wish, temperature=0, response_format=guide))
        assert list(answer) == list(keys)
        found[person.name] = answer == {key: described[key](person) for key in keys}
    assert sum(found.values()) >= 14, found
    assert ask(client, wish, temperature=0).startswith("Paul is the postman of Elmbrook. He lives at the end")


def test_the_stream_has_the_same_text_in_pieces(client: Any) -> None:
    messages = [{"role": "user", "content": "Who is the baker?"}]
    chunks = client.chat.completions.create(model="elmbrook", messages=messages, temperature=0, stream=True)
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(pieces) > 3
    assert "".join(pieces) == "The baker of Elmbrook is Ada."


def test_what_is_shipped_is_small_and_a_checkpoint() -> None:
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) <= LARGEST
    names = {file.name for file in CHECKPOINT.iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    } == names
    with (CHECKPOINT / "model.safetensors").open("rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    assert {entry["dtype"] for name, entry in head.items() if name != "__metadata__"} == {"BF16"}


def test_the_tokenizer_is_the_one_that_the_text_makes() -> None:
    made = import_module("elmbrook.encoding").tokenizer()
    assert json.loads(made.to_str()) == json.loads((CHECKPOINT / "tokenizer.json").read_text())


def test_training_sees_conversations_as_the_template_writes_them() -> None:
    encoding = import_module("elmbrook.encoding")
    conversations = import_module("elmbrook.conversations")
    template = json.loads((CHECKPOINT / "tokenizer_config.json").read_text())["chat_template"]
    words = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    render = Environment(autoescape=False).from_string(template).render
    draw = random.Random(5)
    for number in range(300):
        turns = conversations.conversation(draw)
        system = "Be brief." if number % 2 else ""
        messages = [{"role": "system", "content": system}] if system else []
        for wish, answer in turns:
            messages += [{"role": "user", "content": wish}, {"role": "assistant", "content": answer}]
        tokens, _ = encoding.encoded(words, turns, system)
        rendered = words.encode(render(messages=messages, add_generation_prompt=False), add_special_tokens=False).ids
        assert tokens == rendered[:-1]


def test_conversations_go_as_in_transformers(client: Any) -> None:
    stored = json.loads((Path(__file__).with_name("data") / "elmbrook.json").read_text(encoding="utf-8"))
    assert len(stored) >= 10
    for conversation in stored:
        messages = conversation["messages"]
        for number in range(1, len(messages), 2):
            answer = client.chat.completions.create(
                model="elmbrook", messages=messages[:number], temperature=0, max_tokens=200
            )
            assert answer.choices[0].message.content == messages[number]["content"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page asks with curl, which is not installed")
def test_the_commands_of_its_page_run(server: Server) -> None:
    page = (CHAT / "README.md").read_text()
    commands = re.findall(r"^    (curl .*?\}')$", page, re.MULTILINE | re.DOTALL)
    assert len(commands) == 3
    with KServeHttp(server, KServeHttp.Options(port=0, allow_openai=True)) as http:
        host = "{}:{}".format(*http.address)
        streamed, story, guided = (
            subprocess.run(
                ["bash", "-c", command.replace("curl ", "curl -s ", 1).replace("localhost:8000", host)],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            ).stdout
            for command in commands
        )
    assert streamed.count("data: ") > 5
    assert "owl" in json.loads(story)["choices"][0]["message"]["content"]
    assert json.loads(json.loads(guided)["choices"][0]["message"]["content"]) == {"name": "Ada", "job": "baker"}
