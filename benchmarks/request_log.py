"""Requests per second with and without --request-log, in turns in one run.

    python benchmarks/request_log.py [--seconds 3] [--rounds 5] [--connections 8]

Two servers run the same small identity model, one of them with a request log in a temporary directory. They are loaded
in turns over HTTP (wrk) and over gRPC (load_grpc.py). Printed are the medians of the rates, the median of the rounds'
ratios, and how many requests got no line.
"""

import argparse
import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repoagent_server.grpc import messages_pb2 as pb

HERE: Final = Path(__file__).parent
PROGRAM: Final = [sys.executable, "-c", "from repoagent.cli.main import main; main()", "serve"]
MODEL: Final = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in inputs]
"""
CONFIG: Final = """
backend: "python"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [16] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [16] }
"""
BODY: Final = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [16], "data": [n / 8 for n in range(16)]}]}
)


@dataclass(frozen=True, slots=True)
class Server:
    """Where one server listens."""

    http: int
    grpc: int
    metrics: int


@contextmanager
def served(models: Path, ready: Path, *flags: str) -> Iterator[Server]:
    """A server over ``models``, while the block lasts."""
    command = [*PROGRAM, f"--model-repository={models}", "--http-port=0", f"--ready-file={ready}", *flags]
    process = subprocess.Popen([*command, "--log-info=false"], stdin=subprocess.DEVNULL)
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.01)
        found = json.loads(ready.read_text())
        yield Server(found["http"]["port"], found["grpc"]["port"], found["metrics"]["port"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def http_rate(server: Server, seconds: float, connections: int, scripts: Path) -> float:
    """Requests per second over HTTP."""
    script = scripts / "post.lua"
    script.write_text(f"wrk.method='POST'\nwrk.body='{BODY}'\nwrk.headers['Content-Type']='application/json'\n")
    url = f"http://127.0.0.1:{server.http}/v2/models/identity/infer"
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(script), url]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"Requests/sec:\s+([\d.]+)", text)
    if found is None or "Non-2xx" in text:
        raise SystemExit(f"wrk failed:\n{text}")
    return float(found[1])


def grpc_rate(server: Server, seconds: float, connections: int, _: Path) -> float:
    """Calls per second over gRPC."""
    message = pb.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(64)])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[16])
    load = [sys.executable, str(HERE / "load_grpc.py"), "127.0.0.1", str(server.grpc), str(connections), str(seconds)]
    done = subprocess.run(load, check=True, capture_output=True, input=message.SerializeToString())
    return float(done.stdout)


def lacking(server: Server) -> int:
    """How many requests have no line."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics") as page:
        text = page.read().decode()
    found = re.search(r"repoagent_request_log_dropped_total (\d+)", text)
    return int(found[1]) if found is not None else 0


def measure(
    rate: Callable[[Server, float, int, Path], float], servers: list[Server], options: argparse.Namespace, scripts: Path
) -> str:
    """One line: both rates and the ratio."""
    rounds = []
    for number in range(options.rounds + 1):
        order = servers if number % 2 else servers[::-1]
        found = {id(one): rate(one, options.seconds, options.connections, scripts) for one in order}
        if number:  # the first round warms up
            rounds.append([found[id(one)] for one in servers])
    off, on = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(with_log / without for without, with_log in rounds)
    return f"off {off:9,.0f}/s   on {on:9,.0f}/s   ratio {ratio:.3f}"


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=8)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = folder / "models" / "identity"
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.py").write_text(MODEL)
        (model / "config.pbtxt").write_text(CONFIG)
        log = folder / "requests.log"
        off = stack.enter_context(served(model.parent, folder / "off"))
        on = stack.enter_context(served(model.parent, folder / "on", f"--request-log={log}"))
        if shutil.which("wrk") is not None:
            print("HTTP ", measure(http_rate, [off, on], options, folder))
        else:
            print("HTTP  left out: wrk is not installed")
        print("gRPC ", measure(grpc_rate, [off, on], options, folder))
        time.sleep(1)
        print(f"lines {len(log.read_bytes().splitlines()):,}, dropped {lacking(on):,}, {log.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
