"""A stream of messages over gRPC in an ingress, as far as no replica is asked."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest

pytest.importorskip("ray", reason="ray[serve] is not installed: `make ray` installs it")

from repoagent_ray.cluster_core import ClusterCore
from repoagent_ray.grpc_calls import CallContext, CallEnded
from repoagent_ray.ingress_grpc import IngressGrpc
from repoagent_ray.wire import Failure
from repoagent_server.shared.pools import Pools

from deploy.ray.tests.kit import PATIENCE
from repoagent.errors import UnavailableError
from repoagent.limits import Limits


class _SlowReplicas:
    """In the place of :class:`Replicas`: what is asked is never answered."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.left = asyncio.Event()

    async def stream(self, *_: Any) -> AsyncIterator[Any]:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        yield Failure.of(UnavailableError("never"))


async def _messages(fault: BaseException | None) -> AsyncIterator[bytes]:
    """None, and then ``fault``."""
    for message in list[bytes]():
        yield message
    if fault is not None:
        raise fault


async def _answers(replicas: Any, messages: AsyncIterator[bytes]) -> list[bytes]:
    pools = Pools("test")
    ingress = IngressGrpc(ClusterCore(replicas), replicas, pools, limits=Limits(), stream_requests=2)
    try:
        async with asyncio.timeout(PATIENCE):
            return [answer async for answer in ingress.stream(messages, CallContext([]))]
    finally:
        pools.close()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (ConnectionError("the proxy has gone"), grpc.StatusCode.INTERNAL),
        (UnavailableError("the proxy has gone"), grpc.StatusCode.UNAVAILABLE),
        (asyncio.CancelledError(), grpc.StatusCode.CANCELLED),
    ],
)
async def test_a_stream_whose_messages_cannot_be_read_on_ends_with_a_status(
    fault: BaseException, code: grpc.StatusCode
) -> None:
    with pytest.raises(CallEnded) as ended:
        await _answers(cast(Any, None), _messages(fault))
    assert ended.value.end.code == code.value[0]


async def test_requests_of_a_stream_that_cannot_be_read_on_are_cancelled() -> None:
    replicas = _SlowReplicas()

    async def messages() -> AsyncIterator[bytes]:
        yield b""
        await replicas.asked.wait()
        raise ConnectionError("the proxy has gone")

    with pytest.raises(CallEnded):
        await _answers(replicas, messages())
    assert replicas.left.is_set()


async def test_a_stream_without_messages_ends_without_answers() -> None:
    assert await _answers(cast(Any, None), _messages(None)) == []
