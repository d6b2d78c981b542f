"""Speed of the executor beside other engines: the same random model, prompts of 128 tokens, 64 greedy tokens.

    python benchmarks/executor_speed.py [--size 125m|5m] [--engine NAME]... [--requests 1,4,8,16] [--rate 5]

Each engine runs in a process of its own, with two threads. For 1, 4, 8 and 16 requests at once: tokens per second, mean
time to the first token, 99th percentile of the time between two tokens of a request (milliseconds); medians of
``--repeat`` samples. "same": how many of 16 texts are our fp32 texts. Then the same for requests that come at random;
engines that take nothing while they run serve them one after the other. "others": the largest share of the machine that
other processes took in a sample that counts; samples with more than a tenth are repeated, for at most ``--patience``
seconds per line. An engine that is not installed prints MISSING, one that fails FAILED, and the exit status is 1.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from executor_engines import ENGINES
from executor_trace import Run, Trace, all_at_once, at_random
from measures import quiet_samples

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
#: The engine whose time to the first token ours is compared with.
RIVALS = ("genai engine fp32", "genai generator fp32")


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


def measure(name: str, checkpoint: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One engine, in this process: figures by case, the texts of the largest case, and what others used."""
    serve = ENGINES[name].open(checkpoint)
    size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    cases = {str(count): all_at_once(count, size) for count in args.counts}
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
        if case == str(max(args.counts)):
            found["tokens"] = runs[0].tokens
    return found


def _measure_apart(name: str, checkpoint: Path, argv: Sequence[str]) -> dict[str, Any] | str:
    """The same in a process of its own; a text says what went wrong."""
    command = [sys.executable, __file__, *argv, "--one", name, str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _same(found: dict[str, Any], ours: dict[str, Any] | None) -> str:
    if ours is None:
        return "-"
    pairs = list(zip(found["tokens"], ours["tokens"], strict=True))
    return f"{sum(left == right for left, right in pairs)}/{len(pairs)}"


def _print_at_once(counts: Sequence[int], results: dict[str, dict[str, Any]]) -> None:
    print("\nat once".ljust(24) + "".join(f"{count:>9} tok/s first  p99" for count in counts) + "   same  others")
    ours = results.get("repoagent fp32")
    for name, found in results.items():
        cells = "".join("{rate:15.0f}{first:6.0f}{between_p99:5.0f}".format(**found[str(count)]) for count in counts)
        print(f"{name:23}{cells}{_same(found, ours):>7}{found['others']:8.0%}")


def _print_arrivals(rate: float, results: dict[str, dict[str, Any]]) -> None:
    print(f"\n{rate:g} a second at random".ljust(28) + "tok/s   first mean    p95   between p99")
    for name, found in results.items():
        row = "{rate:9.0f}{first:13.0f}{first_p95:7.0f}{between_p99:14.0f}".format(**found["arrivals"])
        print(f"{name:23}{row}")
    if "repoagent fp32" in results:
        for rival in RIVALS:
            if rival in results:
                times = results[rival]["arrivals"]["first"] / results["repoagent fp32"]["arrivals"]["first"]
                print(f"first token: {times:.1f} times sooner than {rival}")


def main() -> None:
    """Run all engines that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="125m")
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--requests", default="1,4,8,16")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rate", type=float, default=5.0, help="requests per second where they come at random")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine, per engine")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.counts = [int(item) for item in args.requests.split(",")]
    if args.one:
        print(json.dumps(measure(args.one[0], Path(args.one[1]), args)))
        return
    failed, results = 0, {}
    with tempfile.TemporaryDirectory() as place:
        checkpoint = synthetic_checkpoint(Path(place) / "checkpoint", scale=SCALE, **SIZES[args.size])
        for name in args.engine or ENGINES:
            missing = ENGINES[name].missing()
            if missing:
                print(f"{name:23}MISSING: {', '.join(missing)}; make bench-peers installs it", flush=True)
                failed = 1
                continue
            found = _measure_apart(name, checkpoint, sys.argv[1:])
            if isinstance(found, str):
                print(f"{name:23}FAILED: {found}", flush=True)
                failed = 1
                continue
            results[name] = found
    if results:
        _print_at_once(args.counts, results)
        _print_arrivals(args.rate, results)
    sys.exit(failed)


if __name__ == "__main__":
    main()
