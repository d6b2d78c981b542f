"""What the steps of this process's executor took: those that read prompts, those that only generate, and the time
between two of them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, cast

from repoagent_llm.engine.engine import Engine

__all__ = ["Parts", "note_steps", "parts_of", "take_steps"]

#: Beginning, end, sequences, tokens.
Step = tuple[float, float, int, int]
_steps: list[Step] = []


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of a run by what they went into. ``outside``: before the first step, and behind the last."""

    prompts: float
    generating: float
    between: float
    outside: float
    steps: float
    slowest: float
    """The median of the steps with the most sequences."""

    @classmethod
    def median(cls, samples: Sequence["Parts"]) -> "Parts":
        """Of each part by itself."""
        return cls(*(median(getattr(sample, field.name) for sample in samples) for field in fields(cls)))

    def __str__(self) -> str:
        return (
            f"prompts {self.prompts:.2f} s, generating {self.generating:.2f} s ({1e3 * self.slowest:.1f} ms a step), "
            f"between {1e3 * self.between:.0f} ms, outside {1e3 * self.outside:.0f} ms, {self.steps:.0f} steps"
        )


def note_steps() -> None:
    """Note all steps from now on."""
    compute: Any = Engine._compute

    def noted(engine: Engine, *args: Any) -> Any:
        began = time.perf_counter()
        computed = compute(engine, *args)
        if computed is not None:
            works = computed[0].works
            tokens = sum(len(work.segment.tokens) for work in works) if computed[0].round is None else len(works)
            _steps.append((began, time.perf_counter(), len(works), tokens))
        return computed

    cast("Any", Engine)._compute = noted


def take_steps() -> list[Step]:
    """Those since the last call."""
    taken = list(_steps)
    _steps.clear()
    return taken


def parts_of(steps: Sequence[Sequence[float]], seconds: float) -> Parts:
    """Of a run that took ``seconds`` and had these steps."""
    most = max(works for _, _, works, _ in steps)
    generating = [end - begin for begin, end, works, tokens in steps if tokens == works]
    slowest = [end - begin for begin, end, works, tokens in steps if tokens == works == most]
    computing = sum(end - begin for begin, end, _, _ in steps)
    span = steps[-1][1] - steps[0][0]
    return Parts(
        computing - sum(generating),
        sum(generating),
        span - computing,
        seconds - span,
        len(steps),
        median(slowest or generating),
    )
