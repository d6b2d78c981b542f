"""Listening sockets: what becomes of connections that begin while one of two sockets on a port is given up."""

import asyncio
import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from repoagent_server.http.listener import bound, ignore_new, queued, stop_accepting

MANY = 40


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _listening(stack: ExitStack, port: int) -> socket.socket:
    listener = stack.enter_context(bound("127.0.0.1", port, reuse_port=True))
    listener.listen(2 * MANY)
    listener.setblocking(False)
    return listener


def _connecting(stack: ExitStack, port: int) -> list[socket.socket]:
    """So many connections, each of which has sent its first segment."""
    clients = [stack.enter_context(socket.socket()) for _ in range(MANY)]
    for client in clients:
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", port))
    return clients


def _accepted(listener: socket.socket, stack: ExitStack) -> Iterator[socket.socket]:
    """Connections as they come; a minute without one is an error."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while selector.select(60):
            for connection in queued(listener):
                yield stack.enter_context(connection)
        pytest.fail("no connection came")


@pytest.mark.slow
def test_what_begins_when_a_socket_is_given_up_goes_to_the_other_one(stack: ExitStack) -> None:
    leaving = _listening(stack, 0)
    port = leaving.getsockname()[1]
    staying = _listening(stack, port)
    before = _connecting(stack, port)
    assert ignore_new(leaving)
    after = _connecting(stack, port)
    taken = [stack.enter_context(connection) for connection in queued(leaving)]
    assert 0 < len(taken) <= MANY  # of those from before, those that the kernel dealt to it
    leaving.close()
    arriving = _accepted(staying, stack)
    peers = {connection.getpeername() for connection in taken}
    while len(peers) < 2 * MANY:
        peers.add(next(arriving).getpeername())
    assert peers == {client.getsockname() for client in before + after}


def test_a_socket_of_which_the_kernel_takes_no_filter_is_left_as_it_is(stack: ExitStack) -> None:
    listener = _listening(stack, 0)
    port = listener.getsockname()[1]
    listener.close()
    assert not ignore_new(listener)
    again = _listening(stack, port)
    clients = _connecting(stack, port)
    arriving = _accepted(again, stack)
    assert {next(arriving).getpeername() for _ in clients} == {client.getsockname() for client in clients}


def test_a_listener_is_closed_before_what_it_has_accepted_is_taken_over(stack: ExitStack) -> None:
    """A client that came between the two would be reset."""
    listener = _listening(stack, 0)
    _connecting(stack, listener.getsockname()[1])
    closed: list[bool] = []

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            closed.append(listener.fileno() < 0)
            transport.close()

    async def give_up() -> None:
        server = await asyncio.get_running_loop().create_server(Protocol, "127.0.0.1", 0)
        await stop_accepting(listener, server, Protocol, shared=False)
        await asyncio.sleep(0)  # transports close in the next turn

    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        assert selector.select(60)
    asyncio.run(give_up())
    assert closed
    assert all(closed)
