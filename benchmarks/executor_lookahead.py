"""What guesses by lookahead save: n-grams of the text itself, and of earlier answers.

    python benchmarks/executor_lookahead.py [--requests 4] [--tokens 24] [--rounds 3] [--form paged]

A random Llama of 5 M parameters, whose texts repeat themselves, and prompts of 128 tokens. "without": no guesses; "own
text": ``LookaheadDecodingConfig``; "and answers": also ``config.answer_ngrams``, with the same prompts under one cache
salt in every round, so that each answer was given before. The ways take turns, after a round that does not count. Each
line has the model's steps for a text, tokens a second, and the ratio of that to "without".
"""

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from executor_runs import LENGTH, THREADS, all_at_once, decoder_folder, opened
from executor_speed import SCALE, SIZES
from measures import columns, in_turns, options_of, ratio, seconds, table
from repoagent_llm import DecodingConfig, Executor, LookaheadDecodingConfig, Request, RunnerOptions
from repoagent_llm.builder import Form

from examples.executor.synthetic import synthetic_checkpoint

_GUESSES = {"decoding_config": DecodingConfig(lookahead_decoding_config=LookaheadDecodingConfig(4, 4, 4))}
WAYS: dict[str, dict[str, Any]] = {
    "without": {},
    "own text": _GUESSES,
    "and answers": _GUESSES | {"answer_ngrams": 1 << 16},
}


def measure(executor: Executor, count: int, tokens: int) -> tuple[float, float]:
    """Steps for a text, and tokens a second."""
    prompts = [arrival.prompt for arrival in all_at_once(count, SIZES["5m"]["vocab_size"])]
    answers: list[Any] = []

    def ask() -> None:
        ids = executor.enqueue_requests([Request(prompt, tokens, cache_salt_id=1) for prompt in prompts])
        answers.extend(responses[0].result for responses in executor.await_responses(ids))

    took = seconds(ask)
    return sum(answer.decoding_iter for answer in answers) / count, count * tokens / took


def main() -> None:
    args = options_of(__doc__, requests=4, tokens=24, rounds=3, form=Form.PAGED)
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        checkpoint = synthetic_checkpoint(Path(place, "checkpoint"), scale=SCALE, **SIZES["5m"])
        folder, options = decoder_folder(checkpoint, form=args.form), RunnerOptions(THREADS, max_seq_len=LENGTH)
        takes = {
            name: partial(measure, stack.enter_context(opened(folder, options, **way)), args.requests, args.tokens)
            for name, way in WAYS.items()
        }
        found = in_turns(takes, args.rounds, warm=1)
    speeds = {name: [speed for _, speed in samples] for name, samples in found.items()}
    lines = [(name, columns(samples), ratio(speeds, name, "without")) for name, samples in found.items()]
    print(
        table(["", "steps", "tokens/s", "ratio"], [[n, f"{s:.1f}", f"{v:.0f}", f"{r:.2f}"] for n, (s, v), r in lines])
    )


if __name__ == "__main__":
    main()
