"""A bare gRPC echo on grpcio, for grpc_infer.py: ``echo_grpc.py READY_FILE`` serves until it is terminated.

It runs on the loop that the server's front ends run on.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import grpc
import uvloop


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types for it
    """Answers every unary call with the bytes of its message, whatever the method."""

    def service(self, handler_call_details: Any) -> Any:
        del handler_call_details
        return grpc.unary_unary_rpc_method_handler(self._echo, None, None)

    @staticmethod
    async def _echo(message: bytes, context: Any) -> bytes:
        del context
        return message


async def serve(ready: Path) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    beside = ready.with_suffix(".new")
    beside.write_text(json.dumps({"port": port}))
    beside.rename(ready)
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1])))
