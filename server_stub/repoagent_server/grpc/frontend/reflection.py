"""What server reflection shows: the service under its public name, from a descriptor pool of its own."""

from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from repoagent.config import model_config_pb2
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.service import METHODS, SERVICE

__all__ = ["public_pool"]

_PACKAGE, _, _SERVICE_NAME = SERVICE.rpartition(".")


def public_pool() -> DescriptorPool:
    """The messages renamed into package ``inference``, as clients know them, with the service that uses them.

    It is kept apart from the default pool, where a client library of this process may have registered its own.
    """
    pool = DescriptorPool()
    config, messages = FileDescriptorProto(), FileDescriptorProto()
    model_config_pb2.DESCRIPTOR.CopyToProto(config)
    pb.DESCRIPTOR.CopyToProto(messages)
    for file, name in ((config, "model_config.proto"), (messages, "grpc_service.proto")):
        file.name = name
    del messages.dependency[:]
    messages.dependency.append(config.name)
    service = messages.service.add(name=_SERVICE_NAME)
    package = messages.package
    for method, (request, response) in METHODS.items():
        service.method.add(
            name=method,
            input_type=f".{request.DESCRIPTOR.full_name}",
            output_type=f".{response.DESCRIPTOR.full_name}",
        )
    service.method.add(
        name="ModelStreamInfer",
        input_type=f".{package}.ModelInferRequest",
        output_type=f".{package}.ModelStreamInferResponse",
        client_streaming=True,
        server_streaming=True,
    )
    for file in (config, messages):
        pool.AddSerializedFile(_renamed(file, (package, model_config_pb2.DESCRIPTOR.package)))
    return pool


def _renamed(file: FileDescriptorProto, packages: tuple[str, ...]) -> bytes:
    """The file with its package, and every reference into one of ``packages``, moved to the public package."""
    file.package = _PACKAGE
    references = [
        *(field for message in _messages(file) for field in message.field),
        *(method for service in file.service for method in service.method),
    ]
    for reference in references:
        for attribute in ("type_name", "input_type", "output_type"):
            for package in packages:
                value = getattr(reference, attribute, "")
                if value.startswith(f".{package}."):
                    setattr(reference, attribute, f".{_PACKAGE}.{value[len(package) + 2 :]}")
    return file.SerializeToString()


def _messages(file: FileDescriptorProto) -> Iterator[DescriptorProto]:
    stack = list(file.message_type)
    while stack:
        message = stack.pop()
        yield message
        stack.extend(message.nested_type)
