"""Triton's clients for the served models."""

from collections.abc import Iterator
from typing import Any

import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from server_stub.tests.served import Served, served

__all__ = ["served"]


@pytest.fixture
def http(served: Served) -> Iterator[Any]:
    """Triton's HTTP client."""
    with http_client.InferenceServerClient("{}:{}".format(*served.http)) as client:
        yield client


@pytest.fixture
def grpc(served: Served) -> Iterator[Any]:
    """Triton's gRPC client."""
    with grpc_client.InferenceServerClient(served.grpc) as client:
        yield client
