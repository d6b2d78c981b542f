"""SIGKILL at a named point of a load; the next start on the same workspace removes what was left, and serves."""

import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Entry, Server, World

MARKER = b"PLANTED-PLAINTEXT"
IDENTITY = "AGE-SECRET-KEY-139KW3P6VNLEF6DE9KT3MS7E8A65V6URCHL2TX7T5NL26GMWUH6ES29D32G"
RECIPIENT = "age1g8684kcpvr2nnnkphx8vdypez33tfg7d3vt7w8mls3vjmt7x8y5qajskyc"

COPY = {"copy": "LOAD disk"}
SECRET = {"copy": "LOAD confidential"}

POINTS: dict[str, tuple[list["Entry"], bool]] = {
    "load-of-the-first": ([("agent", {"kill": "LOAD"}), ("agent", COPY)], False),
    "load-of-the-second": ([("agent", COPY), ("agent", {"kill": "LOAD"})], True),
    "load-of-the-third": ([("agent", COPY), ("agent", SECRET), ("agent", {"kill": "LOAD"})], True),
    "model-initialize": ([("agent", SECRET), ("agent", {"kill": "model_initialize"})], True),
    "load-complete": ([("agent", SECRET), ("agent", {"kill": "LOAD_COMPLETE"})], True),
    "load-fail": ([("agent", COPY), ("agent", {"raise": "LOAD", "kill": "LOAD_FAIL"})], True),
    "half-a-file-on-disk": ([("agent", {"plant": "LOAD disk"})], True),
    "half-a-file-in-memory": ([("agent", {"plant": "LOAD confidential"})], True),
    "decrypted": ([("decrypt", {"identity": "env:TEST_IDENTITY"}), ("agent", {"kill": "LOAD"})], True),
    "unload": ([("agent", COPY), ("agent", {"kill": "UNLOAD"})], True),
    "unload-with-nobody-reading-the-files": ([("agent", SECRET), ("agent", {"kill": "UNLOAD"})], False),
    "unload-complete": ([("agent", COPY), ("agent", {"kill": "UNLOAD_COMPLETE"})], True),
    "model-finalize": ([("agent", COPY), ("agent", {"kill": "model_finalize"})], True),
}
"""The chain, and whether plaintext lies there at its end. What is secret goes once the model serves."""


class Site:
    """The server that is running now; each test kills it and starts the next on the same workspace."""

    def __init__(self, world: "World") -> None:
        self.world = world
        world.agent("agent")
        self.server = self.start()

    def alive(self) -> "Server":
        """The server, anew if a test has left it dead."""
        if self.server.process.poll() is not None:
            self.server = self.start()
        return self.server

    def start(self) -> "Server":
        return self.world.serve("--load-model=plain", env={"TEST_IDENTITY": IDENTITY})


@pytest.fixture(scope="module")
def site(world: "World") -> Site:
    return Site(world)


def _plaintext(world: "World") -> list[Path]:
    """Every file of a workspace, of any process, that holds the marker."""
    files = [path for root in (world.work, world.memory) for path in root.rglob("*")]
    return [path for path in files if _holds_marker(path)]


def _holds_marker(path: Path) -> bool:
    try:
        return path.is_file() and MARKER in path.read_bytes()
    except FileNotFoundError:  # of another server, which is just removing it
        return False


def _load_and_unload(server: "Server", model: str) -> None:
    """As far as the server lives."""
    with suppress(httpx.TransportError):
        assert server.load(model).status_code == 200
        server.unload(model)


@pytest.mark.parametrize("point", POINTS)
def test_the_next_start_removes_what_was_left_and_serves(site: Site, point: str) -> None:
    world, killed = site.world, site.alive()
    chain, writes = POINTS[point]
    directory = world.model(point, chain)
    if point == "decrypted":
        pyrage = pytest.importorskip("pyrage")
        recipient = pyrage.x25519.Recipient.from_str(RECIPIENT)
        (directory / "planted.age").write_bytes(pyrage.encrypt(MARKER, [recipient]))
    _load_and_unload(killed, point)
    assert killed.ended() == -signal.SIGKILL
    own = f"{killed.process.pid}-"  # A number that may also be the end of another process's.
    left = [path for path in _plaintext(world) if any(part.startswith(own) for part in path.parts)]
    assert bool(left) is writes, left
    site.server = site.start()
    assert world.leftovers(killed) == []
    assert not [path for path in left if path.exists()]
    assert site.server.answer("plain") == [1, -2, 3, -4]
    before = len(world.calls(point))
    world.configure(point, [("agent", SECRET)])
    assert site.server.load(point).status_code == 200
    assert site.server.answer(point) == [1, -2, 3, -4]
    assert world.calls(point)[before:] == ["agent model_initialize", "agent LOAD", "agent LOAD_COMPLETE"]


def test_a_server_that_lives_keeps_its_files_when_another_starts_and_stops(site: Site) -> None:
    world, server = site.world, site.alive()
    world.model("kept", [("agent", COPY)])
    assert server.load("kept").status_code == 200
    assert world.leftovers(server)
    before = world.leftovers(server)
    assert site.start().stop() == 0
    assert world.leftovers(server) == before
    assert server.stop() == 0
    assert world.leftovers(server) == []
