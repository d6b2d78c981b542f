"""The services of SageMaker and Vertex AI, made when the models are loaded: then it is known which one is meant."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from repoagent.errors import InvalidArgumentError
from repoagent_server.http.hosting.sagemaker import SageMaker, SageMakerOptions
from repoagent_server.http.hosting.service import hosted
from repoagent_server.http.hosting.vertex import Vertex, VertexOptions
from repoagent_server.http.service import HttpService, MakeService, ServiceFactory
from repoagent_server.shared.core import Core
from repoagent_server.shared.pools import Pools


class Api(Protocol):
    """The API of this server, behind another dispatcher."""

    def __call__(self, *, make_service: MakeService) -> ServiceFactory: ...


def sagemaker_service(options: SageMakerOptions, core: Core, api: Api) -> ServiceFactory:
    """What a front end needs to serve SageMaker's routes."""

    def make(loop: asyncio.AbstractEventLoop, pools: Pools) -> HttpService:
        # A model that is named may be loaded later: /ping reports until then that the server is not ready.
        index = [] if options.model else core.index(ready_only=True)
        model = default_model(options.model, index, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", check=False)
        return api(make_service=hosted(SageMaker(options, model)))(loop, pools)

    return make


def vertex_service(options: VertexOptions, core: Core, api: Api) -> ServiceFactory:
    """What a front end needs to serve Vertex AI's routes."""

    def make(loop: asyncio.AbstractEventLoop, pools: Pools) -> HttpService:
        model = default_model(options.model, core.index(ready_only=True), "--vertex-ai-default-model")
        return api(make_service=hosted(Vertex(options, model)))(loop, pools)

    return make


def default_model(name: str, index: Sequence[Mapping[str, Any]], how: str, *, check: bool = True) -> str:
    """``name``, or the only model of ``index``, which lists the versions that are ready.

    Args:
        name: What the operator chose; "" for nothing.
        index: The index of the server, ready versions only.
        how: How the operator names a model, for the message.
        check: Whether a model that was chosen must be ready.

    Raises:
        InvalidArgumentError: there is no such model, or more than one.
    """
    ready = sorted({str(entry["name"]) for entry in index})
    if name:
        if check and name not in ready:
            raise InvalidArgumentError(f"Expect the default model '{name}' is loaded ({how} names it)")
        return name
    if len(ready) != 1:
        raise InvalidArgumentError(
            "Expect the model repository contains only a single model if default model is not specified; "
            f"{len(ready)} are loaded. Name one with {how}"
        )
    return ready[0]
