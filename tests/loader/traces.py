"""The traces of a stock Triton in ``traces.toml``, and what makes a loader do the same."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from repoagent.errors import AgentError

CASES: Final[list[dict[str, Any]]] = tomllib.loads(Path(__file__).with_name("traces.toml").read_text())["case"]


def events_of(trace: str) -> list[str]:
    return [event.strip() for event in trace.split(",") if event.strip()]


def drive(bench: Any, agents: list[str], steps: list[str], mark: Callable[[str], None]) -> None:
    """Do what a server does, in the order of ``steps``, after ``mark`` each; a failed load is part of a case."""
    chains: dict[str, Any] = {}
    for step in steps:
        what, number = step.rstrip("'"), "'" * step.count("'")
        mark(number)
        if what == "shutdown":
            bench.loader.close()
        elif what == "load":
            try:
                chains[number] = bench.load(*agents)
            except AgentError:
                continue
        elif what == "fail":
            chains[number].fail(RuntimeError("no such luck"))
        else:
            getattr(chains[number], what)()
