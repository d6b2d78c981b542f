"""The methods of gRPC put together over a core, for whatever carries the calls."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent_server.access import Access
from repoagent_server.codec.binary import Buffer
from repoagent_server.grpc.access import CallAccess
from repoagent_server.grpc.infer import InferCalls
from repoagent_server.grpc.infer_stream import InferStreams
from repoagent_server.grpc.service import SERVICE, GrpcService
from repoagent_server.handlers.headers import HeaderForwarding
from repoagent_server.handlers.inference import Inference, Mailbox
from repoagent_server.handlers.operations import Operations
from repoagent_server.handlers.shared_memory import NO_REGIONS, Regions
from repoagent_server.shared.connections import InFlight
from repoagent_server.shared.core import Core
from repoagent_server.shared.pools import Pools
from repoagent_server.shared.request_log import RequestLog
from repoagent_server.shared.reserve import Reserve


@dataclass(frozen=True, slots=True)
class GrpcMethods:
    """What answers calls on one event loop."""

    service: GrpcService
    calls: InferCalls
    access: CallAccess | None
    """Who may do what; None without access control."""


def assemble(
    core: Core,
    loop: asyncio.AbstractEventLoop,
    pools: Pools,
    *,
    allow_load_parameters: bool = False,
    regions: Regions = NO_REGIONS,
    operations: Operations | None = None,
    forwarding: HeaderForwarding | None = None,
    limits: Limits = DEFAULT_LIMITS,
    access: Access | None = None,
    in_flight: InFlight | None = None,
    request_log: RequestLog | None = None,
    join: Callable[[list[Buffer]], bytes] | None = b"".join,
    reserve: Reserve | None = None,
) -> GrpcMethods:
    """Every method of the service over ``core``, on the thread of ``loop``.

    Args:
        core: What answers.
        loop: On whose thread this is called, and the calls are.
        pools: Where methods run that take their time.
        allow_load_parameters: Whether load requests may bring a configuration and files.
        regions: The shared memory that clients may register.
        operations: Answer all but inference; None makes those of ``core``.
        forwarding: Which metadata reach the model as parameters.
        limits: How much one request may hold.
        access: Who may do what; None lets everybody do everything.
        in_flight: Counts the calls.
        request_log: Gets a line for each inference request.
        reserve: The one of all front ends of the server; None makes one, as large as ``limits`` allow.
        join: What makes one message of the parts of an inference response; None leaves that to the transport.
    """
    in_flight = in_flight or InFlight()
    operations = operations or Operations(core, allow_load_parameters=allow_load_parameters, regions=regions)
    inference = Inference(
        core,
        Mailbox(loop),
        regions,
        forwarding,
        limits,
        access,
        protocol="grpc",
        route=f"/{SERVICE}/ModelInfer",
        reserve=reserve,
    )
    calls = InferCalls(inference, in_flight, pools.long, request_log)
    streams = InferStreams(inference, calls, in_flight, pools.long)
    call_access = None if access is None else CallAccess(access, SERVICE)
    service = GrpcService(operations, calls, streams, pools, in_flight, join, call_access)
    return GrpcMethods(service, calls, call_access)
