"""Speed of the executor beside onnxruntime-genai, on the same folders: prompts of 128 tokens, 64 greedy tokens.

    python benchmarks/executor_speed.py [--table speed] [--engines NAME...] [--requests 1 4 8 16] [--rate 5]

Each engine runs in a process of its own, with two threads. For 1, 4, 8 and 16 requests at once: tokens per second, mean
time to the first token, 99th percentile of the time between two tokens of a request (milliseconds); medians of
``--repeat`` samples. Then the same for requests that come at random; genai's Generator takes nothing while it runs, and
serves them one after the other. "same": how many texts are those of the first row. "others": the largest share of the
machine that other processes took in a sample that counts; samples with more than a tenth are repeated, for at most
``--patience`` seconds per line. The exit status is 1 if an engine is not installed or fails. Other engines stand beside
ours as servers, in llm_peers.py.

Each other ``--table`` has rows of our two runners alone:

- "large": 1.1 B parameters, prompts of 1024 tokens
- "prefix": a retained prefix of 1024 tokens that all requests share
- "guesses": texts that repeat themselves and texts that do not ("new"), with guesses from the text and without
- "experts": a Qwen3-MoE, on pages
- "long": 8 streams, and a prompt of 8192 tokens that is read beside them
"""

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from executor_runs import LENGTH, Run, Serve, Trace, all_at_once, at_random, beside_a_long_prompt, ours, ours_paged
from measures import options_of, quiet_samples, run, table
from repoagent_llm import DecodingConfig, LookaheadDecodingConfig
from repoagent_llm.builder import Precision

from examples.executor.synthetic import synthetic_checkpoint

SIZES: dict[str, dict[str, Any]] = {
    "125m": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "intermediate_size": 2048,
        "max_position_embeddings": 2048,
    },
    "5m": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 4096,
        "intermediate_size": 704,
        "max_position_embeddings": 2048,
    },
}
SIZES["1.1b"] = SIZES["125m"] | {
    "hidden_size": 2048,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "intermediate_size": 5632,
}
SIZES["125m-long"] = SIZES["125m"] | {"max_position_embeddings": 16384}
SIZES["experts"] = SIZES["125m"] | {
    "kind": "qwen3_moe",
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 192,
    "norm_topk_prob": True,
}
#: Standard deviation of the random weights.
SCALE = 0.02
ARRIVALS = 32
WEIGHTS: dict[str, tuple[Any, ...]] = {
    "fp32": (),
    "int8": (Precision.INT8,),
    "int4": (Precision.INT4,),
    "int4/128": (Precision.INT4, 128),
}
ENGINES = ["repoagent fp32", "repoagent-pages fp32", "genai-generator fp32", "genai-engine fp32"]
SHORT = ("repoagent", "repoagent-pages", "repoagent-pages-fast", "genai-generator")
ENGINES += [f"{engine} {kind}" for kind in ("int8", "int4") for engine in SHORT]
ENGINES += ["repoagent int4/128", "genai-generator int4/128"]
OURS = [f"{engine} {kind}" for kind in ("int8", "int4") for engine in SHORT[:3]]
PAGES = [name for name in OURS if "pages" in name]
Cases = Callable[[argparse.Namespace, int], dict[str, Trace]]


@dataclass(frozen=True, slots=True)
class Table:
    """Engines over one checkpoint, and the traces of requests that each of them gets, by case.

    ``length``: tokens of a sequence. ``settings``: of our executors.
    """

    cases: Cases
    size: str = "125m"
    engines: Sequence[str] = tuple(OURS)
    length: int = LENGTH
    settings: Mapping[str, Any] = field(default_factory=dict)


def at_once(**options: Any) -> Cases:
    """``--requests`` of one size that come together; ``options``: of ``all_at_once``."""
    return lambda args, vocab: {str(count): all_at_once(count, vocab, **options) for count in args.requests}


def usual(args: argparse.Namespace, vocab: int) -> dict[str, Trace]:
    """Together, and at random."""
    return {**at_once()(args, vocab), "arrivals": at_random(ARRIVALS, args.rate, vocab)}


def repeating_and_new(args: argparse.Namespace, vocab: int) -> dict[str, Trace]:
    """Texts of few tokens, which repeat themselves, and texts that never have two tokens in a row a second time."""
    new = at_once(no_repeat_ngram_size=2)(args, vocab)
    return {**at_once()(args, vocab), **{f"{count} new": trace for count, trace in new.items()}}


def long_prompt(_: argparse.Namespace, vocab: int) -> dict[str, Trace]:
    """What the streams' tokens wait for."""
    return {"8 + 8192": beside_a_long_prompt(8, 8192, 500, vocab)}


TABLES = {
    "speed": Table(usual, engines=ENGINES),
    "large": Table(at_once(prompt=1024, new_tokens=32), "1.1b", length=1088),
    "prefix": Table(at_once(prompt=32, shared=1024), length=1152, settings={"reuse": True}),
    "guesses": Table(repeating_and_new, engines=[f"{name}{more}" for name in PAGES for more in ("", "+guesses")]),
    "experts": Table(at_once(), "experts", ["repoagent-pages fp32", *PAGES]),
    "long": Table(long_prompt, "125m-long", length=8256, settings={"token_gap_seconds": 0.08}),
}
GUESSES = {"decoding_config": DecodingConfig(lookahead_decoding_config=LookaheadDecodingConfig(4, 4, 4))}
PACKAGES = {"genai": "onnxruntime_genai", "repoagent-pages": "openvino"}
#: The engines whose time to the first token ours is compared with.
RIVALS = ("genai-engine fp32", "genai-generator fp32")


def figures(run: Run, trace: Trace) -> dict[str, float]:
    """Tokens per second, and milliseconds to the first token and between tokens."""
    for arrival, tokens in zip(trace, run.tokens, strict=True):
        if len(tokens) != arrival.new_tokens:
            raise RuntimeError(f"{len(tokens)} tokens came, {arrival.new_tokens} were asked for")
    first = [1000 * (moments[0] - arrival.at) for moments, arrival in zip(run.moments, trace, strict=True)]
    between = [1000 * gap for moments in run.moments for gap in np.diff(moments)]
    seconds = max(moments[-1] for moments in run.moments)
    return {
        "rate": sum(map(len, run.tokens)) / seconds,
        "first": statistics.mean(first),
        "first_p95": float(np.percentile(first, 95)),
        "between_p99": float(np.percentile(between, 99)),
    }


def opened(name: str, checkpoint: Path, wanted: Table) -> Serve:
    """One of the table's engines."""
    engine, _, kind = name.partition(" ")
    kind, _, guesses = kind.partition("+")
    opening: Callable[..., Serve]
    if engine.startswith("repoagent"):
        pages = partial(ours_paged, exact=not engine.endswith("fast"))
        settings = {**wanted.settings, **(GUESSES if guesses else {})}
        opening = partial(ours if engine == "repoagent" else pages, length=wanted.length, **settings)
    else:
        import executor_genai

        opening = getattr(executor_genai, engine.replace("-", "_"))
    return opening(checkpoint, *WEIGHTS[kind])


def measure(name: str, checkpoint: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One engine, in this process: figures by case, the texts of the largest case, and what others used."""
    wanted = TABLES[args.table]
    serve = opened(name, checkpoint, wanted)
    size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    cases = wanted.cases(args, size)
    serve(next(iter(cases.values()))[:1])
    found: dict[str, Any] = {"others": 0.0, "tokens": []}
    for case, trace in cases.items():
        # One run of arrivals is many requests long already.
        repeat = 1 if case == "arrivals" else args.repeat
        runs, others = quiet_samples(partial(serve, trace), repeat, args.patience / len(cases))
        samples = [figures(run, trace) for run in runs]
        found[case] = {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}
        found["others"] = max(found["others"], others)
        found["tokens"] += [] if case == "arrivals" else runs[0].tokens
    return found


def same(found: dict[str, Any], first: dict[str, Any]) -> str:
    pairs = list(zip(found["tokens"], first["tokens"], strict=True))
    return f"{sum(left == right for left, right in pairs)}/{len(pairs)}"


def show(args: argparse.Namespace, results: dict[str, dict[str, Any]]) -> None:
    first = next(iter(results.values()))
    keys = {"rate": "tok/s", "first": "first", "between_p99": "p99"}
    cases = [case for case in first if case not in ("arrivals", "others", "tokens")]
    head = [args.table, *(f"{case} {what}" for case in cases for what in keys.values()), "same", "others"]
    rows = [
        [
            name,
            *(f"{found[case][key]:.0f}" for case in cases for key in keys),
            same(found, first),
            f"{found['others']:.0%}",
        ]
        for name, found in results.items()
    ]
    print(table(head, rows))
    if "arrivals" not in first:
        return
    coming = [
        [name, *(f"{found['arrivals'][key]:.0f}" for key in ("rate", "first", "first_p95", "between_p99"))]
        for name, found in results.items()
    ]
    print("\n" + table((f"{args.rate:g} a second", "tok/s", "first mean", "first p95", "between p99"), coming))
    for rival in RIVALS if "repoagent fp32" in results else ():
        if rival in results:
            times = results[rival]["arrivals"]["first"] / results["repoagent fp32"]["arrivals"]["first"]
            print(f"first token: {times:.1f} times sooner than {rival}")


def main() -> int:
    """Run all engines that are asked for."""
    args = options_of(
        __doc__,
        table=("speed", f"one of {', '.join(TABLES)}"),
        engines=[""],
        requests=[1, 4, 8, 16],
        repeat=3,
        rate=(5.0, "requests per second where they come at random"),
        patience=(60.0, "seconds to wait for a quiet machine, per engine"),
        one=(Path, "print the figures of one engine on this checkpoint, as JSON"),
    )
    if args.one:
        print(json.dumps(measure(args.engines[0], args.one, args)))
        return 0
    failed, results = 0, {}
    with tempfile.TemporaryDirectory() as place:
        wanted = TABLES[args.table]
        checkpoint = synthetic_checkpoint(Path(place) / "checkpoint", scale=SCALE, **SIZES[wanted.size])
        for name in args.engines if any(args.engines) else wanted.engines:
            try:
                for engine, package in PACKAGES.items():
                    if name.startswith(engine) and importlib.util.find_spec(package) is None:
                        raise SystemExit(f"{package} is MISSING; make bench-peers installs it")
                apart = run([sys.executable, __file__, *sys.argv[1:], "--engines", name, "--one", checkpoint])
                results[name] = json.loads(apart.stdout.splitlines()[-1])
            except SystemExit as error:
                print(f"{name}: {error}", flush=True)
                failed = 1
    if results:
        show(args, results)
    return failed


if __name__ == "__main__":
    sys.exit(main())
