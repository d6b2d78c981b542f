"""Draws the tokens of many requests at once, where that gives what each would draw by itself."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from repoagent.executor.engine.drawing import HEAD
from repoagent.executor.engine.drawing_together import draw_largest_together, draw_together
from repoagent.executor.engine.processors import Ready
from repoagent.executor.engine.sampling_group import SamplingGroup

__all__ = ["settle_together"]

# Fewer are drawn from as fast one by one.
_MANY: Final = 4


def settle_together(ready: Sequence[Ready]) -> None:
    """Draw for all that sample by top-k, top-p and temperature alone, for each top-k at once; their samplers are told.

    What nothing can be drawn from is left to fail by itself.
    """
    groups: dict[int, list[Ready]] = {}
    for item in ready:
        limits = item.strands[0].sampler.simple_limits
        if limits is not None and limits.top_k <= min(HEAD, item.rows[0].shape[1] - 1) and _is_simple(item):
            groups.setdefault(limits.top_k, []).append(item)
    for top_k, items in groups.items():
        if len(items) >= _MANY:
            _settle(top_k, items)


def _settle(top_k: int, items: Sequence[Ready]) -> None:
    samplers = [item.strands[0].sampler for item in items]
    rows = np.concatenate([item.rows[0] for item in items])
    temperatures = np.array([item.task.rules.temperature for item in items], np.float32)
    if (temperatures != 1.0).any():
        rows /= temperatures[:, None]
    top_p, randoms = [sampler.top_p for sampler in samplers], [sampler.random for sampler in samplers]
    drawn = draw_largest_together(rows, top_k, top_p, randoms) if top_k else draw_together(rows, top_p, randoms)
    for sampler, token in zip(samplers, drawn, strict=True):
        if token is not None:
            sampler.settle(token)


def _is_simple(item: Ready) -> bool:
    task = item.task
    return (
        isinstance(task.group, SamplingGroup)
        and task.group.width == 1
        and task.rules.only_temperature
        and item.strands[0].guide is None
        and not (task.drafts or task.want_log_probs)
    )
