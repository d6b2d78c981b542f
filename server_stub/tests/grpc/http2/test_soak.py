"""Soak test of gRPC: frames that a fuzzer makes, then calls that are cancelled and run out of time.

In full it is 100,000 connections that bring good, broken and misplaced frames to the state machine, and a million
calls to a `repoagent serve`. A connection must never raise, write only whole frames, and hold nothing at its
end. A call must have exactly one outcome, and the right one; the server's memory must not grow.
"""

import asyncio
import json
import random
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import pytest
from hpack import Encoder
from hyperframe.frame import Frame
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.http2.connection import Connection
from repoagent_server.grpc.http2.control import Rules
from repoagent_server.grpc.http2.frames import PREFACE
from repoagent_server.grpc.http2.head import RequestHead, Stream
from repoagent_server.shared.reserve import Reserve

from tests.extent import in_full
from tests.warm import Warm

CONNECTIONS: Final = 100_000
CALLS: Final = 1_000_000
TASKS: Final = 32
CHANNELS: Final = 4
GROWTH_LIMIT: Final = 24 << 20
METHOD: Final = "/inference.GRPCInferenceService/"
CONFIG: Final = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [-1, 16] } output { name: "y" data_type: TYPE_FP32 dims: [-1, 16] }
"""
ADD: Final = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy() + 1)]) for r in requests]
"""
HEADERS: Final = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", METHOD + "ModelInfer"),
    (":authority", "x"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


@dataclass(slots=True)
class Report:
    """What a run showed. ``faults`` is empty after a good one."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def require(self, condition: bool, fault: str) -> None:
        """Note ``fault`` unless ``condition``; the first dozens are enough."""
        if not condition and len(self.faults) < 50:
            self.faults.append(fault)


# Frames.


class Call:
    """Of a stream, what must be true of it."""

    def __init__(self, application: "Application", connection: Connection, stream: Stream) -> None:
        self.application, self.connection, self.stream = application, connection, stream
        self.over = False

    def data(self, data: bytes, start: int, stop: int, ended: bool) -> None:
        if self.over:
            self.application.faults.append("data after the end of a call")
        chance = self.application.chance
        if ended or chance.random() < 0.05:
            self.answer(chance)
        else:
            self.connection.credit(self.stream)

    def answer(self, chance: random.Random) -> None:
        connection, stream = self.connection, self.stream
        self.over = True
        stream.call = None
        kind = chance.randrange(4)
        if kind == 0:
            connection.sender.reply(stream, bytes(chance.randrange(100)))
        elif kind == 1:
            connection.sender.finish(stream, chance.randrange(17), "text")
        elif connection.sender.send(stream, [bytes(chance.choice((0, 10, 20_000, 200_000)))], compressed=kind == 3):
            connection.sender.finish(stream)

    def lost(self) -> None:
        if self.over:
            self.application.faults.append("a call is lost after its end")
        self.over = True

    @property
    def unfinished(self) -> bool:
        return False

    def drained(self) -> None:
        pass


class Application:
    """Answers calls at random."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.faults: list[str] = []
        self.calls = 0

    def route(self, head: RequestHead) -> None:
        head.route, head.lazy = "route", self.chance.random() < 0.5

    def opened(self, connection: Connection, stream: Stream) -> None:
        stream.call = Call(self, connection, stream)
        self.calls += 1

    def data(self, connection: Connection, stream: Stream, data: bytes, start: int, stop: int, ended: bool) -> None:
        if stream.call is None and not stream.begun:
            self.opened(connection, stream)
        if stream.call is not None:
            stream.call.data(data, start, stop, ended)


def raw(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


class Fuzzer:
    """Makes the bytes of one connection: mostly good ones, of which some are changed."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.encoder = Encoder()
        self.last = -1

    def connection(self) -> bytes:
        chance = self.chance
        pieces = [PREFACE, raw(4, 0, 0)] if chance.random() < 0.98 else []
        pieces += [self.frame() for _ in range(chance.randrange(1, 40))]
        data = bytearray(b"".join(pieces))
        if chance.random() < 0.3:
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
        return bytes(data)

    def frame(self) -> bytes:
        chance = self.chance
        odd = chance.random() < 0.03
        stream = chance.choice((0, 1, 2, self.last + 2)) if odd else max(1, self.last - 2 * chance.randrange(4))
        kind = chance.choice((2, 5, 9)) if odd else chance.choices(range(11), (40, 40, 2, 5, 2, 0, 1, 1, 10, 0, 1))[0]
        if kind == 1 or self.last < 0:
            return self.headers()
        if kind == 0:
            body = chance.choice((b"", b"\0\0\0\0\0", b"\0\0\0\0\5hello", bytes(chance.randrange(3000))))
            if chance.random() < 0.1:
                return raw(0, 8 | chance.randrange(2), stream, bytes((chance.randrange(20),)) + body)
            return raw(0, chance.randrange(2), stream, body)
        size = {2: 5, 3: 4, 6: 8, 7: 8, 8: 4}.get(kind, chance.choice((0, 6, 12, 50)))
        if chance.random() < (0.2 if odd else 0.01):
            size += chance.randrange(-1, 3)
        flags = chance.choice((0, 0, 0, 1, 4, chance.randrange(256)))
        payload = chance.randbytes(max(0, size))
        if kind == 8 and not odd:
            payload = struct.pack(">I", chance.randrange(1, 100_000))
            stream = chance.choice((0, stream))
        elif kind == 4:
            payload = struct.pack(">HI", chance.choice((1, 3, 4, 4, 6, 9)), chance.choice((0, 10, 100_000)))
            flags = 0
        return raw(kind, flags, stream if kind not in (4, 6, 7) else 0, payload)

    def headers(self) -> bytes:
        chance = self.chance
        self.last += 2
        fields = list(HEADERS)
        if chance.random() < 0.1:
            fields.append((chance.choice(("x", "content-length", "te", "Bad", ":odd")), str(chance.randrange(20))))
        block = self.encoder.encode(fields)
        end = chance.randrange(2)
        if chance.random() < 0.1:
            cut = chance.randrange(len(block))
            return raw(1, end, self.last, block[:cut]) + raw(9, 4, self.last, block[cut:])
        return raw(1, 4 | end, self.last, block)


def fuzz_one(seed: int, report: Report) -> None:
    """One connection, whose bytes come in pieces of any size."""
    chance = random.Random(seed)
    application, reserve = Application(chance), Reserve(1 << 20)
    now = [0.0]
    connection = Connection(application, Rules(), reserve, lambda: now[0])
    connection.control.open()
    data, written, position = Fuzzer(chance).connection(), b"", 0
    try:
        while position < len(data):
            size = chance.choice((1, 5, 9, 14, 100, 10_000))
            connection.receive(data[position : position + size])
            while connection.more:
                connection.receive(b"")
            position += size
            now[0] += chance.choice((0.0, 0.001, 10.0))
            if chance.random() < 0.02:
                connection.control.part() if chance.random() < 0.5 else connection.control.part_now()
            connection.sender.writable = chance.random() < 0.9
            written += b"".join(connection.sender.taken())
            connection.sender.go_on()
        written += b"".join(connection.sender.taken())
        connection.control.lost()
    except Exception as error:
        report.require(False, f"connection {seed} raises {error!r}")
        return
    check_written(written, connection.control.last, seed, report)
    report.require(not application.faults, f"connection {seed}: {application.faults[:1]}")
    report.require(reserve.held == 0 and not connection.streams, f"connection {seed} holds {reserve.held} bytes")
    report.outcomes[
        "ended by a fault" if connection.control.closed and b"\x07\0\0\0\0\0" in written else "went on"
    ] += 1
    report.outcomes["calls"] += application.calls


def check_written(data: bytes, opened: int, seed: int, report: Report) -> None:
    """Whole frames, none of them after the end of its stream, and none on a stream after ``opened``, the last one."""
    ended: set[int] = set()
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        report.require(len(data) >= 9 + length, f"connection {seed} writes a part of a frame")
        report.require(frame.stream_id <= opened, f"connection {seed} writes on an idle stream")
        if frame.type in (0, 1):
            report.require(frame.stream_id not in ended, f"connection {seed} writes on after the end of a stream")
            if data[4] & 1:
                ended.add(frame.stream_id)
        data = data[9 + length :]


def fuzz(share: float, seed: int) -> Report:
    report = Report()
    for number in range(int(CONNECTIONS * share)):
        fuzz_one(seed * CONNECTIONS + number, report)
    return report


# Calls.


@dataclass(slots=True)
class Caller:
    """Makes calls until there are enough, over channels that it shares."""

    channels: list[Any]
    left: int
    chance: random.Random
    report: Report

    async def run(self) -> None:
        while self.left > 0:
            self.left -= 1
            kind = self.chance.random()
            try:
                if kind < 0.8:
                    await self.unary(None)
                elif kind < 0.9:
                    await self.unary(self.chance.random() / 100)
                elif kind < 0.97:
                    await self.cancelled()
                else:
                    await self.stream()
            except Exception as error:
                self.report.require(False, f"{type(error).__name__} in {kind:.3f}: {error}")

    def message(self, number: int) -> Any:
        asked = pb.ModelInferRequest(model_name="add", id=str(number) if number % 2 else "")
        asked.inputs.add(name="x", datatype="FP32", shape=[1, 16])
        asked.raw_input_contents.append(np.full((1, 16), number, np.float32).tobytes())
        return asked

    def method(self, name: str = "ModelInfer", kind: str = "unary_unary", answer: Any = pb.ModelInferResponse) -> Any:
        channel = self.chance.choice(self.channels)
        return getattr(channel, kind)(METHOD + name, pb.ModelInferRequest.SerializeToString, answer.FromString)

    def check(self, answer: Any, number: int) -> None:
        value = np.frombuffer(answer.raw_output_contents[0], np.float32)
        self.report.require(bool((value == number + 1).all()), f"{value[0]} is the answer to {number}")

    async def unary(self, timeout: float | None) -> None:
        number = self.chance.randrange(1 << 20)
        try:
            self.check(await self.method()(self.message(number), timeout=timeout), number)
            self.report.outcomes["answered"] += 1
        except grpc.aio.AioRpcError as error:
            late = timeout is not None and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            self.report.require(late, f"{error.code()} with a timeout of {timeout}: {error.details()}")
            self.report.outcomes["too late"] += 1

    async def cancelled(self) -> None:
        call = self.method()(self.message(1))
        await asyncio.sleep(self.chance.random() / 500)
        call.cancel()
        try:
            await call
            self.report.outcomes["answered before its cancellation"] += 1
        except asyncio.CancelledError:
            self.report.outcomes["cancelled"] += 1

    async def stream(self) -> None:
        numbers = [self.chance.randrange(1 << 20) for _ in range(5)]
        call = self.method("ModelStreamInfer", "stream_stream", pb.ModelStreamInferResponse)(
            self.message(number) for number in numbers
        )
        found = []
        async for answer in call:
            found.append(float(np.frombuffer(answer.infer_response.raw_output_contents[0], np.float32)[0]))
            if len(found) == 3 and numbers[0] % 3 == 0:
                call.cancel()
                self.report.outcomes["streams cancelled"] += 1
                return
        self.report.require(sorted(found) == sorted(number + 1.0 for number in numbers), f"{found} to {numbers}")
        self.report.outcomes["streams"] += 1


async def _call(port: int, calls: int, seed: int, report: Report) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(CHANNELS)]
    caller = Caller(channels, calls, random.Random(seed), report)
    await asyncio.gather(*(caller.run() for _ in range(TASKS)))
    await asyncio.gather(*(channel.close() for channel in channels))


@contextmanager
def server(warm: Warm, folder: Path) -> Iterator[tuple[int, int]]:
    """The process and the gRPC port of a `repoagent serve` with the model ``add``, which adds one."""
    model = folder / "models" / "add" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    model.write_text(ADD)
    (folder / "models" / "add" / "config.pbtxt").write_text(CONFIG)
    ready = folder / "ready.json"
    command = ["serve", f"--model-repository={folder / 'models'}"]
    command += ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    command += [f"--ready-file={ready}", f"--workspace-directory={folder / 'workspace'}"]
    with (folder / "log").open("w") as log:
        process = warm.start(command, stdout=log, stderr=log)
    try:
        while not ready.exists():
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
        yield process.pid, json.loads(ready.read_text())["grpc"]["port"]
    finally:
        process.terminate()
        process.wait(60)


def resident(process: int) -> int:
    """Bytes of memory that ``process`` holds."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


def soak(warm: Warm, folder: Path, share: float, seed: int) -> Report:
    """The first tenth is for warming up: memory counts from then on."""
    report, calls = Report(), int(CALLS * share)
    with server(warm, folder) as (process, port):
        asyncio.run(_call(port, calls // 10, seed, report))
        before = resident(process)
        asyncio.run(_call(port, calls - calls // 10, seed + 1, report))
        growth = resident(process) - before
        report.require(growth < GROWTH_LIMIT, f"memory grew by {growth / 2**20:.1f} MiB")
        report.outcomes["MiB of growth"] = growth >> 20
    return report


@pytest.mark.slow
def test_frames_of_any_kind_raise_nothing_and_leave_nothing() -> None:
    report = fuzz(in_full(1.0, otherwise=0.01), seed=0)
    print(report)
    assert report.faults == []
    assert min(report.outcomes.values()) > 100


@pytest.mark.slow
def test_every_call_has_one_outcome_and_the_right_one(warm: Warm, tmp_path: Path) -> None:
    report = soak(warm, tmp_path, in_full(1.0, otherwise=0.003), seed=0)
    print(report)
    assert report.faults == []
    assert min(report.outcomes[kind] for kind in ("answered", "cancelled", "streams")) > 0
