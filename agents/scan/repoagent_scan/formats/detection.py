"""Which format a file has.

The content decides; a name decides only where the content cannot, as for Python source. What could be read in two
ways is the more dangerous one.
"""

import codecs
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.format import ACCEPTED, Format, MalformedError
from repoagent_scan.formats.npy import check_array, is_array
from repoagent_scan.formats.onnx import could_be_onnx, is_onnx
from repoagent_scan.formats.pickles import looks_like_pickle
from repoagent_scan.formats.safetensors import check_safetensors, is_safetensors
from repoagent_scan.formats.ubj import check_ubj, is_ubj
from repoagent_scan.formats.wire import BYTES, Fields
from repoagent_scan.formats.zipped import is_keras, skops_types

_PIECE: Final = 1 << 16
_MOST_READ: Final = 16 << 20
_MOST_OPENED: Final = 4 << 20
_MOST_MEMORY: Final = 64 << 20


class _Decompressor(Protocol):
    """Those of zlib and lzma."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def format_inside(data: Buffer, check_cancelled: Callable[[], None] = lambda: None) -> Format | None:
    """What ``data`` is to a program that decompresses it with zlib or LZMA; None if that fails.

    A program reads what it needs: what comes out before an error counts, and what does not end is not waited for.
    """
    head = data[:2]
    if len(head) < 2:
        return None
    found = None
    if head[0] & 0x0F == 8 and int.from_bytes(head, "big") % 31 == 0:
        found = _opened(zlib.decompressobj(), data, check_cancelled)
    # The format that knows no magic number: what it finds unlikely to be one, it refuses itself.
    return found or _opened(lzma.LZMADecompressor(lzma.FORMAT_AUTO, memlimit=_MOST_MEMORY), data, check_cancelled)


def _opened(decompressor: _Decompressor, data: Buffer, check_cancelled: Callable[[], None]) -> Format | None:
    opened = bytearray()
    for start in range(0, min(len(data), _MOST_READ), _PIECE):
        check_cancelled()
        try:
            opened += decompressor.decompress(data[start : start + _PIECE], _MOST_OPENED)
        except (zlib.error, lzma.LZMAError) as error:
            if "limit exceeded" in str(error):
                return Format.ARCHIVE
            return Format.PICKLE if looks_like_pickle(bytes(opened)) else None
        if decompressor.eof or len(opened) >= _MOST_OPENED:
            break
    if looks_like_pickle(bytes(opened)):
        return Format.PICKLE
    is_open = not decompressor.eof and len(data) <= _MOST_READ and len(opened) < _MOST_OPENED
    return None if is_open else Format.ARCHIVE


_BLOCK: Final = 512
_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_ZIP_END: Final = 66_000
"""The record at the end of a zip archive has at most 64 KiB of comment."""


def format_behind(data: Buffer) -> Format | None:
    """What ``data`` is to programs that do not look at its first bytes; None if it is nothing to them."""
    if data[:4] in {b"PK\3\4", b"PK\5\6"} or b"PK\5\6" in data[max(0, len(data) - _ZIP_END) :]:
        return _zip(data)
    if data[4:8] == b"ORTM":
        return Format.ORT
    if _is_tar(data[:_BLOCK]):
        return Format.ARCHIVE
    return Format.HDF5 if _is_hdf5(data) else None


def _zip(data: Buffer) -> Format:
    """PyTorch's files are archives with a pickle in them: their names show what they are."""
    tail = data[max(0, len(data) - (4 << 20)) :]
    if b".pkl" in tail:
        return Format.PICKLE
    if skops_types(data) is not None:
        return Format.SKOPS
    return Format.KERAS if is_keras(data) else Format.ARCHIVE


def _is_tar(block: bytes) -> bool:
    """A tar archive begins with the name of its first member. Old ones have a checksum and no mark."""
    if block[257:262] == b"ustar":
        return True
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _is_hdf5(data: Buffer) -> bool:
    """The signature lies at 0, 512, 1024, 2048, ...: anything may precede it."""
    offset = 0
    while offset < len(data):
        if data[offset : offset + len(_HDF5)] == _HDF5:
            return True
        offset = offset * 2 or _BLOCK
    return False


_PIECES, _TRAINER = 1, 2
_KNOWN: Final = frozenset({1, 2, 3, 4, 5})


def is_sentencepiece(data: Buffer) -> bool:
    """Whether ``data`` reads as a ``ModelProto`` of SentencePiece: pieces and how they were trained, nothing else."""
    seen = set()
    try:
        for number, kind, _, _ in Fields(data, most=2_000_000).of(0, len(data)):
            if number not in _KNOWN or kind != BYTES:
                return False
            seen.add(number)
    except MalformedError:
        return False
    return {_PIECES, _TRAINER} <= seen


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
    (b"CBM1", Format.CATBOOST),
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
    if is_ubj(data):
        check_ubj(data)
        return Format.XGBOOST
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
