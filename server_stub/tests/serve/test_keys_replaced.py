"""Keys of an access file that several servers follow, replaced under load: a client that changes in time loses nothing,
and nobody gets in with the old key for longer than a second."""

import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import httpx
import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from .conftest import PATIENCE

if TYPE_CHECKING:
    from .conftest import Server, World

SECOND: Final = 1.0
TURN: Final = 0.05
"""What a request counts at most: what takes longer waits for a server or a client that the machine keeps waiting."""
ATTEMPTS: Final = 5
"""A machine with other work to do can delay the look at a file alone. It does not do so five times in a row."""

Ask = Callable[[str], bool]
"""Infer with a key; whether it was good."""


def _write(path: Path, *keys: str) -> None:
    digests = [f'"sha256:{hashlib.sha256(key.encode()).hexdigest()}"' for key in keys]
    rules = f'[clients.a]\nkeys = [{", ".join(digests)}]\nmodels = ["*"]\nrights = ["infer"]\n'
    beside = path.with_suffix(".new")
    beside.write_text(rules)
    beside.rename(path)


@contextmanager
def _over_http(server: "Server") -> Iterator[Ask]:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}

    def ask(key: str) -> bool:
        answer = http.post("/v2/models/plain/infer", json={"inputs": [tensor]}, headers={"x-api-key": key})
        assert answer.status_code in (200, 401), answer.text
        return answer.status_code == 200

    with httpx.Client(base_url=server.http.base_url, timeout=PATIENCE) as http:
        yield ask


def _tensor() -> Any:
    return triton.InferInput("X", [1, 4], "FP32").set_data_from_numpy(np.ones((1, 4), np.float32))


@contextmanager
def _over_grpc(server: "Server") -> Iterator[Ask]:
    def ask(key: str) -> bool:
        try:
            client.infer("plain", [_tensor()], headers={"authorization": f"Bearer {key}"})
        except InferenceServerException as error:
            if error.status() != "StatusCode.UNAUTHENTICATED":
                raise
            return False
        return True

    with triton.InferenceServerClient(f"127.0.0.1:{server.port('grpc')}") as client:
        yield ask


@contextmanager
def _over_an_open_stream(server: "Server") -> Iterator[Ask]:
    """One stream for all requests with the same key: its headers came long before the key went."""
    open_with = ""
    answers: SimpleQueue[Any] = SimpleQueue()

    def ask(key: str) -> bool:
        nonlocal open_with
        if key != open_with:
            client.stop_stream()
            client.start_stream(lambda result, error: answers.put(error), headers={"x-api-key": key})
            open_with = key
        client.async_stream_infer("plain", [_tensor()])
        error = answers.get(timeout=PATIENCE)
        assert error is None or "the key is not valid" in str(error)
        return error is None

    with triton.InferenceServerClient(f"127.0.0.1:{server.port('grpc')}") as client:
        yield ask


class _Client(threading.Thread):
    """Infers again and again with the key that is current, and once that is known with the next one."""

    def __init__(self, ask: Ask, first: str) -> None:
        super().__init__()
        self._ask = ask
        self.key = first
        self.over = threading.Event()
        self.used: SimpleQueue[str] = SimpleQueue()
        """The key of each request that was answered."""
        self.failures: list[Any] = []

    def run(self) -> None:
        try:
            while not self.over.is_set():
                if not self._ask(key := self.key):
                    self.failures.append(key)
                self.used.put(key)
        except Exception as error:
            self.failures.append(error)

    def until_used(self, key: str) -> None:
        """Return once a request with ``key`` has been answered: none with an earlier one is under way."""
        while self.used.get(timeout=PATIENCE) != key:
            pass


def _good_ones(ask: Ask, key: str) -> list[float]:
    """When each of the requests with ``key`` began that were let in, one after the other until one is refused."""
    good: list[float] = []
    began = time.monotonic()
    while ask(key):
        good.append(began)
        began = time.monotonic()
        assert began - good[0] < PATIENCE
    return good


def _working_seconds(good: list[float], since: float) -> float:
    """From ``since`` to the last of ``good``, as far as the machine let this process and the server work."""
    steps = itertools.pairwise([since, *(began for began in good if began > since)])
    return sum(min(after - before, TURN) for before, after in steps)


def _replace(path: Path, old: str, new: str, clients: list[_Client], probes: list[Ask]) -> float:
    """Put ``new`` in the place of ``old``; the seconds for which the latter was good afterwards."""
    _write(path, old, new)
    for probe in probes:
        _until_good(probe, new)
    for client in clients:
        client.key = new
    for client in clients:
        client.until_used(new)
    found: SimpleQueue[list[float]] = SimpleQueue()
    threads = [threading.Thread(target=lambda ask=ask: found.put(_good_ones(ask, old))) for ask in probes]
    for thread in threads:
        thread.start()
    _write(path, new)
    written = time.monotonic()
    seconds = max(_working_seconds(found.get(timeout=PATIENCE), written) for _ in threads)
    for thread in threads:
        thread.join()
    return seconds


def _until_good(ask: Ask, key: str) -> None:
    end = time.monotonic() + PATIENCE
    while not ask(key):
        assert time.monotonic() < end


def test_old_keys_are_refused_within_a_second_and_no_request_is_lost(world: "World") -> None:
    path = world.root / "access.toml"
    keys = [f"key-{number}" for number in range(ATTEMPTS + 1)]
    _write(path, keys[0])
    flags = (f"--access={path}", "--model-control-mode=explicit", "--load-model=plain", "--allow-grpc=true")
    servers = [server.wait_ready() for server in [world.start(*flags) for _ in range(2)]]
    ways = (_over_http, _over_grpc, _over_an_open_stream)
    with ExitStack() as stack:
        both = [[stack.enter_context(way(one)) for one in servers for way in ways] for _ in range(2)]
        clients, probes = [_Client(ask, keys[0]) for ask in both[0]], both[1]
        for client in clients:
            client.start()
            stack.callback(client.join)
            stack.callback(client.over.set)
        seconds: list[float] = []
        for old, new in itertools.pairwise(keys):
            seconds.append(_replace(path, old, new, clients, probes))
            if seconds[-1] <= SECOND:
                break
        assert min(seconds) <= SECOND, seconds
    assert [client.failures for client in clients] == [[] for _ in clients]
    assert [server.stop() for server in servers] == [0, 0]
