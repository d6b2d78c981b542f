"""Which format a file has.

The content decides; a name decides only where the content cannot, as for Python source. What could be read in two
ways is the more dangerous one.
"""

import codecs
from collections.abc import Callable, Iterator
from typing import Final

from repoagent_scan.formats.compressed import format_inside
from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.errors import MalformedError
from repoagent_scan.formats.format import ACCEPTED, Format
from repoagent_scan.formats.npy import check_array, is_array
from repoagent_scan.formats.onnx import could_be_onnx, is_onnx
from repoagent_scan.formats.pickles import looks_like_pickle
from repoagent_scan.formats.polyglots import format_behind
from repoagent_scan.formats.safetensors import check_safetensors, is_safetensors
from repoagent_scan.formats.sentencepiece import is_sentencepiece

__all__ = ["detect"]

_MAGIC: Final = (
    (b"\x7fELF", Format.NATIVE),
    (b"MZ", Format.NATIVE),
    (b"\xfe\xed\xfa\xce", Format.NATIVE),
    (b"\xfe\xed\xfa\xcf", Format.NATIVE),
    (b"\xce\xfa\xed\xfe", Format.NATIVE),
    (b"\xcf\xfa\xed\xfe", Format.NATIVE),
    (b"\xca\xfe\xba\xbe", Format.NATIVE),
    (b"\0asm", Format.NATIVE),
    (b"\x1f\x8b", Format.ARCHIVE),
    (b"BZh", Format.ARCHIVE),
    (b"\xfd7zXZ\0", Format.ARCHIVE),
    (b"\x28\xb5\x2f\xfd", Format.ARCHIVE),
    (b"\x04\x22\x4d\x18", Format.ARCHIVE),
    (b"\x02\x21\x4c\x18", Format.ARCHIVE),
    (b"ZF0x", Format.ARCHIVE),
    (b"7z\xbc\xaf\x27\x1c", Format.ARCHIVE),
    (b"GGUF", Format.GGUF),
    (b"ftrt", Format.PLAN),
    (b"vtrt", Format.PLAN),
)
_HEAD: Final = 4096
_PYTHON: Final = (".py", ".pyi", ".pyw", ".pyx", ".pth")
"""``.pth``: also the name of PyTorch's pickles, which the content shows first."""
_COMPILED: Final = (".pyc", ".pyo")
_CHUNK: Final = 1 << 20


def detect(name: str, data: Buffer, *, check_cancelled: Callable[[], None] = lambda: None) -> Format:
    """The format of the file ``name`` with the content ``data``. ``check_cancelled`` raises to end long work.

    Raises:
        MalformedError: it begins as a file of one format and goes on as none.
    """
    if name.lower().endswith(_COMPILED):
        return Format.PYTHON
    format_ = format_behind(data) or _format_by_start(data, check_cancelled)
    if format_ in _CHECKED:
        format_ = _format_besides(format_, data, check_cancelled)
    # Python source may begin with any word, such as that of another format.
    return Format.PYTHON if format_ in ACCEPTED and name.lower().endswith(_PYTHON) else format_


_CHECKED: Final = ACCEPTED | {Format.UNKNOWN}
"""What may be accepted: an unknown file may be the external data of an ONNX model."""


def _format_besides(format_: Format, data: Buffer, check_cancelled: Callable[[], None]) -> Format:
    """What ``data`` is besides ``format_`` to a program that expects code, or ``format_``."""
    if looks_like_pickle(data, check_cancelled):
        return Format.PICKLE
    if format_ is not Format.ONNX and could_be_onnx(data, check_cancelled=check_cancelled):
        raise MalformedError(f"it can be read as {format_}, and as an ONNX model with parts that ONNX does not have")
    return format_inside(data, check_cancelled) or format_


def _format_by_start(data: Buffer, check_cancelled: Callable[[], None]) -> Format:
    head = data[:_HEAD]
    for magic, format_ in _MAGIC:
        if head.startswith(magic):
            return format_
    if is_array(data):
        return Format.NUMPY if check_array(data) else Format.PICKLE
    if is_safetensors(data) and not looks_like_pickle(data, check_cancelled):
        check_safetensors(data)
        return Format.SAFETENSORS
    if is_onnx(data):
        return Format.ONNX
    if _is_text(data, check_cancelled):
        return _script(head) or Format.TEXT
    return Format.SENTENCEPIECE if is_sentencepiece(data) else Format.UNKNOWN


def _is_text(data: Buffer, check_cancelled: Callable[[], None]) -> bool:
    """Whether all of ``data`` is UTF-8 without control characters, but for those that end lines and tabs."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for part in _chunks(data):
            check_cancelled()
            decoder.decode(part)
            if part.translate(None, _PRINTABLE):
                return False
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


_PRINTABLE: Final = bytes(byte for byte in range(256) if byte >= 32 or byte in b"\t\n\r\f\x1b")


def _chunks(data: Buffer) -> Iterator[bytes]:
    for start in range(0, len(data), _CHUNK):
        yield data[start : start + _CHUNK]


def _script(head: bytes) -> Format | None:
    """What a text is that names the program which runs it; None for another text."""
    first = head.split(b"\n", 1)[0]
    if not first.startswith(b"#!") or not first[2:].lstrip().startswith(b"/"):
        return None
    return Format.PYTHON if b"python" in first else Format.NATIVE
