"""``/v1``: OpenAI's API."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from repoagent.errors import InternalError, InvalidArgumentError, NotFoundError, RepoAgentError
from repoagent.serving.requests.request import Asked
from repoagent_server.access import Caller, Need, Right, Scope
from repoagent_server.access.rights import for_model, listed
from repoagent_server.codec.binary import Buffer
from repoagent_server.codec.json_text import loads
from repoagent_server.codec.long_json import LONG_JSON
from repoagent_server.handlers.headers import Api
from repoagent_server.handlers.inference import Inference
from repoagent_server.handlers.operations import visible
from repoagent_server.http.generate import check_encoding, wanted_report
from repoagent_server.http.long_work import LongWork
from repoagent_server.http.messages import Exchange, Request, Response, json_response
from repoagent_server.http.openai_answers import (
    DocumentGroup,
    Group,
    Part,
    SingleGroup,
    StreamGroup,
    VectorGroup,
    openai_error,
)
from repoagent_server.http.routes import check_depth
from repoagent_server.http.service import Params, Route, route_of
from repoagent_server.openai.answer import Answer
from repoagent_server.openai.chat_request import ChatAnswer, read_chat
from repoagent_server.openai.completion_request import CompletionAnswer, read_completion
from repoagent_server.openai.embeddings import (
    VectorRequest,
    embedding_requests,
    makes_embeddings,
    read_embedding,
    read_rerank,
    read_score,
)
from repoagent_server.openai.errors import ModelNotFoundError, status_of
from repoagent_server.openai.fields import Fields
from repoagent_server.openai.responses import ResponseAnswer, read_response
from repoagent_server.openai.tensors import asked_of, makes_text
from repoagent_server.openai.text_request import TextRequest
from repoagent_server.openai.tokenizing import TokenRequest, read_detokenize, read_tokenize
from repoagent_server.shared.core import Core


@dataclass(frozen=True, slots=True)
class Named:
    """What the name of a model in a request means: ``MODEL``, or ``MODEL:ADAPTER`` for an adapter of it."""

    model: str
    adapter: str
    metadata: Mapping[str, Any]


def named(core: Core, name: str, admit: Callable[[str], object] = lambda _: None) -> Named:
    """What ``name`` means to ``core``. ``admit`` gets the model, and raises if the client may not use it.

    Raises:
        ModelNotFoundError: there is no such model, or adapter of one.
    """
    model, _, adapter = name.partition(":")
    try:
        metadata = core.model_metadata(name, "")
    except NotFoundError as error:
        admit(model)
        if adapter and adapter in adapters_of(core, model):
            return Named(model, adapter, core.model_metadata(model, ""))
        raise ModelNotFoundError(f"The model '{name}' does not exist: {error.message}") from None
    admit(name)
    return Named(name, "", metadata)


def adapters_of(core: Core, model: str) -> list[str]:
    """The names of a model's adapters: the ``llm`` backend puts them into its configuration."""
    try:
        parameter = core.model_config(model, "").get("parameters", {}).get("lora_adapters", {})
    except RepoAgentError:
        return []  # It is being unloaded, or there is none.
    return [name for name in parameter.get("string_value", "").split(",") if name]


class ModelList:
    """What a core serves."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._created = int(time.time())

    def all(self, caller: Caller | None = None) -> dict[str, Any]:
        """The models that are ready, make texts or embeddings, and are for the eyes of ``caller``, if there is one."""
        rows = visible(self._core.index(ready_only=True), caller)
        names = dict.fromkeys(row["name"] for row in rows)
        rows = [row for name in names if self._fits(name) for row in self._entries(name)]
        return {"object": "list", "data": rows}

    def one(self, model: str, caller: Caller | None = None) -> dict[str, Any]:
        """One of them.

        Raises:
            ModelNotFoundError: it is not there, or not ready.
        """
        found = named(self._core, model)
        if not self._core.model_ready(found.model) or not (caller is None or caller.sees(found.model)):
            raise ModelNotFoundError(f"The model '{model}' is not ready")
        return self._entry(model, found.model if found.adapter else None)

    def _fits(self, model: str) -> bool:
        try:
            metadata = self._core.model_metadata(model, "")
        except RepoAgentError:
            return False  # It is being unloaded.
        return makes_text(metadata) or makes_embeddings(metadata)

    def _entries(self, model: str) -> list[dict[str, Any]]:
        """The model, and each adapter of it."""
        adapters = [self._entry(f"{model}:{adapter}", model) for adapter in adapters_of(self._core, model)]
        return [self._entry(model, None), *adapters]

    def _entry(self, name: str, parent: str | None) -> dict[str, Any]:
        entry = {"id": name, "object": "model", "created": self._created, "owned_by": "repoagent"}
        return entry if parent is None else {**entry, "root": parent, "parent": parent}


_GET: Final = frozenset({b"GET"})
_POST: Final = frozenset({b"POST"})
_UNKNOWN: Final = "this server has no such path of OpenAI's API"
_TURNED_OFF: Final = "this server does not serve OpenAI's API: start it with --allow-openai=true"


def load_routes(operations: list[Route], *, served: bool = True) -> list[Route]:
    """``POST /v1/models/M/load`` and ``/unload``: the same as those of ``operations``, answered in OpenAI's form."""
    found = []
    for word in ("load", "unload"):
        (like,) = (route for route in operations if route.pattern.endswith(f"/{word}"))
        pattern = f"/v1/models/(?P<model>[^/]+)(?P<repository>)(?P<version>)/{word}"
        off = "" if served else _TURNED_OFF
        found.append(replace(like, pattern=pattern, answer=_done(like.answer), refuse=openai_error, off=off))
    return found


def _done(answer: Callable[[Request, Params], Response] | None) -> Callable[[Request, Params], Response]:
    def done(request: Request, params: Params) -> Response:
        try:
            if answer is not None:
                answer(request, params)
        except RepoAgentError as error:
            status = status_of(error)  # A load that fails is 500 in Triton's API. OpenAI's clients repeat these.
            return openai_error(error, 400 if status == 500 else status)
        return json_response({"success": True})

    return done


Reader: TypeAlias = Callable[[object, Named, Request], tuple[Sequence[Asked], Callable[..., Group]]]
"""Makes of the body of a request what it asks of the model, and what makes the group that answers."""


class OpenAiRoutes:
    """The routes. One per event loop."""

    def __init__(self, inference: Inference, long: LongWork) -> None:
        self._inference = inference
        self._long = long
        self._models = ModelList(inference.core)

    def routes(self, *, served: bool = True) -> list[Route]:
        """All of them. Those not ``served`` let the same clients in, and answer these with 404 and the reason."""
        routes = self._routes()
        return routes if served else [replace(route, off=_TURNED_OFF) for route in routes]

    def _routes(self) -> list[Route]:
        looks = partial(Route, methods=_GET, pool="work", api=Api.MODEL_REPOSITORY, refuse=openai_error)
        ask, needs = partial(partial, self.ask), Need(Scope.BODY, Right.INFER)
        asks = partial(Route, methods=_POST, while_stopping=False, api=Api.INFERENCE, needs=needs, refuse=openai_error)
        return [
            asks("/v1/chat/completions", deferred=ask(partial(self._texts, read_chat, ChatAnswer))),
            asks("/v1/completions", deferred=ask(partial(self._texts, read_completion, CompletionAnswer))),
            asks("/v1/responses", deferred=ask(partial(self._texts, read_response, ResponseAnswer))),
            asks("/v1/embeddings", deferred=ask(partial(_vectors, read_embedding))),
            asks("/v1/score", deferred=ask(partial(_vectors, read_score))),
            asks("/v1/rerank", deferred=ask(partial(_vectors, read_rerank))),
            asks("/tokenize", deferred=ask(partial(_tokens, read_tokenize))),
            asks("/detokenize", deferred=ask(partial(_tokens, read_detokenize))),
            looks("/v1/models", answer=self.models, needs=listed(Right.METADATA)),
            looks(
                "/v1/models/(?P<model>.+?)(?P<adapter>:.*|%3[Aa].*)?",
                answer=self.model,
                needs=for_model(Right.METADATA),
            ),
            looks("/v1(?:/.*)?", answer=self.models, needs=listed(Right.METADATA), off=_UNKNOWN),
        ]

    def models(self, request: Request, _: Params) -> Response:
        """``GET /v1/models``."""
        return json_response(self._models.all(request.caller))

    def model(self, request: Request, params: Params) -> Response:
        """``GET /v1/models/M``."""
        try:
            return json_response(self._models.one(params["model"] + params["adapter"], request.caller))
        except RepoAgentError as error:
            return openai_error(error)

    def ask(self, reader: Reader, request: Request, _: Params, exchange: Exchange) -> None:
        """Ask the model that the body names for what ``reader`` makes of that; a long body is read on a thread."""

        def read() -> tuple[Sequence[Asked], Callable[..., Group]]:
            check_encoding(request)
            document = _parsed(request)
            return reader(document, self._named(document, request), request)

        def submit(found: tuple[Sequence[Asked], Callable[..., Group]]) -> None:
            requests, group = found
            self._submit(group(request, exchange, self._long), requests, request, exchange)

        def fail(error: Exception) -> None:
            exchange.respond(openai_error(error))

        if len(request.body) >= LONG_JSON:
            self._long.do(lambda _: read(), submit, request, exchange, fail)
            return
        try:
            submit(read())
        except Exception as error:
            fail(error)

    def _texts(
        self,
        read: Callable[[object], TextRequest],
        answer: Callable[[TextRequest], Answer],
        document: object,
        found: Named,
        request: Request,
    ) -> tuple[Sequence[Asked], Callable[..., Group]]:
        """``POST /v1/chat/completions``, ``/v1/completions`` and ``/v1/responses``."""
        asked = read(document)
        stream = asked.sampling.stream
        # A model that answers each request once has its text whole in a stream, too.
        in_pieces = stream and self._inference.core.decoupled(found.model)
        requests = asked_of(asked, found.model, found.metadata, found.adapter, stream=in_pieces)
        return requests, partial(StreamGroup if stream else DocumentGroup, answer(asked), wanted_report(request))

    def _named(self, document: object, request: Request) -> Named:
        """The model that the body names, once its client may use it: before anything else is read."""

        def admit(model: str) -> None:
            request.model = model
            self._inference.admit(request.caller, model, route=route_of(request))

        return named(self._inference.core, Fields(document).model(), admit)

    def _submit(self, group: Group, requests: Sequence[Asked], request: Request, exchange: Exchange) -> None:
        context = self._inference.context(lambda: request.headers, request.caller, request.id)
        box = self._inference.mailbox
        group.requests = [
            self._inference.prepare(asked, Part(box, group, number), context) for number, asked in enumerate(requests)
        ]
        exchange.on_cancel = group.cancel
        exchange.on_behind = group.fall_behind
        for one in group.requests:
            if group.failed:
                break
            self._inference.core.submit(one)


def _vectors(
    read: Callable[[object], VectorRequest], document: object, found: Named, _: Request
) -> tuple[Sequence[Asked], Callable[..., Group]]:
    """``POST /v1/embeddings``, ``/v1/score`` and ``/v1/rerank``."""
    asked = read(document)
    return embedding_requests(asked, found.metadata), partial(VectorGroup, asked)


def _tokens(
    read: Callable[[object], TokenRequest], document: object, found: Named, _: Request
) -> tuple[Sequence[Asked], Callable[..., Group]]:
    """``POST /tokenize`` and ``/detokenize``."""
    asked = read(document)
    return [asked.asked(found.model, found.metadata)], partial(SingleGroup, asked)


_MOST_MEMBERS: Final = 1 << 21
_WINDOW: Final = 1 << 20
_STRUCTURE: Final = np.isin(np.arange(256), list(b"{[:"))


def check_members(body: Buffer) -> None:
    """Objects, arrays and members take up to fifty times the memory of their JSON. Marks of them in texts count, too:
    there are far fewer in prompts.

    Raises:
        InvalidArgumentError: there are too many.
    """
    data, count = np.frombuffer(body, np.uint8), 0
    for start in range(0, len(data), _WINDOW):
        count += int(np.count_nonzero(_STRUCTURE[data[start : start + _WINDOW]]))
        if count > _MOST_MEMBERS:
            raise InvalidArgumentError(
                f"the body of the request has more than {_MOST_MEMBERS} objects, arrays and members: send several"
            )


def _parsed(request: Request) -> Any:
    if len(request.body) >= LONG_JSON:
        check_members(request.body)
    try:
        read = loads(request.body)
    except InternalError as error:  # Of the client, in this API.
        raise InvalidArgumentError(f"the body of the request is not valid JSON: {error.message}") from None
    check_depth(read)
    return read
