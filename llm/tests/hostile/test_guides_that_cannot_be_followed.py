"""A guide that the model's tokens cannot spell, or that the rest of the request forbids, is the fault of its request:
at the first token or later."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from llm.tests.backend.conftest import Asker
from llm.tests.backend.tiny import SPECIAL, write_decoder
from repoagent.errors import InvalidArgumentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore

DIGITS = "0123456789"


def digits_only() -> Any:
    """A tokenizer of a model that can only count."""
    vocabulary = {name: number for number, name in enumerate([*SPECIAL, *DIGITS])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


CONFIG = """backend: "llm"
parameters { key: "guided_decoding_backend" value { string_value: "llguidance" } }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
parameters { key: "max_beam_width" value { string_value: "2" } }
"""


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """Who asks a model that has a token for each digit, and no others."""
    models = tmp_path_factory.mktemp("counting") / "models"
    (models / "m").mkdir(parents=True)
    (models / "m" / "config.pbtxt").write_text(CONFIG)
    write_decoder(models.parent / "digits", digits_only()).rename(models / "m" / "1")
    with ServingCore(CoreOptions(repositories=(str(models),), control_mode=ControlMode.EXPLICIT)) as core:
        core.load("m")
        yield Asker(core)


def _guided(kind: str, guide: str, **more: Any) -> dict[str, Any]:
    return {"guided_decoding_guide_type": kind, "guided_decoding_guide": guide, "max_tokens": 8, **more}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "wishes",
    [
        _guided("regex", "[xyz]{3}"),
        _guided("regex", "123[xyz]"),
        _guided("json_schema", json.dumps({"type": "object", "required": ["a"]})),
        _guided("ebnf_grammar", 'root ::= "12" ("x" | "y")'),
        _guided("regex", "77", bad_words=["7"]),
        _guided("regex", "[0-9]{4}", bad_words=list(DIGITS)),
        _guided("regex", "12x", sampling_parameters=json.dumps({"top_p": 0.9, "temperature": 1.5})),
        _guided("regex", "12x", sampling_parameters=json.dumps({"n": 3, "temperature": 1.5})),
        _guided("regex", "12x", beam_width=2),
    ],
    ids=["at once", "later", "an object", "a grammar", "a banned word", "all banned", "drawn", "several", "beams"],
)
def test_it_is_refused_as_the_clients_fault(counting: Asker, wishes: dict[str, Any], stream: bool) -> None:
    *pieces, last = counting.ask("1", stream=stream, **wishes).wait()
    assert isinstance(last.error, InvalidArgumentError), last.error
    assert len(str(last.error)) < 400
    assert all(piece.error is None for piece in pieces)
    assert counting.ask("1", **_guided("regex", "12"), exclude_input_in_output=True).texts() == ["12"]
