"""Draws the tokens of many requests at once, where that gives what each would draw by itself."""

from collections.abc import Sequence

import numpy as np

from repoagent.executor.engine.drawing import draw_together
from repoagent.executor.engine.processors import Ready
from repoagent.executor.engine.sampling_group import SamplingGroup

__all__ = ["settle_together"]


def settle_together(ready: Sequence[Ready]) -> None:
    """Draw for all that sample by top-p and temperature alone; their samplers are told.

    What nothing can be drawn from is left to fail by itself.
    """
    items = [item for item in ready if _is_simple(item)]
    if len(items) < 2:
        return
    samplers = [item.strands[0].sampler for item in items]
    rows = np.concatenate([item.rows[0] for item in items])
    temperatures = np.array([item.task.rules.temperature for item in items], np.float32)
    if (temperatures != 1.0).any():
        rows /= temperatures[:, None]
    top_p = [sampler.top_p or 1.0 for sampler in samplers]
    for sampler, token in zip(samplers, draw_together(rows, top_p, [s.random for s in samplers]), strict=True):
        if token is not None:
            sampler.settle(token)


def _is_simple(item: Ready) -> bool:
    task, strand = item.task, item.strands[0]
    return (
        strand.sampler.top_p is not None
        and isinstance(task.group, SamplingGroup)
        and task.group.width == 1
        and task.rules.only_temperature
        and strand.guide is None
        and not (task.drafts or task.want_log_probs)
    )
