"""Runs a decoder once before anybody depends on it."""

import numpy as np

from repoagent_llm.runner.protocol import DecodeRound, Logits, ModelRunner, Segment, StepResult
from repoagent_llm.types.errors import DecoderError

__all__ = ["try_runner"]


def try_runner(runner: ModelRunner, place: str) -> None:
    """A prompt of two tokens, then a token behind it, as a request would have them; the sequence is gone afterwards.

    Raises ``DecoderError`` if either fails: a graph can be loaded and yet be none that can run. ``place``: what the
    error calls it.
    """
    try:
        _run(runner)
    except Exception as error:  # whatever a session raises
        raise DecoderError(f"{place}: the decoder cannot run one step: {error}") from error


def _run(runner: ModelRunner) -> None:
    info = runner.info
    seq = runner.open()
    if seq is None:
        raise RuntimeError("there is no free sequence")
    try:
        prompt = np.zeros(min(2, info.max_seq_len), np.int32)
        result = runner.step([Segment(seq, prompt, Logits.ALL, info.extra_outputs)])
        _check(result, len(prompt), info.vocab_size)
        for name, values in result.extras[0].items():
            if values.ndim < 1 or len(values) != len(prompt):
                raise RuntimeError(f"the output {name!r} has no value for each token")
        if len(prompt) < info.max_seq_len:
            _check(runner.step(DecodeRound.of([seq])), 1, info.vocab_size)
    finally:
        runner.free(seq)


def _check(result: StepResult, rows: int, vocab_size: int) -> None:
    if result.logits.shape != (rows, vocab_size):
        raise RuntimeError(f"the logits are {list(result.logits.shape)}, expected {[rows, vocab_size]}")
