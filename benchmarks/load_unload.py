"""How long a load and an unload of a trivial Python model take, with and without other models loaded.

    python benchmarks/load_unload.py [--rounds 200]    # exit status 1 if the median of either is 10 ms or more

For comparison: Triton 2.51 takes 1,318 ms to load such a model and 1,150 ms to unload it (measured over HTTP on a
2-core machine of the same kind; it starts and ends a process for it). ``unload`` here returns when the model is gone.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from measures import options_of, seconds

from repoagent.serving.core import ControlMode, CoreOptions, ServingCore

LIMIT_MS = 10.0
TRITON_MS = {"load": 1318.0, "unload": 1150.0}
OTHERS = 200
CONFIG = (
    'backend: "python" input { name: "x" data_type: TYPE_FP32 dims: [4] } '
    'output { name: "y" data_type: TYPE_FP32 dims: [4] }'
)
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def main() -> int:
    rounds = options_of(__doc__, rounds=200).rounds
    slow = False
    with tempfile.TemporaryDirectory() as scratch:
        names = [f"m{number}" for number in range(OTHERS + 1)]
        for name in names:
            write_model(Path(scratch), name)
        options = CoreOptions(repositories=(scratch,), control_mode=ControlMode.EXPLICIT, repoagent_directory=None)
        with ServingCore(options) as core:
            slow |= report("alone", *measure(core, names[0], rounds))
            for name in names[1:]:
                core.load(name)
            slow |= report(f"beside {OTHERS} others", *measure(core, names[0], rounds))
    print(f"Triton 2.51: load {TRITON_MS['load']:.0f} ms, unload {TRITON_MS['unload']:.0f} ms")
    return 1 if slow else 0


def write_model(repository: Path, name: str) -> None:
    """A Python model that does nothing."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(MODEL)
    (directory.parent / "config.pbtxt").write_text(CONFIG)


def measure(core: ServingCore, name: str, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each load and each unload."""
    loads, unloads = [], []
    for _ in range(rounds):
        loads.append(seconds(lambda: core.load(name)) * 1000)
        unloads.append(seconds(lambda: core.unload(name)) * 1000)
    return loads, unloads


def report(place: str, loads: list[float], unloads: list[float]) -> bool:
    """Print the medians; True if one is too slow."""
    medians = {"load": statistics.median(loads), "unload": statistics.median(unloads)}
    text = ", ".join(
        f"{action} {value:.2f} ms (1/{TRITON_MS[action] / value:.0f} of Triton's)" for action, value in medians.items()
    )
    print(f"{place}: {text}; limit {LIMIT_MS:g} ms")
    return max(medians.values()) >= LIMIT_MS


if __name__ == "__main__":
    sys.exit(main())
