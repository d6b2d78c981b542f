"""Requests, and what sends them as fast as they are answered: wrk for HTTP, load_grpc.py for gRPC."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from repoagent_server.grpc import messages_pb2 as pb
from servers import HERE

Arrays = Mapping[str, np.ndarray]
METHOD = "/inference.GRPCInferenceService/ModelInfer"
SIXTEEN = (np.arange(16) / 8).astype(np.float32)


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


def payload(model: str, form: str, arrays: Arrays) -> Payload:
    rows: list[dict[str, Any]] = [
        {"name": name, "datatype": "FP32", "shape": list(array.shape)} for name, array in arrays.items()
    ]
    document: dict[str, Any] = {"inputs": rows}
    for row, array in zip(rows, arrays.values(), strict=True):
        if form == "json":
            row["data"] = array.ravel().tolist()
        else:
            row["parameters"] = {"binary_data_size": array.nbytes}
            document["parameters"] = {"binary_data_output": True}
    head = json.dumps(document, separators=(",", ":")).encode()
    raw = b"" if form == "json" else b"".join(array.tobytes() for array in arrays.values())
    return Payload(model, form, head + raw, len(head))


def message(model: str, arrays: Arrays) -> bytes:
    """The same as a ModelInferRequest, whose tensors travel raw, as stock clients send them."""
    inputs = [
        pb.ModelInferRequest.InferInputTensor(name=name, datatype="FP32", shape=array.shape)
        for name, array in arrays.items()
    ]
    raw = [array.tobytes() for array in arrays.values()]
    return pb.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=raw).SerializeToString()


def request_of(item: Payload, headers: bytes = b"") -> bytes:
    """The bytes of a whole HTTP request; each line of ``headers`` begins with a line break."""
    length = f"Inference-Header-Content-Length: {item.json_length}\r\n" if item.form == "binary" else ""
    head = f"POST {item.path} HTTP/1.1\r\nHost: localhost\r\n{length}Content-Length: {len(item.body)}"
    return head.encode() + headers + b"\r\n\r\n" + item.body


def numbers(width: int) -> dict[str, np.ndarray]:
    """The input of a model of onnx_models.py's WIDTHS."""
    return {"x": (np.arange(width, dtype=np.float32) % 61 / 8).reshape(1, -1)}


def http_rate(item: Payload, port: int, connections: int, seconds: float, host: str = "127.0.0.1") -> float:
    """Requests per second."""
    if not shutil.which("wrk"):
        raise SystemExit("MISSING wrk: `make bench-peers` installs it (Debian: apt install wrk)")
    body = "".join(f"\\{byte:03d}" for byte in item.body)
    content_type = "application/json" if item.form == "json" else "application/octet-stream"
    lines = [f'wrk.method = "POST"\nwrk.body = "{body}"', f'wrk.headers["Content-Type"] = "{content_type}"']
    if item.form == "binary":
        lines.append(f'wrk.headers["Inference-Header-Content-Length"] = "{item.json_length}"')
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write("\n".join(lines))
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", script.name]
        output = subprocess.run([*command, f"http://{host}:{port}{item.path}"], capture_output=True, text=True)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output.stdout)
    if rate is None or "Non-2xx" in output.stdout:
        raise SystemExit(f"wrk: {output.stdout}{output.stderr}")
    return float(rate[1])


def grpc_rate(
    body: bytes, port: int, connections: int, seconds: float, host: str = "127.0.0.1", metadata: Sequence[str] = ()
) -> float:
    """Calls per second. ``metadata``: NAME=VALUE of each call."""
    command = [sys.executable, HERE / "load_grpc.py", host, port, connections, seconds, *metadata]
    output = subprocess.run(list(map(str, command)), input=body, capture_output=True)
    if output.returncode:
        raise SystemExit(output.stderr.decode())
    return float(output.stdout)


def rate(form: str, model: str, arrays: Arrays, address: tuple[str, int], connections: int, seconds: float) -> float:
    """Requests per second in the form "json", "binary" or "grpc"."""
    host, port = address
    if form == "grpc":
        return grpc_rate(message(model, arrays), port, connections, seconds, host)
    return http_rate(payload(model, form, arrays), port, connections, seconds, host)
