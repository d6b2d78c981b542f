"""Guided output under the schemas of the JSON-Schema test suite: is every text valid under its schema?

    pip download --no-deps --no-binary :all: jsonschema
    python benchmarks/executor_guided_schemas.py --sdist jsonschema-*.tar.gz

Each schema of the suite (draft 2020-12, inside the sdist) guides a model that knows nothing, with several seeds.
Prints how many schemas were used, and each one left out with the reason. Exits 1 if a text is not valid.
"""

import json
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
from measures import options_of
from repoagent_llm import (
    Executor,
    ExecutorConfig,
    FinishReason,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    OutputConfig,
    Request,
    SamplingConfig,
)
from repoagent_llm.guidance.vocabulary import Vocabulary
from tokenizers import pre_tokenizers

from llm.tests.fake_runner import FakeRunner, hashed_logits

FOLDER = "/json/tests/draft2020-12/"
SEEDS = range(4)
MAX_TOKENS = 400
BYTE_LEVEL = json.dumps({"decoder": {"type": "ByteLevel"}})
END = "<end>"


@dataclass(frozen=True, slots=True)
class Case:
    """A schema and where it stands."""

    name: str
    schema: Any


def read_cases(path: Path) -> Iterator[Case]:
    """All schemas of the suite's required part."""
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            _, inside, name = member.name.partition(FOLDER)
            if not inside or "/" in name or not name.endswith(".json"):
                continue
            file = archive.extractfile(member)
            assert file is not None
            for group in json.load(file):
                yield Case(f"{name}: {group['description']}", group["schema"])


def judge(executor: Executor, vocabulary: Vocabulary, case: Case) -> str:
    """ "valid", "WRONG: ..." or the reason for which the schema was left out."""
    guide = GuidedDecodingParams(GuidedDecodingParams.GuideType.JSON_SCHEMA, json.dumps(case.schema))
    requests = [
        Request(
            [1],
            MAX_TOKENS,
            guided_decoding_params=guide,
            sampling_config=SamplingConfig(top_p=0.95, seed=seed),
            output_config=OutputConfig(exclude_input_from_output=True),
        )
        for seed in SEEDS
    ]
    answers = executor.await_responses(executor.enqueue_requests(requests), timedelta(seconds=60))
    complete = 0
    for (answer,) in answers:
        if answer.has_error():
            return "not compiled: " + answer.error_msg.partition(": ")[2].splitlines()[0][:90]
        result = answer.result
        if result.finish_reasons[0] is not FinishReason.END_ID:
            continue
        complete += 1
        text = b"".join(vocabulary.tokens[token] for token in result.output_token_ids[0])
        try:
            jsonschema.Draft202012Validator(case.schema).validate(json.loads(text))
        except (jsonschema.ValidationError, ValueError) as error:
            return f"WRONG: {text!r}: {str(error).splitlines()[0]}"
        except Exception as error:  # the suite's references to servers and to other documents
            return f"not judged by jsonschema: {type(error).__name__}"
    return "valid" if complete else f"no text came to an end within {MAX_TOKENS} tokens"


def main() -> None:
    """Judge all schemas."""
    args = options_of(__doc__, sdist=(Path, "jsonschema-VERSION.tar.gz"))
    texts = [END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = GuidedDecodingConfig.GuidedDecodingBackend.LLGUIDANCE
    config = GuidedDecodingConfig(backend, texts, BYTE_LEVEL, [0])
    vocabulary = Vocabulary.of(texts, BYTE_LEVEL, [0], len(texts))
    runner = FakeRunner(vocab_size=len(texts), max_seq_len=MAX_TOKENS + 8, logits=_towards_the_end(len(texts)))
    with Executor.from_runner(runner, ExecutorConfig(guided_decoding_config=config)) as executor:
        verdicts = {case.name: judge(executor, vocabulary, case) for case in read_cases(args.sdist)}
    for name, verdict in verdicts.items():
        if verdict != "valid":
            print(f"{name} -- {verdict}")
    counts = Counter(verdict.partition(":")[0] for verdict in verdicts.values())
    print(f"{len(verdicts)} schemas: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    sys.exit(any(verdict.startswith("WRONG") for verdict in verdicts.values()))


def _towards_the_end(size: int) -> Any:
    """Random logits that prefer the end, quotes and closing brackets, so that texts come to an end."""
    logits = hashed_logits(size)
    closing = [0, *(1 + sorted(pre_tokenizers.ByteLevel.alphabet()).index(mark) for mark in '"]}')]

    def preferring(history: list[int]) -> Any:
        row = logits(history)
        row[closing] += 6
        return row

    return preferring


if __name__ == "__main__":
    main()
