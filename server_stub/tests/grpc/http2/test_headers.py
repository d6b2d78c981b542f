"""Blocks of headers against hpack's encoder and decoder; heads against RFC 9113 and gRPC's specification."""

import random
import time

import pytest
from hpack import Decoder, Encoder
from repoagent_server.grpc.http2.frames import ConnectionFault
from repoagent_server.grpc.http2.head import RequestHead, bad_trailers, literal
from repoagent_server.grpc.http2.headers import HeaderReader, status_fields

Fields = list[tuple[bytes, bytes]]
GOOD: Fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/m"), (b"te", b"trailers")]


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 256, 10_000])
def test_literals_are_what_a_decoder_reads(length: int) -> None:
    value = b"v" * length
    assert list(Decoder().decode(literal(b"name", value), raw=True)) == [(b"name", value)]


def test_a_status_is_escaped_as_grpc_wants_it() -> None:
    fields = dict(Decoder().decode(status_fields(13, "ü\r\nx: y\0"), raw=True))
    assert fields == {b"grpc-status": b"13", b"grpc-message": b"%C3%BC%0D%0Ax: y%00"}
    assert dict(Decoder().decode(status_fields(0, ""), raw=True)) == {b"grpc-status": b"0"}


def test_remembered_blocks_mean_what_the_decoder_would_read() -> None:
    """Blocks of an encoder that uses its table, each through our reader and through a decoder without memory."""
    chance = random.Random(5)
    encoder, reader, plain = Encoder(), HeaderReader(), Decoder()
    hits = 0
    for number in range(2000):
        fields = [*GOOD, (b"a", b"%d" % chance.randrange(3)), (b"sensitive", b"%d" % chance.randrange(4))]
        if chance.random() < 0.05:
            fields.append((b"n%d" % chance.randrange(500), b"x" * chance.randrange(300)))
        if chance.random() < 0.02:
            encoder.header_table_size = chance.choice((0, 100, 4096))
        block = encoder.encode(fields)
        hits += block in reader.known
        assert list(reader.read(block).fields) == list(plain.decode(block, raw=True)), number
    assert hits > 200


@pytest.mark.parametrize("size", [0, 40])
def test_blocks_of_a_client_without_a_table_are_remembered_although_they_add_to_it(size: int) -> None:
    encoder, reader, plain = Encoder(), HeaderReader(), Decoder()
    encoder.header_table_size = size
    for block in (encoder.encode(GOOD), encoder.encode(GOOD)):  # the first one brings the table's size
        assert list(reader.read(block).fields) == list(plain.decode(block, raw=True))
    assert block[0] & 0xE0 != 0x20
    assert block in reader.known


@pytest.mark.parametrize(
    "block",
    [b"\x80", b"\xff" * 10, b"\x40\x7f", b"\xbe", b"\x00\x05ab", b"\x3f\xff\xff\x7f", b"\x20\x20\x20\x82", b"\x82\x20"],
    ids=["index 0", "long number", "no name", "empty table", "cut", "table too large", "three updates", "late update"],
)
def test_what_is_no_block_ends_the_connection(block: bytes) -> None:
    with pytest.raises(ConnectionFault) as raised:
        HeaderReader().read(block)
    assert raised.value.code == 9
    assert str(raised.value) in ("headers cannot be decoded", "too many updates of the table's size")


def test_a_block_that_means_much_more_than_it_holds_is_refused() -> None:
    entry = b"\x40\x01a\x7f" + bytes((0x80 | (3000 - 127) & 127, (3000 - 127) >> 7)) + b"v" * 3000
    with pytest.raises(ConnectionFault):
        HeaderReader().read(entry + b"\xbe" * 15000)


def test_thousands_of_updates_of_the_table_cost_nothing() -> None:
    before = time.thread_time()
    for _ in range(100):
        with pytest.raises(ConnectionFault):
            HeaderReader().read(b"\x20" * 32768)
    assert time.thread_time() - before < 1  # the decoder itself takes 6 s


@pytest.mark.parametrize(
    "fields",
    [
        GOOD[1:],
        GOOD[:1] + GOOD[2:],
        GOOD[:2],
        [*GOOD, (b":path", b"/x")],
        [*GOOD, (b":authority", b"late")],
        [(b":status", b"200"), *GOOD],
        [*GOOD[:2], (b":path", b"")],
        [*GOOD, (b"Upper", b"x")],
        [*GOOD, (b"", b"x")],
        [*GOOD, (b"a b", b"x")],
        [*GOOD, (b"a:b", b"x")],
        [*GOOD, (b"a\xff", b"x")],
        [*GOOD, (b"a", b"x\r\ny")],
        [*GOOD, (b"a", b"x\0y")],
        [*GOOD[:2], (b":path", b" /x")],
        [*GOOD, (b"connection", b"close")],
        [*GOOD, (b"transfer-encoding", b"chunked")],
        [*GOOD, (b"upgrade", b"h2c")],
        [*GOOD[:3], (b"te", b"gzip")],
    ],
)
def test_malformed_heads_are_known(fields: Fields) -> None:
    assert RequestHead(fields).malformed


def test_a_good_head() -> None:
    head = RequestHead([*GOOD, (b"content-type", b"application/grpc+proto"), (b"grpc-timeout", b"250m")])
    assert not head.malformed
    assert (head.path, head.method, head.is_grpc, head.timeout, head.length) == (b"/s/m", b"POST", True, 0.25, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"3S", 3),
        (b"4m", 0.004),
        (b"5u", 5e-6),
        (b"6n", 6e-9),
        (b"99999999H", 359999996400),
    ],
)
def test_timeouts(text: bytes, seconds: float) -> None:
    head = RequestHead([*GOOD, (b"grpc-timeout", text)])
    assert head.timeout == pytest.approx(seconds)
    assert not head.timeout_is_bad


@pytest.mark.parametrize("text", [b"", b"1", b"S", b"-1S", b"999999999S", b"1s", b"1.5S", b"\xd9\xa1S"])
def test_bad_timeouts(text: bytes) -> None:
    assert RequestHead([*GOOD, (b"grpc-timeout", text)]).timeout_is_bad


@pytest.mark.parametrize(
    ("kind", "is_grpc"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"application/grpc;x", True),
        (b"application/grpc-web", False),
        (b"application/json", False),
        (b"", False),
    ],
)
def test_content_types(kind: bytes, is_grpc: bool) -> None:
    assert RequestHead([*GOOD, (b"content-type", kind)]).is_grpc is is_grpc


def test_metadata_are_those_of_the_call_and_binary_ones_are_decoded() -> None:
    own = [(b"content-type", b"application/grpc"), (b"grpc-timeout", b"1S"), (b"grpc-accept-encoding", b"gzip")]
    sent = [(b"user-agent", b"x"), (b"k", b"a\xc3\xbc"), (b"d-bin", b"AQI"), (b"e-bin", b"AQI="), (b"f-bin", b"!")]
    assert RequestHead([*GOOD, *own, *sent]).metadata() == [
        ("user-agent", "x"),
        ("k", "aü"),
        ("d-bin", b"\x01\x02"),
        ("e-bin", b"\x01\x02"),
        ("f-bin", b"!"),
    ]


@pytest.mark.parametrize("length", [b"", b"-1", b"x", b"1" * 19, b"1 1"])
def test_a_content_length_that_is_no_number_fits_no_body(length: bytes) -> None:
    assert RequestHead([*GOOD, (b"content-length", length)]).length == -1


def test_trailers_have_no_pseudo_headers() -> None:
    assert bad_trailers([(b":path", b"/")])
    assert bad_trailers([(b"A", b"")])
    assert not bad_trailers([(b"a", b"b")])


def test_blanks_around_a_value_are_no_part_of_it() -> None:
    """F14: gRPC's specification has them stripped; other fields of HTTP/2 must not have any."""
    head = RequestHead([*GOOD, (b"x", b" a b\t ")])
    assert not head.malformed
    assert head.metadata() == [("x", "a b")]
    assert not bad_trailers([(b"x", b" a ")])
