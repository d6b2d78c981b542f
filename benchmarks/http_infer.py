"""Inference requests per second over HTTP, against a bare echo on the same HTTP server in the same run.

    python benchmarks/http_infer.py                       # exit status 1 if one is under half of the echo
    python benchmarks/http_infer.py --seconds 10 --rounds 5 --connections 8

Three ONNX models of different shapes are served by a `repoagent serve` of their own; beside it runs an ASGI application
that returns each body as it came, on uvicorn with the same event loop and parser. Both are loaded by the same generator
in turns, so that a slow moment of the machine hits both; the medians of the rates and of the rounds' ratios count. The
values sent are multiples of 1/8, in JSON about as long as those of Triton's figures. The generator is `wrk`
(Debian: apt install wrk) or, where that is missing, load_http.py beside this file, which costs more of the machine; it
runs on the same cores as the servers, so its cost is in every figure. What a bare `session.run` of each model takes is
printed beside, as no server can do without it. Figures of a stock Triton 2.51 with a Python
identity model of 16 values, taken with wrk on another idle machine with two cores, are printed for orientation.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

LIMIT = 0.5
HERE = Path(__file__).parent
# One thread: for models as small as these a second one costs more than it gives, the more so where it has to take the
# core from somebody.
CONFIG = """name: "{name}"
backend: "onnxruntime"
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
"""
TRITON = {"json": {1: 8800, 8: 21000, 32: 20000}, "binary": {1: 8700, 8: 23000, 32: 29500}}


@dataclass(frozen=True, slots=True)
class Payload:
    """A request: its model, its form ("json" or "binary"), and what is sent."""

    model: str
    form: str
    body: bytes
    json_length: int
    at: str = ""
    """Another path than that of the model."""

    @property
    def path(self) -> str:
        return self.at or f"/v2/models/{self.model}/infer"


def main() -> int:
    options = arguments(str(__doc__))
    results: dict[tuple[str, str, int], dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        inputs = write_models(folder / "models")
        bare = {name: bare_seconds(folder / "models" / name / "1/model.onnx", inputs[name]) for name in inputs}
        payloads = [payload(name, form, arrays) for name, arrays in inputs.items() for form in ("json", "binary")]
        with serve(folder) as port, echo(folder) as echo_port:
            for item in payloads:
                for connections in options.connections:
                    key = (item.model, item.form, connections)
                    results[key] = measure(item, {"ours": port, "echo": echo_port}, connections, options)
    show(results)
    print("a bare session.run: " + ", ".join(f"{name} {bare[name] * 1e6:.1f} us" for name in bare))
    if options.json:
        rows = [
            dict(zip(("model", "form", "connections"), key, strict=True), **rates) for key, rates in results.items()
        ]
        options.json.write_text(json.dumps(rows, indent=1))
    return 0 if all(rates["ratio"] >= LIMIT for rates in results.values()) else 1


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=2, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each case; the median counts")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


# Models and requests.


def write_models(repository: Path) -> dict[str, dict[str, np.ndarray]]:
    """Three models; returns an input for each."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal(shape).astype(np.float32) for shape in ((64, 128), (128, 10))]
    write(repository, "relu_16", ["x"], ["y"], [1, 16], [1, 16], [helper.make_node("Relu", ["x"], ["y"])])
    sums = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])]
    write(repository, "sum_256", ["a", "b"], ["sum", "difference"], [1, 256], [1, 256], sums)
    layers = [
        helper.make_node("MatMul", ["x", "w0"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w1"], ["y"]),
    ]
    constants = [numpy_helper.from_array(weight, f"w{index}") for index, weight in enumerate(weights)]
    write(repository, "mlp_64_128_10", ["x"], ["y"], [8, 64], [8, 10], layers, constants)

    def values(*shape: int) -> np.ndarray:
        return (random.integers(-128, 128, shape) / 8).astype(np.float32)

    return {
        "relu_16": {"x": values(1, 16)},
        "sum_256": {"a": values(1, 256), "b": values(1, 256)},
        "mlp_64_128_10": {"x": values(8, 64)},
    }


def bare_seconds(file: Path, inputs: dict[str, np.ndarray]) -> float:
    """Processor time of one run of a model, the least of many rounds."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    rounds = []
    for _ in range(20):
        started = time.thread_time()
        for _ in range(200):
            session.run(None, inputs)
        rounds.append((time.thread_time() - started) / 200)
    return min(rounds)


def write(
    repository: Path,
    name: str,
    inputs: list[str],
    outputs: list[str],
    input_shape: list[int],
    output_shape: list[int],
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto] | None = None,
) -> None:
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(i, TensorProto.FLOAT, input_shape) for i in inputs],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, output_shape) for o in outputs],
        constants or [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = repository / name / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    file.write_bytes(model.SerializeToString())
    (repository / name / "config.pbtxt").write_text(CONFIG.format(name=name))


def payload(model: str, form: str, arrays: dict[str, np.ndarray]) -> Payload:
    tensors: list[dict[str, Any]] = [
        {"name": name, "datatype": "FP32", "shape": list(array.shape)} for name, array in arrays.items()
    ]
    if form == "json":
        rows = [
            {**tensor, "data": array.ravel().tolist()} for tensor, array in zip(tensors, arrays.values(), strict=True)
        ]
        text = json.dumps({"inputs": rows}, separators=(",", ":")).encode()
        return Payload(model, form, text, len(text))
    rows = [
        {**tensor, "parameters": {"binary_data_size": array.nbytes}}
        for tensor, array in zip(tensors, arrays.values(), strict=True)
    ]
    head = json.dumps({"inputs": rows, "parameters": {"binary_data_output": True}}, separators=(",", ":")).encode()
    return Payload(model, form, head + b"".join(array.tobytes() for array in arrays.values()), len(head))


# Servers.


@contextmanager
def serve(folder: Path) -> Iterator[int]:
    with serve_ports(folder) as ports:
        yield ports["http"]


@contextmanager
def serve_ports(folder: Path, flags: Sequence[str] = (), name: str = "", before: str = "") -> Iterator[dict[str, int]]:
    """A `repoagent serve` of its own for the models in ``folder``, which runs the code ``before`` first; gives the port
    of each protocol."""
    ready = folder / f"ready{name}.json"
    program = f"{before}\nfrom repoagent.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", "--model-repository", str(folder / "models")]
    command += [
        "--http-port=0",
        "--grpc-port=0",
        "--metrics-port=0",
        f"--ready-file={ready}",
        "--workspace-directory",
        str(folder / f"w{name}"),
        *flags,
    ]
    with child(command, folder / "serve.log", ready) as document:
        yield {protocol: int(document[protocol]["port"]) for protocol in ("http", "grpc")}


@contextmanager
def echo(folder: Path) -> Iterator[int]:
    ready = folder / "echo.json"
    with child([sys.executable, str(HERE / "echo_http.py"), str(ready)], folder / "echo.log", ready) as document:
        yield int(document["port"])


@contextmanager
def child(command: list[str], log: Path, ready: Path) -> Iterator[Any]:
    with log.open("wb") as output, ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(command, stdout=output, stderr=output))
        stack.callback(process.terminate)
        deadline = time.monotonic() + 60
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{' '.join(command)} did not start:\n{log.read_text()}")
            time.sleep(0.02)
        yield json.loads(ready.read_text())


# Load.


def measure(item: Payload, ports: dict[str, int], connections: int, options: argparse.Namespace) -> dict[str, float]:
    return alternating(lambda port: load(item, port, connections, options.seconds), ports, options.rounds)


def alternating(measure_once: Callable[[int], float], ports: dict[str, int], rounds: int) -> dict[str, float]:
    """The median rate of each server, and the median ratios of ours to the echo ("ratio") and to the others."""
    rates: dict[str, list[float]] = {name: [] for name in ports}
    for _ in range(rounds):
        for name, port in ports.items():
            rates[name].append(measure_once(port))
    found = {name: statistics.median(values) for name, values in rates.items()}
    for name in ports.keys() - {"ours"}:
        ratios = [ours / other for ours, other in zip(rates["ours"], rates[name], strict=True)]
        found["ratio" if name == "echo" else f"ratio to {name}"] = statistics.median(ratios)
    return found


def load(item: Payload, port: int, connections: int, seconds: int, host: str = "127.0.0.1") -> float:
    if shutil.which("wrk"):
        return wrk(item, f"http://{host}:{port}", connections, seconds)
    return own(item, port, connections, seconds, host)


def wrk(item: Payload, server: str, connections: int, seconds: int) -> float:
    body = "".join(f"\\{byte:03d}" for byte in item.body)
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(f'wrk.method = "POST"\nwrk.body = "{body}"\n')
        content_type = "application/json" if item.form == "json" else "application/octet-stream"
        script.write(f'wrk.headers["Content-Type"] = "{content_type}"\n')
        if item.form == "binary":
            script.write(f'wrk.headers["Inference-Header-Content-Length"] = "{item.json_length}"\n')
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", script.name]
        output = subprocess.run([*command, server + item.path], capture_output=True, text=True)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output.stdout)
    if rate is None or "Non-2xx" in output.stdout:
        raise SystemExit(f"wrk: {output.stdout}{output.stderr}")
    return float(rate[1])


def own(item: Payload, port: int, connections: int, seconds: int, host: str) -> float:
    command = [sys.executable, str(HERE / "load_http.py"), host, str(port), item.path, str(connections), str(seconds)]
    command.append(str(item.json_length if item.form == "binary" else -1))
    output = subprocess.run(command, input=item.body, capture_output=True)
    if output.returncode:
        raise SystemExit(output.stderr.decode())
    return float(output.stdout)


# The table.


def show(results: dict[tuple[str, str, int], dict[str, float]]) -> None:
    generator = "wrk" if shutil.which("wrk") else "load_http.py"
    print(f"requests per second, generator {generator}, {os.cpu_count()} cores shared with it")
    header = ("model", "form", "connections", "repoagent", "echo", "ratio", "Triton")
    print(f"{header[0]:<14} {header[1]:<7}" + "".join(f"{column:>12}" for column in header[2:]))
    for (model, form, connections), rates in results.items():
        triton = TRITON[form].get(connections)
        cells = [f"{connections}", f"{rates['ours']:,.0f}", f"{rates['echo']:,.0f}", f"{rates['ratio']:.2f}"]
        cells.append(f"{triton:,}" if triton else "-")
        print(f"{model:<14} {form:<7}" + "".join(f"{cell:>12}" for cell in cells))
    worst = min(rates["ratio"] for rates in results.values())
    print(f"worst ratio to the echo: {worst:.2f} (limit: at least {LIMIT})")


if __name__ == "__main__":
    sys.exit(main())
