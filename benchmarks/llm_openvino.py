"""openvino-genai behind ``/v1/completions``: its wheels bring no server, so this one asks it as llm_peers.py does.

``llm_openvino.py MODEL.gguf PORT THREADS SEQUENCES PROPERTIES``, in the environment of openvino-genai; PROPERTIES are
a JSON object. One thread: between two steps of the pipeline it takes the requests that have come and writes events.
"""

import json
import selectors
import socket
import sys
from dataclasses import dataclass
from typing import Any

HEAD = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nConnection: close\r\n{}\r\n"


@dataclass(slots=True)
class Running:
    """A request that generates."""

    handle: Any
    connection: socket.socket
    stream: bool
    prompt: int
    """How many tokens it has."""
    tokens: list[int]
    left: int


class Engine:
    """Requests of one pipeline, step by step."""

    def __init__(self, model: str, threads: int, sequences: int, properties: dict[str, str]) -> None:
        import openvino_genai

        self._api: Any = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs, scheduler.enable_prefix_caching = 1, sequences, False
        properties = {"INFERENCE_NUM_THREADS": str(threads), **properties}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._words = self._pipeline.get_tokenizer()
        self._last = 0
        self.running: list[Running] = []

    def add(self, connection: socket.socket, body: dict[str, Any]) -> None:
        """Take a request; greedy, whatever it wants."""
        ids = self._words.encode(body["prompt"], add_special_tokens=False).input_ids
        config = self._api.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = body["max_tokens"], True, False
        self._last += 1
        handle = self._pipeline.add_request(self._last, ids, config)
        stream = bool(body.get("stream"))
        if stream:
            connection.sendall(HEAD.format("text/event-stream", "").encode())
        self.running.append(Running(handle, connection, stream, ids.get_size(), [], body["max_tokens"]))

    def step(self) -> None:
        """One step, and what it brings to each request."""
        self._pipeline.step()
        came = [(one, self._read(one)) for one in self.running]
        came = [(one, tokens) for one, tokens in came if tokens]
        if not came:
            return
        for (one, tokens), text in zip(came, self._words.decode([tokens for _, tokens in came]), strict=True):
            one.tokens += tokens
            one.left -= len(tokens)
            if one.stream:
                self._write(one, f"data: {json.dumps(_answer(text))}\n\n")
            if one.left <= 0:
                self._end(one)
        self.running = [one for one in self.running if one.left > 0]

    def _read(self, one: Running) -> list[int]:
        tokens: list[int] = []
        while one.handle.can_read():
            for output in one.handle.read().values():
                tokens += output.generated_ids
        return tokens

    def _end(self, one: Running) -> None:
        if one.stream:
            self._write(one, "data: [DONE]\n\n")
        else:
            answer = _answer(self._words.decode(one.tokens))
            answer["usage"] = {"prompt_tokens": one.prompt, "completion_tokens": len(one.tokens)}
            content = json.dumps(answer)
            length = f"Content-Length: {len(content.encode())}\r\n"
            self._write(one, HEAD.format("application/json", length) + content)
        one.connection.close()

    def _write(self, one: Running, text: str) -> None:
        try:
            one.connection.sendall(text.encode())
        except OSError:  # The client has gone.
            one.handle.stop()
            one.left = 0


def _answer(text: str) -> dict[str, Any]:
    return {"object": "text_completion", "choices": [{"index": 0, "text": text}]}


def complete(data: bytes) -> dict[str, Any] | None:
    """The body of a POST, when all of it has come."""
    head, end, content = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    if not end or (lengths and len(content) < int(lengths[0])):
        return None
    found: dict[str, Any] = json.loads(content) if content else {}
    return found


def serve(engine: Engine, port: int) -> None:
    """Take requests, and go on with those that run."""
    with selectors.DefaultSelector() as selector, socket.create_server(("127.0.0.1", port), backlog=64) as listener:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            while ready := selector.select(0 if engine.running else None):
                for key, _ in ready:
                    if key.fileobj is listener:
                        selector.register(listener.accept()[0], selectors.EVENT_READ, bytearray())
                    else:
                        receive(engine, selector, key)
            engine.step()


def receive(engine: Engine, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """More bytes of a request; a GET is answered at once."""
    connection = key.fileobj
    assert isinstance(connection, socket.socket)
    piece = connection.recv(1 << 16)
    key.data.extend(piece)
    body = complete(bytes(key.data))
    if piece and body is None:
        return
    selector.unregister(connection)
    if body:
        engine.add(connection, body)
        return
    with connection:
        if piece:
            connection.sendall(HEAD.format("text/plain", "Content-Length: 0\r\n").encode())


if __name__ == "__main__":
    model, port, threads, sequences, properties = sys.argv[1:]
    serve(Engine(model, int(threads), int(sequences), json.loads(properties)), int(port))
