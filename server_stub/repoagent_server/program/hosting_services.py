"""The services of SageMaker and Vertex AI, made when the models are loaded: then it is known which one is meant."""

import asyncio
from typing import Protocol

from repoagent_server.http.hosting.default_model import default_model
from repoagent_server.http.hosting.sagemaker import SageMaker, SageMakerOptions
from repoagent_server.http.hosting.service import hosted
from repoagent_server.http.hosting.vertex import Vertex, VertexOptions
from repoagent_server.http.service import HttpService, MakeService, ServiceFactory
from repoagent_server.shared.core import Core
from repoagent_server.shared.pools import Pools

__all__ = ["sagemaker_service", "vertex_service"]


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
