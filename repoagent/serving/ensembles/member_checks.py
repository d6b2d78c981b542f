"""Whether the members of an ensemble fit it and each other: names, data types, shapes, batch sizes. Triton's texts."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repoagent.config.model_config_pb2 import DataType
from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request_checker import dims_text

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["check_members"]


@dataclass(frozen=True, slots=True)
class _Node:
    """What one model says of a tensor."""

    model: str
    data_type: int
    dims: tuple[int, ...]
    full_dims: tuple[int, ...]

    @classmethod
    def of(cls, model: str, config: "ModelConfig", item: Any, *, reshape: bool = False) -> "_Node":
        dims = tuple(item.reshape.shape) if reshape and item.HasField("reshape") else tuple(item.dims)
        return cls(model, item.data_type, dims, ((-1, *dims) if config.max_batch_size > 0 else dims))

    def agrees(self, other: "_Node") -> bool:
        return _compatible(self.dims, other.dims) or _compatible(self.full_dims, other.full_dims)


def _compatible(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(-1 in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True))


def check_members(config: "ModelConfig", members: Sequence["ModelConfig"]) -> None:
    """Check the completed configuration of an ensemble against those of its steps' members, in the steps' order.

    Raises:
        InvalidArgumentError: the first thing that does not fit.
    """
    tensors = {item.name: _Node.of(config.name, config, item, reshape=True) for item in config.input}
    tensors |= {item.name: _Node.of(config.name, config, item, reshape=True) for item in config.output}
    for step, member in zip(config.ensemble_scheduling.step, members, strict=True):
        _check_batch_size(config, step.model_name, member)
        _check_step(config.name, step, member, tensors)


def _check_batch_size(config: "ModelConfig", model: str, member: "ModelConfig") -> None:
    if member.max_batch_size and member.max_batch_size < config.max_batch_size:
        raise InvalidArgumentError(
            f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model {model} "
            f"which only allows maximum batch size to be {member.max_batch_size}"
        )


def _check_step(ensemble: str, step: Any, member: "ModelConfig", tensors: dict[str, _Node]) -> None:
    faults = (
        *_name_faults(step.input_map, {item.name for item in member.input}, "is mapping to non-existing input"),
        *_unmapped_faults(step, member),
        *_name_faults(step.output_map, {item.name for item in member.output}, "is mapped from non-existing output"),
    )
    for fault in faults:
        raise InvalidArgumentError(f"in ensemble {ensemble}, {fault} in model {step.model_name}{_tail(fault)}")
    for items, mapping in ((member.input, step.input_map), (member.output, step.output_map)):
        for item in items:
            if item.name in mapping:
                _check_tensor(ensemble, mapping[item.name], _Node.of(step.model_name, member, item), tensors)


def _tail(fault: str) -> str:
    return " is not mapped to any ensemble tensors" if fault.startswith("input ") else ""


def _name_faults(mapping: Mapping[str, str], known: Collection[str], relation: str) -> Iterator[str]:
    for name, tensor in mapping.items():
        if name not in known:
            yield f"ensemble tensor {tensor} {relation} {name}"


def _unmapped_faults(step: Any, member: "ModelConfig") -> Iterator[str]:
    for item in member.input:
        if item.name not in step.input_map and not item.optional:
            yield f"input {item.name}"


def _check_tensor(ensemble: str, tensor: str, node: _Node, tensors: dict[str, _Node]) -> None:
    known = tensors.setdefault(tensor, node)
    place = f"in ensemble {ensemble}, ensemble tensor {tensor}: "
    if known.data_type != node.data_type:
        raise InvalidArgumentError(
            f"{place}inconsistent data type: {_type_name(known)} is inferred from model {known.model} while "
            f"{_type_name(node)} is inferred from model {node.model}"
        )
    if not known.agrees(node):
        raise InvalidArgumentError(
            f"{place}inconsistent shape: {dims_text(known.full_dims)} is inferred from model {known.model} while "
            f"{dims_text(node.full_dims)} is inferred from model {node.model}"
        )


def _type_name(node: _Node) -> str:
    return DataType.Name(node.data_type)
