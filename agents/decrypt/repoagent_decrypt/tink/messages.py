"""The messages of a keyset, declared as Tink's ``.proto`` files do, without generated code."""

from functools import cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["HASHES", "STREAMING_KEY", "keyset_message", "streaming_key_message"]

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
