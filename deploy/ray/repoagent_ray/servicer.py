"""For Ray's gRPC proxy: the methods that it passes to the ingress, as bytes.

The configuration of Serve names these functions: ``grpc_servicer_functions=["repoagent_ray.servicer.add_kserve",
"repoagent_ray.servicer.add_health"]``.
"""

from typing import Any, Final

import grpc
from grpc_health.v1 import health
from repoagent_server.grpc.service import METHODS, SERVICE

FUNCTIONS: Final = [f"{__name__}.add_kserve", f"{__name__}.add_health"]
"""What the configuration of Serve names."""

_STREAM: Final = "ModelStreamInfer"


def add_kserve(_: Any, server: Any) -> None:
    """Add ``inference.GRPCInferenceService`` to a server of Ray's, which calls the ingress instead of the servicer."""
    handlers = {name: grpc.unary_unary_rpc_method_handler(_unused) for name in METHODS}
    handlers[_STREAM] = grpc.stream_stream_rpc_method_handler(_unused)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def add_health(_: Any, server: Any) -> None:
    """Add ``grpc.health.v1.Health/Check``, which probes of Kubernetes call."""
    handlers = {"Check": grpc.unary_unary_rpc_method_handler(_unused)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(health.SERVICE_NAME, handlers),))


def _unused(*_: Any) -> Any:
    raise AssertionError("Ray puts its own function in the place of this one")
