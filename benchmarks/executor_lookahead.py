"""What guesses by lookahead save: n-grams of the text itself, and of earlier answers.

    python benchmarks/executor_lookahead.py [--requests 4] [--tokens 24] [--rounds 3] [--form paged] [--size 5m]
        [--precision fp32] [--new]

A random Llama, whose texts repeat themselves, and prompts of 128 tokens; with ``--new`` no text has two tokens in a row
a second time, so that all that guesses do is to cost. "without": no guesses; "own
text": ``LookaheadDecodingConfig``; "and answers": also ``config.answer_ngrams``, with the same prompts under one cache
salt in every round, so that each answer was given before. The ways take turns, after a round that does not count. Each
line has the model's steps for a text, tokens a second, and the ratio of that to "without".
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from executor_runs import LENGTH, THREADS, all_at_once, decoder_folder, opened
from executor_speed import SCALE, SIZES
from measures import columns, in_turns, options_of, ratio, seconds, table
from repoagent_llm import DecodingConfig, Executor, LookaheadDecodingConfig, Request, RunnerOptions, SamplingConfig
from repoagent_llm.builder import Form, Precision

from examples.executor.synthetic import synthetic_checkpoint

_GUESSES = {"decoding_config": DecodingConfig(lookahead_decoding_config=LookaheadDecodingConfig(4, 4, 4))}
WAYS: dict[str, dict[str, Any]] = {
    "without": {},
    "own text": _GUESSES,
    "and answers": _GUESSES | {"answer_ngrams": 1 << 16},
}


def measure(
    executor: Executor, prompts: Sequence[list[int]], tokens: int, sampling: SamplingConfig
) -> tuple[float, float]:
    """Steps for a text, and tokens a second."""
    answers: list[Any] = []

    def ask() -> None:
        wanted = [Request(prompt, tokens, cache_salt_id=1, sampling_config=sampling) for prompt in prompts]
        ids = executor.enqueue_requests(wanted)
        answers.extend(responses[0].result for responses in executor.await_responses(ids))

    took = seconds(ask)
    return sum(answer.decoding_iter for answer in answers) / len(prompts), len(prompts) * tokens / took


def main() -> None:
    given = {"requests": 4, "tokens": 24, "rounds": 3, "form": Form.PAGED, "precision": Precision.FP32}
    args = options_of(__doc__, **given, size=("5m", f"one of {', '.join(SIZES)}"), new=False)
    prompts = [arrival.prompt for arrival in all_at_once(args.requests, SIZES[args.size]["vocab_size"])]
    sampling = SamplingConfig(no_repeat_ngram_size=2) if args.new else SamplingConfig()
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        checkpoint = synthetic_checkpoint(Path(place, "checkpoint"), scale=SCALE, **SIZES[args.size])
        folder = decoder_folder(checkpoint, args.precision, form=args.form)
        options = RunnerOptions(THREADS, max_seq_len=LENGTH)
        takes = {
            name: partial(measure, stack.enter_context(opened(folder, options, **way)), prompts, args.tokens, sampling)
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
