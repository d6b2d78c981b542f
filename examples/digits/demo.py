"""Serve the example repository, ask it for some handwritten digits with NVIDIA's own client, and check the answers.

Run by ``make demo``. Exits 1 if an answer is wrong or if an agent that the model names is missing from its load report.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tritonclient.http as triton

from repoagent.api.report import LoadReport

HERE = Path(__file__).parent
MODELS = ("digits", "digits_checked", "digits_secure")
SECURE = "digits_secure"
SECURE_AGENTS = ("checksum", "decrypt", "checksum", "convert")


def main() -> int:
    with serving(HERE / "repository") as address:
        print(f"repoagent serves {', '.join(MODELS)} on http://{address}; sending test digits to each\n")
        wrong = sum(not ask(address, model, quiet=True) for model in MODELS)
        report = load_report(address, SECURE)
        print(f"The load report of {SECURE}, which arrived checksummed and encrypted:")
        print("\n".join(report.lines()))
        wrong += not ask(address, SECURE, quiet=False)
    missing = list((Counter(SECURE_AGENTS) - Counter(entry.agent for entry in report.entries)).elements())
    if missing:
        print(f"missing from the load report: {', '.join(missing)}", file=sys.stderr)
    return 1 if wrong or missing else 0


@contextmanager
def serving(repository: Path) -> Iterator[str]:
    """Run ``repoagent serve`` in a child process; gives host:port, and stops it with SIGTERM."""
    with tempfile.TemporaryDirectory() as scratch:
        ready = Path(scratch) / "ready.json"
        log = Path(scratch) / "log.txt"
        command = [sys.executable, "-m", "repoagent", "serve", f"--model-repository={repository}"]
        command += [
            "--http-port=0",
            "--metrics-port=0",
            f"--ready-file={ready}",
            "--workspace-directory",
            f"{scratch}/work",
        ]
        environment = os.environ | {"DIGITS_IDENTITY": (HERE / "identity.txt").read_text().split()[-1]}
        with log.open("w") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as child:
            while not ready.exists():
                if child.poll() is not None:
                    sys.exit(f"the server did not start:\n{log.read_text()}")
                time.sleep(0.05)
            try:
                http = json.loads(ready.read_text())["http"]
                yield f"{http['address']}:{http['port']}"
            finally:
                child.terminate()


def ask(address: str, model: str, *, quiet: bool) -> bool:
    """Send every test digit to ``model``; True if each answer is the right one."""
    digits = json.loads((HERE / "test_digits.json").read_text())
    right = True
    with triton.InferenceServerClient(address) as client:
        for digit in digits:
            predicted = predict(client, model, digit["pixels"])
            right &= predicted == digit["label"]
            if not quiet:
                print(f"predicted {predicted}, expected {digit['label']}")
    return right


def predict(client: triton.InferenceServerClient, model: str, pixels: list[int]) -> int:
    tensor = triton.InferInput("pixels", [1, 64], "FP32")
    tensor.set_data_from_numpy(np.array([pixels], np.float32))
    answer = client.infer(model, [tensor]).as_numpy("label")
    assert answer is not None
    return int(answer[0, 0])


def load_report(address: str, model: str) -> LoadReport:
    with urllib.request.urlopen(f"http://{address}/v2/repository/models/{model}/report") as reply:
        return LoadReport.from_dict(json.load(reply))


if __name__ == "__main__":
    sys.exit(main())
