"""What a draft model saves, and what it costs where it guesses badly.

    python benchmarks/executor_drafts.py [--factor 0.01,0.02,1] [--requests 1,2] [--length 3] [--form paged]

The model is a random Llama of 330 M parameters in 24 layers; its first two layers, with the same embeddings and last
layer, are its draft model (88 M, of which a step reads 55 M). What the other 22 layers add is multiplied by
``factor``: with small ones the two mostly agree, as models of one family do; with 1 they have nothing in common.
On pages several requests are drafted for as far as it pays, by default; in slabs all, here.
Prompts of 128 tokens, 64 new ones, on two threads; medians over the rounds, in each of which the model runs without its
draft model and with it in turn. "without" and "with": tokens a second; "right": the share of drafts that were kept;
"steps": of the model for one text; "drafting": the share of the time that the draft model took; "others": what other
processes took of the machine.
"""

import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from executor_runs import LENGTH, NEW_TOKENS, THREADS, all_at_once, decoder_folder, opened
from executor_speed import SCALE, SIZES
from measures import options_of, quiet_samples
from repoagent_llm import (
    DraftTargetDecodingConfig,
    Executor,
    OutputConfig,
    Request,
    RunnerOptions,
    SamplingConfig,
)
from repoagent_llm.builder import Form
from repoagent_llm.builder.safetensors import Checkpoint, write_safetensors

from examples.executor.synthetic import synthetic_checkpoint

SHAPE = SIZES["125m"] | {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 2816,
}
LAYERS = 2
WAYS: dict[str, dict[str, Any]] = {"greedy": {}, "top-p 0.9": {"top_p": 0.9, "temperature": 0.7}}


@dataclass(frozen=True, slots=True)
class Sample:
    """One round: tokens per second, and means of what its requests and iterations say."""

    speed: float
    steps: float
    right: float
    drafting: float


def weakened(checkpoint: Path, target: Path, factor: float) -> Path:
    """The checkpoint with layers from ``LAYERS`` on that add ``factor`` times as much."""

    def change(name: str, values: Any) -> Any:
        late = name.endswith(("o_proj.weight", "down_proj.weight")) and int(name.split(".")[2]) >= LAYERS
        return values * np.float32(factor) if late else values

    return _rewritten(checkpoint, target, change, SHAPE["num_hidden_layers"])


def shortened(checkpoint: Path, target: Path) -> Path:
    """The checkpoint's first ``LAYERS`` layers, with its embeddings and its last layer."""

    def change(name: str, values: Any) -> Any:
        return None if name.startswith("model.layers.") and int(name.split(".")[2]) >= LAYERS else values

    return _rewritten(checkpoint, target, change, LAYERS)


def _rewritten(checkpoint: Path, target: Path, change: Any, layers: int) -> Path:
    target.mkdir(parents=True)
    source = Checkpoint(checkpoint)
    changed = {name: change(name, source.read(name)) for name in source.names()}
    write_safetensors(target / "model.safetensors", {name: item for name, item in changed.items() if item is not None})
    config = json.loads((checkpoint / "config.json").read_text()) | {"num_hidden_layers": layers}
    (target / "config.json").write_text(json.dumps(config))
    return target


def with_drafts(folder: Path, drafter: Path, length: int) -> Executor:
    """An executor of the model; with ``length`` 0 it has no draft model."""
    most = None if folder.name.startswith(f"decoder-{Form.PAGED.value}") else 16
    drafts: dict[str, Any] = {}
    if length:
        drafts["speculative_config"] = DraftTargetDecodingConfig(length, drafter, max_concurrency=most)
    return opened(folder, RunnerOptions(threads=THREADS, max_seq_len=LENGTH), max_batch_size=16, **drafts)


def measure(executor: Executor, count: int, sampling: dict[str, Any]) -> Sample:
    """Serve ``count`` requests at once."""
    output = OutputConfig(exclude_input_from_output=True, return_perf_metrics=True)
    requests = [
        Request(
            arrival.prompt,
            arrival.new_tokens,
            sampling_config=SamplingConfig(seed=number, **sampling),
            output_config=output,
        )
        for number, arrival in enumerate(all_at_once(count, SHAPE["vocab_size"]))
    ]
    executor.get_latest_iteration_stats()
    answers = executor.await_responses(executor.enqueue_requests(requests))
    results = [response.result for (response,) in answers]
    metrics = [result.request_perf_metrics for result in results if result.request_perf_metrics is not None]
    began = min(item.timing_metrics.arrival_time for item in metrics)
    seconds = (max(item.timing_metrics.last_token_time for item in metrics) - began).total_seconds()
    stats = executor.get_latest_iteration_stats()
    guessing = sum(item.specdec_stats.iter_latency_ms for item in stats if item.specdec_stats) / 1e3
    drafts = [item.speculative_decoding for item in metrics]
    right = sum(d.total_accepted_draft_tokens for d in drafts) / max(1, sum(d.total_draft_tokens for d in drafts))
    return Sample(
        count * NEW_TOKENS / seconds,
        sum(result.decoding_iter for result in results) / count,
        right,
        guessing / seconds,
    )


def compare(plain: Executor, drafted: Executor, count: int, way: str, rounds: int, patience: float) -> str:
    """A line of medians. Both take turns: a machine's memory may be a third slower minutes later."""

    def both() -> tuple[Sample, Sample]:
        return measure(plain, count, WAYS[way]), measure(drafted, count, WAYS[way])

    pairs, others = quiet_samples(both, rounds, patience)
    without = median(pair[0].speed for pair in pairs)
    speed, steps, right, drafting = (
        median(getattr(pair[1], field) for pair in pairs) for field in ("speed", "steps", "right", "drafting")
    )
    speeds = f"{without:9.1f}{speed:9.1f}"
    return f"{count:3} x {way:12}{speeds}{steps:8.1f}{right:8.0%}{drafting:10.0%}{others:8.0%}"


def main() -> None:
    """Measure all cases."""
    args = options_of(
        __doc__,
        factor=("0.01,0.02,1", "how much the model's later layers add"),
        requests="1,2",
        length=("3", "drafts for one step"),
        form=("gqa", "of the decoder folders: gqa or paged"),
        rounds=3,
        patience=(10.0, "seconds to wait for a quiet machine, per line"),
    )
    print(f"{'factor':8}{'drafts':>7}{'':>16}   without     with   steps   right  drafting  others")
    made = partial(decoder_folder, form=Form(args.form))
    with tempfile.TemporaryDirectory() as text:
        place = Path(text)
        base = synthetic_checkpoint(place / "base", scale=SCALE, **SHAPE)
        for factor in args.factor.split(","):
            large = weakened(base, place / factor / "model" / "checkpoint", float(factor))
            small = made(shortened(large, place / factor / "draft" / "checkpoint"))
            for length in map(int, args.length.split(",")):
                with (
                    with_drafts(made(large), small, 0) as plain,
                    with_drafts(made(large), small, length) as both,
                ):
                    for executor, sampling in product((plain, both), WAYS.values()):
                        measure(executor, 1, sampling)
                    for count, way in product(map(int, args.requests.split(",")), WAYS):
                        line = compare(plain, both, count, way, args.rounds, args.patience)
                        print(f"{factor:8}{length:7}{line}", flush=True)
            shutil.rmtree(place / factor)


if __name__ == "__main__":
    main()
