"""Questions that the JSON reader, the JSON writer and the redaction ask about fields of the schema.

They also give protobuf's loosely typed descriptors one type each.
"""

from collections.abc import Sequence
from typing import cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from repoagent.config.model_config_pb2 import ModelRepositoryAgents

_AGENT_PARAMETER = ModelRepositoryAgents.Agent.Parameter.DESCRIPTOR.full_name


def descriptor_of(message: Message) -> Descriptor:
    """What describes the type of ``message``."""
    return cast(Descriptor, message.DESCRIPTOR)


def fields_of(message: Message) -> Sequence[FieldDescriptor]:
    """The fields of the type of ``message``, in the order of the schema."""
    return descriptor_of(message).fields


def enum_of(field: FieldDescriptor) -> EnumDescriptor:
    """The enum of a field of enum type."""
    return cast(EnumDescriptor, field.enum_type)


def is_map(field: FieldDescriptor) -> bool:
    """Whether ``field`` is declared as a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def map_fields(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """Key and value of a field that is a map."""
    entry = cast(Descriptor, field.message_type)
    return entry.fields_by_name["key"], entry.fields_by_name["value"]


def is_agent_parameters(field: FieldDescriptor) -> bool:
    """Whether ``field`` holds the parameters of an agent: repeated entries here, a map in Triton's JSON."""
    return field.message_type is not None and field.message_type.full_name == _AGENT_PARAMETER
