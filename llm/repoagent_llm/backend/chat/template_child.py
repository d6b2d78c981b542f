"""The program that renders chat templates: the publisher of the model wrote them, so they run in their own process.

It imports nothing of this project, so that it starts in a tenth of a second. A socket is its standard input; frames are
a length of four bytes and JSON. The first one sets it up, each further one is a conversation, and each is answered
with one: the text, or why there is none. Time is bounded by a timer that ends the process, memory by its own limit.
"""

import json
import resource
import signal
import struct
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

_HEAD: Final = struct.Struct(">I")
_SHOWN: Final = 500
_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the last message where the answer goes on with it; transformers uses the same."""
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""Names under which clients send the thoughts of earlier answers; templates read the first two."""

Object = dict[str, Any]


class _RefusedError(Exception):
    """There is no text; the message is for the client."""


class _Generation(jinja2.ext.Extension):
    """``{% generation %}``, which marks answers for training: its body counts."""

    tags = {"generation"}

    def parse(self, parser: "jinja2.parser.Parser") -> "jinja2.nodes.Node":
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> Any:
        return caller()


class _Dict:
    """``dict(...)`` and nothing else of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> Object:
        return dict(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """``namespace(...)`` without names that Python itself uses."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        own, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(own, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot have the name {name!r}")


def _raise_exception(message: object) -> NoReturn:
    raise _RefusedError(f"the model's chat template refuses the conversation: {message}")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """What transformers gives to templates, from its release 5 on."""
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals.update(raise_exception=_raise_exception, strftime_now=_now, dict=_Dict(), namespace=_Namespace)
    return made


class _Renderer:
    """The templates of one model."""

    def __init__(self, setup: Object) -> None:
        environment = _environment()
        self._special: Object = setup["special"]
        self._sources: dict[str, str] = setup["templates"]
        self._templates = {name: environment.from_string(text) for name, text in self._sources.items()}
        self._longest: int = setup["longest"]
        self.seconds: float = setup["seconds"]

    def render(self, messages: str, options: str | None) -> str:
        conversation = _messages(messages)
        values = _object("chat_template_kwargs", options) if options is not None else {}
        for name in ("messages", *(name for name in values if name.startswith("_"))):
            if name in values:
                raise _RefusedError(f"chat_template_kwargs cannot have the name '{_cut(name)}'")
        tools, documents = values.pop("tools", None), values.pop("documents", None)
        goes_on = values.pop("continue_final_message", False)
        prompt = values.pop("add_generation_prompt", not goes_on)
        name = self._name(values.pop("chat_template", None), tools)
        end = _mark_end(conversation, bool(prompt)) if goes_on else ""
        pieces = self._templates[name].generate(
            {
                **self._special,
                **values,
                "messages": conversation,
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": prompt,
            }
        )
        text = self._joined(pieces)
        return _until_mark(text, end) if goes_on else text

    def _name(self, wanted: Any, tools: Any) -> str:
        if wanted is not None:
            if wanted not in self._templates:
                names = ", ".join(sorted(self._templates))
                raise _RefusedError(f"chat_template must be the name of a template of the model: {names}")
            return str(wanted)
        if tools is not None and "tool_use" in self._templates:
            return "tool_use"
        if "default" not in self._templates:
            names = ", ".join(sorted(self._templates))
            raise _RefusedError(f"chat_template_kwargs needs chat_template, the name of one of the model's: {names}")
        return "default"

    def _joined(self, pieces: Any) -> str:
        kept: list[str] = []
        size = 0
        for piece in pieces:
            size += len(piece)
            if size > self._longest:
                raise _RefusedError(f"the chat template makes a prompt of more than {self._longest} characters")
            kept.append(piece)
        return "".join(kept)


def _cut(text: object) -> str:
    shown = str(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def _object(name: str, text: str) -> Object:
    value = _json(name, text)
    if not isinstance(value, dict):
        raise _RefusedError(f"{name} must be a JSON object")
    return value


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _RefusedError(f"{name} is not valid JSON: {error}") from None


def _messages(text: str) -> list[Object]:
    """The conversation, without members that are null, as many templates know only missing ones."""
    found = _json("messages", text)
    if not isinstance(found, list) or not found:
        raise _RefusedError("messages must be a JSON list of at least one message")
    for number, message in enumerate(found):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _RefusedError(f"messages[{number}] must be an object with a 'role'")
    return [_with_thoughts({key: value for key, value in message.items() if value is not None}) for message in found]


def _with_thoughts(message: Object) -> Object:
    thoughts = next((message[name] for name in _REASONING if name in message), None)
    return message if thoughts is None else {"thinking": thoughts, **message, "reasoning_content": thoughts}


def _mark_end(messages: list[Object], prompt: bool) -> str:
    """Mark the end of the last message's text, which is returned."""
    if prompt:
        raise _RefusedError("continue_final_message and add_generation_prompt exclude each other")
    text = messages[-1].get("content")
    if not isinstance(text, str):
        raise _RefusedError("continue_final_message needs a last message whose content is a text")
    messages[-1]["content"] = text + _TAG
    return text


def _until_mark(text: str, end: str) -> str:
    place = text.rfind(_TAG.strip())
    if place < 0 or end.strip() not in text:
        raise _RefusedError("continue_final_message: the last message is not in the text that the template makes")
    return text[:place] if text.startswith(_TAG, place) else text[:place].rstrip()


def _receive() -> Object | None:
    head = _exactly(_HEAD.size)
    return None if head is None else json.loads(_exactly(_HEAD.unpack(head)[0]) or b"null")


def _exactly(size: int) -> bytes | None:
    data = sys.stdin.buffer.read(size)
    return data if len(data) == size else None


def _send(answer: Object) -> None:
    data = json.dumps(answer).encode()
    with open(0, "wb", closefd=False) as output:
        output.write(_HEAD.pack(len(data)) + data)


def _answer(work: Any) -> Object:
    """What ``work`` returns, or why it fails: a template may raise anything."""
    try:
        return {"text": work()}
    except _RefusedError as error:
        return {"refused": _cut(error)}
    except jinja2.exceptions.SecurityError as error:
        return {"refused": f"the model's chat template is not safe: {_cut(error)}"}
    except (MemoryError, RecursionError) as error:
        return {"refused": f"the model's chat template takes too much memory ({type(error).__name__})"}
    except Exception as error:
        return {"refused": f"the model's chat template fails: {_cut(f'{type(error).__name__}: {error}')}"}


def _limited(seconds: float, work: Any) -> Object:
    """``work`` within so many seconds of the processor, however busy the machine is; then the process ends."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    answer = _answer(work)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return answer


def _restrict(memory: int) -> None:
    """No memory without end, no files, no image of what clients wrote."""
    limits: Mapping[int, int] = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))


def main() -> None:
    """Answer until the server has gone."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup = _receive()
    if setup is None:
        return
    _restrict(setup["memory"])
    made: list[_Renderer] = []

    def read() -> str:
        made.append(_Renderer(setup))
        return ""

    _send(_limited(setup["setup_seconds"], read))
    while made and (asked := _receive()) is not None:
        _send(_limited(made[0].seconds, partial(made[0].render, asked["messages"], asked["options"])))


if __name__ == "__main__":
    main()
