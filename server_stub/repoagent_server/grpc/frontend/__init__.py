"""The gRPC front end: a thread with an event loop, and what carries gRPC there."""

from repoagent_server.grpc.frontend.frontend import GrpcFrontend

__all__ = ["GrpcFrontend"]
