"""What a client asked, and what the layers of the core make of it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_origin, get_type_hints

import pytest

import repoagent
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.senders import LayerSender

ROOT = Path(repoagent.__file__).parents[1]
OWNER = ROOT / "repoagent/serving/requests/request.py"
PB_UTILS = ROOT / "repoagent/serving/backends/python/model/request.py"
"""It writes the field of a class of its own, the request that a Python model sees."""


def _modules() -> list[Path]:
    folders = ("repoagent", "llm/repoagent_llm", "server_stub/repoagent_server")
    return [path for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")]


def _written(path: Path) -> Iterator[str]:
    """The attributes that ``path`` assigns to objects other than ``self``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) != "self":
            yield node.attr


def test_the_type_checker_lets_nobody_change_what_was_asked() -> None:
    assert all(get_origin(hint) is Final for hint in get_type_hints(Asked).values())


def test_what_layers_do_to_a_request_leaves_what_was_asked() -> None:
    asked = Asked("m", {}, requested_outputs=("y",))
    request = InferRequest(asked)
    request.model_name, request.inputs, request.requested_outputs = "n", {"x": Any}, ("z",)  # type: ignore[dict-item]
    assert (asked.model_name, asked.inputs, asked.requested_outputs) == ("m", {}, ("y",))


@pytest.mark.slow
def test_only_a_request_itself_says_where_its_answers_go() -> None:
    """Every layer goes through ``redirect``: no other module has a way of its own to change the sender."""
    assert {path for path in _modules() if {"sender", "_sender"} & set(_written(path))} <= {OWNER, PB_UTILS}


def test_answers_pass_every_layer_and_the_last_one_frees_them(new_sender: Any) -> None:
    passed: list[str] = []

    class Layer(LayerSender):
        def __init__(self, request: InferRequest, name: str) -> None:
            super().__init__(request)
            self._name = name

        def send(self, response: InferResponse | None, final: bool) -> None:
            passed.append(self._name)
            super().send(response, final)

    own = new_sender()
    request = InferRequest(Asked("m", {}), own)
    Layer(request, "inner")
    Layer(request, "outer")
    request.send(InferResponse("m", "1"), False)
    request.send(None, True)
    assert passed == ["outer", "inner"] * 2
    assert own.sent.qsize() == 2
    assert request.redirect(own) is own
