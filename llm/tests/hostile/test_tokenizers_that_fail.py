"""A tokenizer of the model's owner, whose patterns take for ever or bring the library down."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from repoagent_llm.backend.tokenizing import Tokenizer

from llm.tests.backend.conftest import Asker, WriteModel
from llm.tests.backend.tiny import byte_level
from repoagent.serving.core import ServingCore

pytestmark = pytest.mark.slow

ENDLESS = "^(a+)+$"
"""After the letter a, often, and another: more steps than the library takes, and it panics."""
BAIT = "a" * 30 + "b"


def change(folder: Path, **parts: Any) -> None:
    """Put ``parts`` into the tokenizer in ``folder``."""
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | parts))


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


@pytest.fixture
def hostile(core: ServingCore, write_llm: WriteModel) -> Callable[..., Asker]:
    """The model ``m`` with another tokenizer, beside the model ``honest``, and who asks them."""

    def make(**parts: Any) -> Asker:
        write_llm("honest")
        change(write_llm() / "1", **parts)
        core.load("honest")
        core.load("m")
        return Asker(core)

    return make


@pytest.mark.parametrize("long", [0, 5000], ids=["short", "long"])
def test_a_panic_while_a_prompt_is_read_is_the_answer(hostile: Callable[..., Asker], long: int) -> None:
    alphabet = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    asker = hostile(pre_tokenizer={"type": "Sequence", "pretokenizers": [split(ENDLESS), alphabet]})
    for _ in range(3):
        (response,) = asker.ask("a" * long + BAIT).wait()
        assert "the model's tokenizer failed" in str(response.error)
    asker.ask("c", max_tokens=2).one()
    asker.ask("hello", "honest", max_tokens=2).one()


def test_a_pattern_that_takes_long_stops_no_other_thread(tmp_path: Path) -> None:
    """The library would hold the interpreter lock, and a prompt of 64 kB the whole server, for minutes."""
    byte_level().save(str(tmp_path / "tokenizer.json"))
    change(tmp_path, pre_tokenizer=split("(a+)+b|a"), decoder=None)
    tokenizer = Tokenizer.load(tmp_path)
    ended, switches = threading.Event(), [0]

    def work() -> None:
        tokenizer.encode(("a" * 20 + "c") * 10)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not ended.wait(0.001):
        switches[0] += 1
    thread.join()
    assert switches[0] > 5


def test_a_panic_while_a_text_is_shown_is_the_answer(hostile: Callable[..., Asker]) -> None:
    replace = {"type": "Replace", "pattern": {"Regex": "^(.+)+(?!.)(?=.)"}, "content": ""}
    asker = hostile(decoder={"type": "Sequence", "decoders": [{"type": "Fuse"}, replace]})
    for _ in range(3):
        (response,) = asker.ask("c" * 40, max_tokens=30).wait()
        assert "the model's tokenizer failed" in str(response.error)
    asker.ask("hello", "honest", max_tokens=2).one()
