"""The core of an ingress: what several replicas answer about a model, as one answer, and what it refuses."""

from typing import Any, cast

import pytest

pytest.importorskip("ray", reason="ray[serve] is not installed: `make ray` installs it")

from repoagent_ray.cluster_core import ClusterCore

from repoagent.errors import UnsupportedError
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse


class _Sender:
    def __init__(self) -> None:
        self.got: list[tuple[InferResponse | None, bool]] = []

    def send(self, response: InferResponse | None, final: bool) -> None:
        self.got.append((response, final))


def test_an_ingress_executes_nothing_and_says_so() -> None:
    sender = _Sender()
    core, request = ClusterCore(cast(Any, None)), InferRequest(Asked("fraud", {}, id="7"), sender)
    with pytest.raises(UnsupportedError, match="an ingress executes no model: the request for 'fraud'"):
        core.check(request)
    core.submit(request)
    ((response, final),) = sender.got
    assert response is not None
    assert (type(response.error), response.id, final) == (UnsupportedError, "7", True)
