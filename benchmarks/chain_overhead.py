"""What the chain itself costs: a load and an unload through the real loader with 0 to 5 agents that do nothing.

    python benchmarks/chain_overhead.py                 # exit status 1 if an agent costs more than the limit
    python benchmarks/chain_overhead.py --rounds 500

Every agent is called with LOAD, LOAD_COMPLETE, UNLOAD and UNLOAD_COMPLETE and its four other methods. The numbers of
agents take turns, so that a slow moment of the machine hits all of them; the median of the rounds counts. An agent's
cost is the slope: what five agents take longer than none, divided by five.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repoagent.api import Agent
from repoagent.loader.loader import Loader
from repoagent.storage import Cache, ModelSource, WorkspaceRoot, open_source

LIMIT_MS = 1.0
MOST = 5


class NothingAgent(Agent):
    """Does nothing at any call."""

    api_version = 1


class Registry:
    """Every name is the agent that does nothing."""

    def load(self, _name: str) -> type[Agent]:
        return NothingAgent


def main() -> int:
    rounds = arguments().rounds
    with tempfile.TemporaryDirectory() as scratch, loader(Path(scratch)) as subject:
        models = [write_model(Path(scratch), agents) for agents in range(MOST + 1)]
        medians = [statistics.median(times) * 1000 for times in measure(subject, models, rounds)]
    print(f"load and unload of one model, median of {rounds} rounds")
    print(f"{'agents':>6}  {'ms':>8}  {'ms more than none, per agent':>28}")
    for agents, milliseconds in enumerate(medians):
        each = f"{(milliseconds - medians[0]) / agents:28.3f}" if agents else f"{'-':>28}"
        print(f"{agents:>6}  {milliseconds:8.3f}  {each}")
    cost = (medians[MOST] - medians[0]) / MOST
    print(f"chain overhead: {cost:.3f} ms per agent (limit: under {LIMIT_MS:g} ms)")
    return 0 if cost < LIMIT_MS else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="how often each number of agents is measured")
    return parser.parse_args()


@contextmanager
def loader(scratch: Path) -> Iterator[Loader]:
    with WorkspaceRoot(scratch / "workspace") as workspace, Cache(scratch / "cache") as cache:
        subject = Loader(Registry(), workspace, cache)
        yield subject
        subject.close()


def write_model(scratch: Path, agents: int) -> ModelSource:
    """A model whose configuration names ``agents`` agents."""
    root = scratch / "repository" / f"with_{agents}"
    (root / "1").mkdir(parents=True)
    (root / "1" / "model.onnx").write_bytes(bytes(1024))
    entries = ", ".join(f'{{ name: "nothing_{number}" }}' for number in range(agents))
    (root / "config.pbtxt").write_text(f"max_batch_size: 8\nmodel_repository_agents {{ agents [ {entries} ] }}\n")
    return open_source(root.name, str(root))


def measure(subject: Loader, models: list[ModelSource], rounds: int) -> list[list[float]]:
    """Seconds of every round, for every model."""
    times: list[list[float]] = [[] for _ in models]
    for _ in range(rounds + 1):
        for model, taken in zip(models, times, strict=True):
            taken.append(once(subject, model))
    return [taken[1:] for taken in times]  # the first round imports and warms up


def once(subject: Loader, model: ModelSource) -> float:
    started = time.perf_counter()
    chain = subject.load(model)
    chain.complete()
    chain.unload()
    chain.unload_complete()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
