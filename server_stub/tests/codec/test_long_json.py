"""Long documents, read in windows: the same values as in one go, and no more than a frame may have."""

import json
import random
from typing import Any, Final

import pytest
from repoagent_server.codec import long_json
from repoagent_server.codec.json_data import Values
from repoagent_server.codec.json_text import JsonObject, loads
from repoagent_server.codec.long_json import Frame, read_long

from repoagent.errors import CancelledError, InternalError, InvalidArgumentError
from tests.extent import in_full

_FRAME: Final = Frame(1000, 100)
_CHARACTERS: Final = 'ab"\\,[]{}:é😀\n\0 x'


class _Documents:
    """Random ones, always the same."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    def text(self) -> str:
        return "".join(self._random.choice(_CHARACTERS) for _ in range(self._random.choice([0, 1, 5, 40])))

    def array(self, depth: int = 0) -> list[Any]:
        count = self._random.choice([0, 1, 3, 20])
        nested = depth < 4 and self._random.random() < 0.3
        return [self.array(depth + 1) if nested else self.scalar() for _ in range(count)]

    def scalar(self) -> Any:
        return self._random.choice([1, -2.5, True, None, self.text(), self.text(), 10**12])

    def object(self, depth: int = 0) -> dict[str, Any]:
        return {self.text(): self.value(depth + 1) for _ in range(self._random.choice([0, 1, 4]))}

    def value(self, depth: int) -> Any:
        kind = self._random.choice(["object", "array", "objects", "scalar"] if depth < 4 else ["array", "scalar"])
        if kind == "objects":
            return [self.object(depth + 1) for _ in range(2)]
        return self.object(depth) if kind == "object" else self.array() if kind == "array" else self.scalar()

    def broken(self, text: bytes) -> bytes:
        """``text`` with one byte changed or missing."""
        position = self._random.randrange(len(text))
        other = self._random.choice([b"", b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"1", b" "])
        return text[:position] + other + text[position + 1 :]


def _flat(value: list[Any]) -> list[Any]:
    return [leaf for item in value for leaf in (_flat(item) if isinstance(item, list) else [item])]


def _same(read: Any, written: Any) -> bool:
    if isinstance(read, Values):
        return [value for piece in read.taken() for value in piece] == _flat(written)
    if isinstance(written, dict):
        return read.keys() == written.keys() and all(_same(read[name], written[name]) for name in written)
    if isinstance(written, list):
        return len(read) == len(written) and all(map(_same, read, written))
    return bool(read == written)


@pytest.mark.slow
@pytest.mark.parametrize("window", [70, 200, 1 << 18])
def test_windows_change_no_value_and_let_nothing_through(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_json, "_WINDOW", window)
    documents = _Documents()
    for _ in range(in_full(500, otherwise=60)):
        document = documents.object()
        text = json.dumps(document, ensure_ascii=False).encode()
        assert _same(read_long(text, _FRAME), document)
        broken = documents.broken(text)
        try:
            read: Any = read_long(broken, _FRAME)
        except (InternalError, InvalidArgumentError):
            continue
        assert _same(read, loads(broken))


@pytest.mark.parametrize(
    "text", ["x" * 1000, "é" * 600, "😀" * 300, '\\n"\\' * 300, "\\ud83d\\ude00" * 100, "\0" * 300]
)
def test_a_long_text_comes_in_one_piece(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_json, "_WINDOW", 64)
    for ascii_only in (True, False):
        for document in ({"a": text}, {text: 1}, {"a": [1, text, 2] * 3}, {"a": [[text]]}):
            assert _same(read_long(json.dumps(document, ensure_ascii=ascii_only).encode(), _FRAME), document)


def test_blanks_between_values_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are longer than a window: such an array was refused as not valid."""
    monkeypatch.setattr(long_json, "_WINDOW", 64)
    documents, chosen = _Documents(), random.Random(2)

    def spaced(value: Any) -> str:
        text = f"[{','.join(map(spaced, value))}]" if isinstance(value, list) else json.dumps(value)
        before, behind = (" \n" * chosen.choice([0, 1, 70]) for _ in range(2))
        return before + text + behind

    for _ in range(in_full(2000, otherwise=300)):
        value = documents.array()
        text = b'{"a":%b}' % spaced(value).encode()
        assert _same(read_long(text, _FRAME), {"a": value}), text
        broken = documents.broken(text)
        try:
            read: Any = read_long(broken, _FRAME)
        except (InternalError, InvalidArgumentError):
            continue
        assert _same(read, loads(broken)), broken


def test_an_error_says_where_in_the_whole_document_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_json, "_WINDOW", 64)
    text = b'{"a": [' + b"1, " * 100 + b"x]}"
    with pytest.raises(InternalError, match=rf"Invalid value. at {text.index(b'x')}$"):
        read_long(text, _FRAME)


@pytest.mark.parametrize(
    "text", [b'{"a":[1,]}', b'{"a":[,1]}', b'{"a":[1,,2]}', b'{"a":[1', b'{"a":"x', b'{"a"', b'{"a":1}}']
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(InternalError):
        read_long(text, _FRAME)


def test_more_members_or_levels_than_allowed_are_refused() -> None:
    for text in (b"[%b]" % b",".join([b"{}"] * 1001), json.dumps(dict.fromkeys(map(str, range(1001)))).encode()):
        with pytest.raises(InvalidArgumentError, match="more than 1000 members"):
            read_long(text, _FRAME)
    for deep in (b"[" * 101 + b"]" * 101, b'{"a":' * 101 + b"1" + b"}" * 101, b"[" * 1_000_000):
        with pytest.raises(InvalidArgumentError, match="nesting depth"):
            read_long(deep, _FRAME)


@pytest.mark.parametrize("text", [b'{"a":[%b]}', b'{"a":[[%b]]}', b'{"a":[[1],%b]}'])
def test_more_texts_than_allowed_are_refused(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_json, "_WINDOW", 64)
    frame = Frame(1000, 100, texts=50)
    read_long(text % b",".join([b'"\\""'] * 50), frame)
    with pytest.raises(InvalidArgumentError, match=r"more than 50 elements of BYTES.*--limit-request-texts"):
        read_long(text % b",".join([b'"\\""'] * 51), frame)


def test_a_longer_text_than_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_json, "_WINDOW", 64)
    frame = Frame(1000, 100, text_bytes=1000)
    for text in (b'{"a":"%b"}', b'{"a":["%b"]}', b'{"%b":1}'):
        read_long(text % (b"x" * 1000), frame)
        with pytest.raises(InvalidArgumentError, match=r"longer than 1000 bytes.*--limit-json-text-bytes"):
            read_long(text % (b"x" * 1001), frame)


def test_others_have_a_turn_between_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_json, "_WINDOW", 64)
    turns: list[None] = []
    assert read_long(b"[1]" + b" " * 640, _FRAME, look=lambda: turns.append(None)) == [1]
    assert len(turns) >= 9
    with pytest.raises(InternalError, match="ends too early"):
        read_long(b" " * 640, _FRAME)


def test_values_that_nobody_took_are_let_go_of_one_piece_at_a_time() -> None:
    order: list[int] = []

    class Noted(list[Any]):
        def __init__(self, number: int) -> None:
            self.number = number

        def __del__(self) -> None:
            order.append(self.number)

    values = Values([Noted(number) for number in range(3)])
    pieces = values.pieces
    del values
    assert order == [2, 1, 0]
    assert not pieces


def test_reading_ends_when_nobody_waits_for_it() -> None:
    def gone() -> None:
        raise CancelledError("gone")

    with pytest.raises(CancelledError):
        read_long(b"[1,2]", _FRAME, look=gone)


def test_ordered_objects_keep_members_that_share_a_name() -> None:
    assert read_long(b'{"b":1,"a":[{"b":2}],"b":3}', _FRAME, ordered=True) == JsonObject(
        [("b", 1), ("a", [JsonObject([("b", 2)])]), ("b", 3)]
    )
