"""A load generator for grpc_infer.py.

``load_grpc.py HOST PORT CONNECTIONS SECONDS`` makes the unary call ModelInfer with the bytes on its standard input over
and over, one call at a time on each connection, and prints the calls per second. Messages are neither made nor parsed,
so that as little as possible of the machine goes into this.
"""

import asyncio
import sys
import time

import grpc

METHOD = "/inference.GRPCInferenceService/ModelInfer"


async def run(host: str, port: int, message: bytes, connections: int, seconds: float) -> float:
    # Channels with the same arguments share one connection unless each has a pool of its own.
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"{host}:{port}", options=options) for _ in range(connections)]
    calls = [channel.unary_unary(METHOD) for channel in channels]
    await asyncio.gather(*(call(message, wait_for_ready=True) for call in calls))
    answers, deadline = 0, time.monotonic() + seconds

    async def client(call: grpc.aio.UnaryUnaryMultiCallable) -> None:
        nonlocal answers
        while time.monotonic() < deadline:
            await call(message)
            answers += 1

    started = time.monotonic()
    await asyncio.gather(*map(client, calls))
    taken = time.monotonic() - started
    await asyncio.gather(*(channel.close() for channel in channels))
    return answers / taken


def main() -> None:
    host, port, connections, seconds = sys.argv[1:]
    print(asyncio.run(run(host, int(port), sys.stdin.buffer.read(), int(connections), float(seconds))))


if __name__ == "__main__":
    main()
