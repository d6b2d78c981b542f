"""What the chain itself costs: a load and an unload through the real loader with 0 to 5 agents that do nothing.

    python benchmarks/chain_overhead.py                 # exit status 1 if an agent costs more than the limit
    python benchmarks/chain_overhead.py --rounds 500

Every agent is called with LOAD, LOAD_COMPLETE, UNLOAD and UNLOAD_COMPLETE and its four other methods. The numbers of
agents take turns, so that a slow moment of the machine hits all of them; the median of the rounds counts. An agent's
cost is the slope: what five agents take longer than none, divided by five.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measures import in_turns, options_of

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
    rounds = options_of(__doc__, rounds=(100, "how often each number of agents is measured")).rounds
    with tempfile.TemporaryDirectory() as scratch, loader(Path(scratch)) as subject:
        takes = {number: partial(once, subject, write_model(Path(scratch), number)) for number in range(MOST + 1)}
        found = in_turns(takes, rounds, warm=1)  # the first round imports and warms up
        medians = [statistics.median(times) * 1000 for times in found.values()]
    print(f"load and unload of one model, median of {rounds} rounds")
    print(f"{'agents':>6}  {'ms':>8}  {'ms more than none, per agent':>28}")
    for agents, milliseconds in enumerate(medians):
        each = f"{(milliseconds - medians[0]) / agents:28.3f}" if agents else f"{'-':>28}"
        print(f"{agents:>6}  {milliseconds:8.3f}  {each}")
    cost = (medians[MOST] - medians[0]) / MOST
    print(f"chain overhead: {cost:.3f} ms per agent (limit: under {LIMIT_MS:g} ms)")
    return 0 if cost < LIMIT_MS else 1


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


def once(subject: Loader, model: ModelSource) -> float:
    started = time.perf_counter()
    chain = subject.load(model)
    chain.complete()
    chain.unload()
    chain.unload_complete()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
