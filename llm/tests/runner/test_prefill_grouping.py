"""Which prompts share a run, and that a run is what they share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from repoagent_llm.builder import Form
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.prefill_grouping import group_prompts
from repoagent_llm.runner.protocol import Logits, Segment, Seq


@pytest.mark.parametrize(
    ("pieces", "groups"),
    [
        ([(0, 8, True), (1, 8, True), (2, 8, True)], [[0, 1, 2]]),
        ([(2, 8, True), (0, 8, True), (1, 8, True)], [[1, 2, 0]]),  # in the order of their rows
        ([(0, 8, True), (2, 8, True)], [[0], [1]]),  # row 1 would be written to
        ([(0, 8, True), (1, 8, False), (2, 8, True)], [[0], [1], [2]]),  # continuations are read alone
        ([(0, 4, True), (1, 20, True)], [[0, 1]]),  # 16 columns of padding
        ([(0, 4, True), (1, 21, True)], [[0], [1]]),
        ([(0, 20, True), (1, 4, True), (2, 20, True)], [[0, 1, 2]]),
        ([(0, 8, True), (1, 9, True), (2, 100, True), (3, 101, True)], [[0, 1], [2, 3]]),
        ([], []),
    ],
)
def test_neighbouring_fresh_prompts_of_like_length_go_together(
    pieces: list[tuple[int, int, bool]], groups: list[list[int]]
) -> None:
    assert group_prompts(pieces) == groups


@pytest.mark.parametrize("form", [Form.GQA, Form.STD])
@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2"])
def test_prompts_that_share_a_run_get_what_each_gets_alone(
    kind: str, form: Form, open_runner: Callable[..., OrtRunner], counted_runs: Callable[[OrtRunner], Any]
) -> None:
    """Then all go on decoding, beside one that was there before: what padding wrote is never read."""
    runner = open_runner(kind, form, extra_outputs=("last_hidden",))
    source = np.random.default_rng(5)
    # Longer than the window of the mistral shape.
    prompts = [source.integers(3, 90, size).astype(np.int32) for size in (30, 41, 38)]
    wanted = (Logits.LAST, Logits.ALL, Logits.LAST)

    def opened() -> Seq:
        seq = runner.open()
        assert seq is not None
        return seq

    alone: list[tuple[Any, Any, list[Any]]] = []
    for prompt, logits in zip(prompts, wanted, strict=True):
        seq = opened()
        first = runner.step([Segment(seq, prompt, logits, ("last_hidden",))])
        alone.append((first.logits.copy(), first.extras[0]["last_hidden"], []))
        for token in (7, 8, 9):
            alone[-1][2].append(runner.step([Segment(seq, np.array([token], np.int32))]).logits.copy())
        runner.free(seq)

    counting = counted_runs(runner)
    old = opened()
    runner.step([Segment(old, prompts[0][:20])])
    seqs = [opened() for _ in prompts]
    counting.runs = 0
    segments = [
        Segment(seq, prompt, logits, ("last_hidden",))
        for seq, prompt, logits in zip(seqs, prompts, wanted, strict=True)
    ]
    together = runner.step([Segment(old, prompts[0][20:21], Logits.NONE), *segments])
    assert counting.runs == 2
    for number, (logits, hidden, _) in enumerate(alone, 1):
        np.testing.assert_allclose(together.logits[together.rows[number]], logits, atol=2e-5)
        np.testing.assert_allclose(together.extras[number]["last_hidden"], hidden, atol=2e-5)
    for step, token in enumerate((7, 8, 9)):
        result = runner.step([Segment(seq, np.array([token], np.int32)) for seq in seqs])
        for rows, (_, _, following) in zip(result.rows, alone, strict=True):
            np.testing.assert_allclose(result.logits[rows], following[step], atol=2e-5)
