"""Speed of the executor beside onnxruntime-genai, on the same folders: prompts of 128 tokens, 64 greedy tokens.

    python benchmarks/executor_speed.py [--size 125m|5m] [--engines NAME...] [--requests 1 4 8 16] [--rate 5]

Each engine runs in a process of its own, with two threads. For 1, 4, 8 and 16 requests at once: tokens per second, mean
time to the first token, 99th percentile of the time between two tokens of a request (milliseconds); medians of
``--repeat`` samples. "same": how many of 16 texts are our fp32 texts. Then the same for requests that come at random;
genai's Generator takes nothing while it runs, and serves them one after the other. "others": the largest share of the
machine that other processes took in a sample that counts; samples with more than a tenth are repeated, for at most
``--patience`` seconds per line. The exit status is 1 if an engine is not installed or fails. Other engines stand beside
ours as servers, in llm_peers.py.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from executor_runs import Run, Serve, Trace, all_at_once, at_random, ours, ours_paged
from measures import options_of, quiet_samples, run, table
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


def opened(name: str, checkpoint: Path) -> Serve:
    """One of ``ENGINES``."""
    engine, kind = name.split()
    opening: Callable[..., Serve]
    if engine.startswith("repoagent"):
        pages = partial(ours_paged, exact=not engine.endswith("fast"))
        opening = ours if engine == "repoagent" else pages
    else:
        import executor_genai

        opening = getattr(executor_genai, engine.replace("-", "_"))
    return opening(checkpoint, *WEIGHTS[kind])


def measure(name: str, checkpoint: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One engine, in this process: figures by case, the texts of the largest case, and what others used."""
    serve = opened(name, checkpoint)
    size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    cases = {str(count): all_at_once(count, size) for count in args.requests}
    cases["arrivals"] = at_random(ARRIVALS, args.rate, size)
    serve(all_at_once(1, size))
    found: dict[str, Any] = {"others": 0.0}
    for case, trace in cases.items():
        # One run of arrivals is many requests long already.
        repeat = 1 if case == "arrivals" else args.repeat
        runs, others = quiet_samples(partial(serve, trace), repeat, args.patience / len(cases))
        samples = [figures(run, trace) for run in runs]
        found[case] = {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}
        found["others"] = max(found["others"], others)
        if case == str(max(args.requests)):
            found["tokens"] = runs[0].tokens
    return found


def same(found: dict[str, Any], own: dict[str, Any] | None) -> str:
    if own is None:
        return "-"
    pairs = list(zip(found["tokens"], own["tokens"], strict=True))
    return f"{sum(left == right for left, right in pairs)}/{len(pairs)}"


def show(args: argparse.Namespace, results: dict[str, dict[str, Any]]) -> None:
    own = results.get("repoagent fp32")
    keys = ("rate", "first", "between_p99")
    cells = {
        name: [f"{found[str(count)][key]:.0f}" for count in args.requests for key in keys]
        for name, found in results.items()
    }
    head = ["at once", *(f"{count} {what}" for count in args.requests for what in ("tok/s", "first", "p99"))]
    rows = [[name, *cells[name], same(found, own), f"{found['others']:.0%}"] for name, found in results.items()]
    print(table([*head, "same", "others"], rows))
    coming = [
        [name, *(f"{found['arrivals'][key]:.0f}" for key in ("rate", "first", "first_p95", "between_p99"))]
        for name, found in results.items()
    ]
    print("\n" + table((f"{args.rate:g} a second", "tok/s", "first mean", "first p95", "between p99"), coming))
    for rival in RIVALS if own else ():
        if rival in results:
            times = results[rival]["arrivals"]["first"] / results["repoagent fp32"]["arrivals"]["first"]
            print(f"first token: {times:.1f} times sooner than {rival}")


def main() -> int:
    """Run all engines that are asked for."""
    args = options_of(
        __doc__,
        size="125m",
        engines=ENGINES,
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
        checkpoint = synthetic_checkpoint(Path(place) / "checkpoint", scale=SCALE, **SIZES[args.size])
        for name in args.engines:
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
