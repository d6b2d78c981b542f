"""Keysets: what ``tinkey`` and Tink's libraries write, as JSON or binary, in clear or after a KMS has unwrapped it."""

import base64
import binascii
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from repoagent.api import read_json
from repoagent_decrypt.files.errors import KeyFormatError

STREAMING_KEY: Final = "type.googleapis.com/google.crypto.tink.AesGcmHkdfStreamingKey"
HASHES: Final = {1: "SHA1", 2: "SHA384", 3: "SHA256", 4: "SHA512", 5: "SHA224"}
"""``HashType`` of ``common.proto``."""

_Field = descriptor_pb2.FieldDescriptorProto
_NUMBER, _TEXT, _BYTES = _Field.TYPE_UINT32, _Field.TYPE_STRING, _Field.TYPE_BYTES
_PACKAGE: Final = "repoagent.decrypt.tink"
# Message -> field -> (number, type or message, whether it is repeated). Enumerations travel as numbers.
_MESSAGES: Final[dict[str, dict[str, tuple[int, Any, bool]]]] = {
    "KeyData": {"type_url": (1, _TEXT, False), "value": (2, _BYTES, False)},
    "Key": {"key_data": (1, "KeyData", False), "status": (2, _NUMBER, False), "key_id": (3, _NUMBER, False)},
    "Keyset": {"primary_key_id": (1, _NUMBER, False), "key": (2, "Key", True)},
    "Params": {"segment_size": (1, _NUMBER, False), "derived_size": (2, _NUMBER, False), "hash": (3, _NUMBER, False)},
    "StreamingKey": {"version": (1, _NUMBER, False), "params": (2, "Params", False), "key_value": (3, _BYTES, False)},
}


def keyset_message() -> Any:
    """A new ``Keyset``."""
    return _classes()[f"{_PACKAGE}.Keyset"]()


def streaming_key_message() -> Any:
    """A new ``AesGcmHkdfStreamingKey``."""
    return _classes()[f"{_PACKAGE}.StreamingKey"]()


@cache
def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="repoagent_tink.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            made = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                made.type, made.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                made.type = kind
    return message_factory.GetMessages([file], pool=descriptor_pool.DescriptorPool())


_ENABLED: Final = 1
_KEY_SIZES: Final = (16, 32)
_LARGEST_SEGMENT: Final = 16 << 20
"""Each thread holds two segments. Tink's own templates use 4 KiB and 1 MiB."""
_HASHES: Final = ("SHA1", "SHA256", "SHA512")
"""Those that Tink accepts for this key."""


@dataclass(frozen=True, slots=True)
class StreamingKey:
    """One key for streams.

    Attributes:
        key_id: Its number in the keyset.
        secret: What the key of each file is derived from.
        segment_size: Bytes of a segment in the file, its tag included.
        derived_size: Bytes of the derived AES key: 16 or 32.
        hash_name: The hash of HKDF.
    """

    key_id: int
    secret: bytes
    segment_size: int
    derived_size: int
    hash_name: str

    def __repr__(self) -> str:
        return f"StreamingKey({self.key_id})"


def parse_keyset(data: bytes, source: str) -> tuple[StreamingKey, ...]:
    """The enabled keys of a keyset in ``data``, the primary one first. ``source`` names it in messages.

    Raises:
        KeyFormatError: not a keyset, an encrypted one, or one without a key for AES-GCM-HKDF streams.
    """
    keyset = _read_json(data, source) if data.lstrip().startswith(b"{") else _read_binary(data, source)
    keys = [_streaming_key(key, source) for key in keyset.key if _is_usable(key)]
    if not keys:
        raise KeyFormatError(f"{source}: the keyset has no enabled key of type {STREAMING_KEY.rpartition('.')[2]}")
    return tuple(sorted(keys, key=lambda key: key.key_id != keyset.primary_key_id))


def _is_usable(key: Any) -> bool:
    return bool(key.status == _ENABLED and key.key_data.type_url == STREAMING_KEY)


def _read_binary(data: bytes, source: str) -> Any:
    keyset = keyset_message()
    try:
        keyset.ParseFromString(data)
    except DecodeError:
        raise KeyFormatError(f"{source} is not a Tink keyset") from None
    return keyset


def _read_json(data: bytes, source: str) -> Any:
    try:
        document = read_json(data)
        if "encryptedKeyset" in document:
            raise KeyFormatError(
                f"{source}: the keyset is encrypted; give the KMS with its 'encryptedKeyset' as ciphertext, such as "
                "awskms:?ciphertext=..."
            )
        keyset = keyset_message()
        keyset.primary_key_id = int(document["primaryKeyId"])
        for entry in document["key"]:
            _add_key(keyset, entry)
    except (ValueError, ArithmeticError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, KeyFormatError):
            raise
        raise KeyFormatError(f"{source} is not a Tink keyset in JSON ({type(error).__name__})") from None
    return keyset


def _add_key(keyset: Any, entry: dict[str, Any]) -> None:
    key = keyset.key.add()
    key.key_id = int(entry["keyId"])
    key.status = _ENABLED if entry["status"] == "ENABLED" else 0
    key.key_data.type_url = entry["keyData"]["typeUrl"]
    key.key_data.value = base64.b64decode(entry["keyData"]["value"], validate=True)


def _streaming_key(key: Any, source: str) -> StreamingKey:
    where = f"{source}, key {key.key_id}"
    message = streaming_key_message()
    try:
        message.ParseFromString(key.key_data.value)
    except (DecodeError, binascii.Error):
        raise KeyFormatError(f"{where}: not an AesGcmHkdfStreamingKey") from None
    found = StreamingKey(
        key_id=key.key_id,
        secret=bytes(message.key_value),
        segment_size=message.params.segment_size,
        derived_size=message.params.derived_size,
        hash_name=HASHES.get(message.params.hash, "unknown"),
    )
    _check(found, message.version, where)
    return found


def _check(key: StreamingKey, version: int, where: str) -> None:
    """The rules of Tink's ``AesGcmHkdfStreamingKeyManager``, and a limit of our own on the segment."""
    least = key.derived_size + 8 + 16
    if version != 0:
        raise KeyFormatError(f"{where}: version {version}, expected 0")
    if key.derived_size not in _KEY_SIZES or len(key.secret) < max(16, key.derived_size):
        raise KeyFormatError(f"{where}: derived keys of {key.derived_size} bytes, expected 16 or 32 and a longer key")
    if key.hash_name not in _HASHES:
        raise KeyFormatError(f"{where}: the hash is {key.hash_name}, expected {', '.join(_HASHES)}")
    if not least < key.segment_size <= _LARGEST_SEGMENT:
        raise KeyFormatError(f"{where}: segments of {key.segment_size} bytes, expected {least + 1} to 16 MiB")
