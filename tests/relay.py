"""A TCP relay in front of a server, which a test can make stall as a network or a store does."""

import socket
import threading
from urllib.parse import urlsplit


class Relay:
    """Passes on what comes in. While it is stalled it takes connections and passes on nothing."""

    def __init__(self, target: str) -> None:
        url = urlsplit(target)
        self._target = (url.hostname, url.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._flowing = threading.Event()
        self._flowing.set()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        self.held = threading.Semaphore(0)
        """Released for every piece of data that is held back."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        """The URL that clients use."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def stall(self) -> None:
        """Answer nobody from now on."""
        self._flowing.clear()

    def resume(self) -> None:
        """Go on, with what was held back too."""
        self._flowing.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.resume()
        with self._lock:
            self._closed = True
            for one in self._open:
                one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(client)
                if self._closed:
                    client.close()
                    return
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                self._open.add(server)
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                if not self._flowing.is_set():
                    self.held.release()
                    self._flowing.wait()
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()
