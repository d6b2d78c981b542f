"""What one connection receives, by itself."""

from repoagent_server.http.messages import Request, Response
from repoagent_server.http.reader import Limits, RequestReader
from repoagent_server.shared.reserve import WORTH_COUNTING, Reserve


class _Sink:
    """Keeps what is read."""

    alone = False

    def __init__(self) -> None:
        self.taken: list[Request] = []
        self.refused: list[Response] = []

    def take(self, request: Request, keep_alive: bool, http_1_0: bool) -> None:
        self.taken.append(request)

    def refuse(self, response: Response) -> None:
        self.refused.append(response)

    def refuses(self, request: Request, keep_alive: bool, http_1_0: bool) -> bool:
        return False

    def invite(self) -> None:
        pass


def test_the_last_piece_of_a_body_finds_no_room() -> None:
    reserve, sink = Reserve(4 * WORTH_COUNTING), _Sink()
    reader = RequestReader(sink, Limits(), reserve)
    left = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + _chunk(WORTH_COUNTING)
    while left:
        left = reader.feed(left)
    others = reserve.hold()
    assert others.resize(reserve.limit - reserve.held - 1024)
    assert reader.feed(_chunk(4096) + _chunk(0)) == b""  # it ends in one turn: nothing is counted before its end
    assert [response.status for response in sink.refused] == [503]
    assert sink.taken == []
    others.release()
    reader.drop()
    assert reserve.held == 0


def _chunk(size: int) -> bytes:
    return b"%x\r\n%s\r\n" % (size, bytes(size))
