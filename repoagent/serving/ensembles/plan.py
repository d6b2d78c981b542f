"""An ensemble's steps: which waits for which tensors, how many answers there can be, and which models it depends on."""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import ModelId
from repoagent.serving.requests.tensor import Reshaper, Tensor, shapes_agree

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.config.model_config_pb2 import ModelEnsembling

    EnsembleStep = ModelEnsembling.Step


class Dependencies:
    """The members of ensembles that are loaded (asked of ``members_of``) and of those that are being loaded.

    Every ensemble is declared before it is loaded, so only those need be asked for: there may be thousands of models
    that are none.
    """

    def __init__(self, members_of: Callable[[str], frozenset[str]]) -> None:
        self._members_of = members_of
        self._ensembles: set[str] = set()
        self._lock = threading.Lock()
        self._pending: dict[str, frozenset[str]] = {}
        self._orphans: dict[str, tuple[frozenset[str], bool]] = {}

    def declare(self, ensemble: str, members: frozenset[str]) -> None:
        """Note that ``ensemble`` is about to be loaded with ``members``, until :meth:`forget`.

        Two ensembles that need each other are found here by the one that comes second: neither waits for the other.

        Raises:
            InvalidArgumentError: one of the members needs ``ensemble``, directly or through others.
        """
        with self._lock:
            self._ensembles.add(ensemble)
            edges = {**self._loaded(), **self._pending, ensemble: members}
            last = _path_back(edges, ensemble)
            if last is not None:
                raise InvalidArgumentError(
                    f"circular dependency between ensembles: {ensemble} -> ... -> {last} -> {ensemble}"
                )
            self._pending[ensemble] = members

    @property
    def any(self) -> bool:
        """Whether there ever was an ensemble: where there was none, no model has users."""
        return bool(self._ensembles)

    def loaded(self) -> dict[str, frozenset[str]]:
        """The models that each loaded ensemble calls."""
        with self._lock:
            return self._loaded()

    def _loaded(self) -> dict[str, frozenset[str]]:
        return {name: members for name in self._ensembles if (members := self._members_of(name))}

    def forget(self, ensemble: str) -> None:
        """The load that was declared has ended, well or not."""
        with self._lock:
            self._pending.pop(ensemble, None)

    def orphan(self, ensemble: str, members: frozenset[str], *, explicit: bool) -> None:
        """Note that ``ensemble`` had to go because of its members, and that it is to come back with them.

        ``explicit``: it was asked for by name.
        """
        with self._lock:
            self._orphans[ensemble] = (members, explicit)

    def adopt(self, ensemble: str) -> None:
        """It is there again, or it is not wanted any more."""
        with self._lock:
            self._orphans.pop(ensemble, None)

    def orphans_of(self, model: str) -> dict[str, tuple[frozenset[str], bool]]:
        """The ensembles that are to come back with ``model``, or a namesake of it that they had: their members, and
        whether they were asked for."""
        with self._lock:
            return {name: orphan for name, orphan in self._orphans.items() if _has_namesake(orphan[0], model)}

    def users_of_namesakes(self, model: str) -> list[str]:
        """The loaded ensembles that call ``model`` directly, or one of its name in another repository."""
        with self._lock:
            return sorted(name for name, members in self._loaded().items() if _has_namesake(members, model))

    def users(self, model: str, *, pending: bool = True) -> list[str]:
        """The ensembles that call ``model`` directly; also those that are being loaded if ``pending``."""
        with self._lock:
            edges = [self._loaded(), *([self._pending] if pending else [])]
        return sorted({name for some in edges for name, members in some.items() if model in members})

    def members(self, ensemble: str) -> frozenset[str]:
        """The models that a loaded ensemble calls; none if it is no ensemble."""
        return self._members_of(ensemble)

    def all_users(self, model: str) -> list[str]:
        """The loaded ensembles that need ``model``, directly or not, each before those that it calls itself."""
        found: dict[str, None] = {}
        queue = [model]
        while queue:
            for name in self.users(queue.pop(0), pending=False):
                found.pop(name, None)  # One that is reached by a longer way too has to come before what is between.
                found[name] = None
                queue.append(name)
        return list(reversed(found))


def _path_back(edges: dict[str, frozenset[str]], start: str) -> str | None:
    """The last model on a way from ``start`` back to it; None if there is no such way."""
    seen: set[str] = set()
    queue: list[str] = [start]
    while queue:
        name = queue.pop()
        members: Iterable[str] = edges.get(name, ())
        if start in members:
            return name
        fresh = set(members) - seen
        seen |= fresh
        queue += sorted(fresh)
    return None


def _has_namesake(members: Iterable[str], model: str) -> bool:
    name = ModelId.of(model).name
    return any(ModelId.of(member).name == name for member in members)


@dataclass(frozen=True, slots=True)
class Fit:
    """How a tensor gets into the shape of its consumer, which batches if its producer does not, and the reverse."""

    dims: tuple[int, ...]
    """What the consumer's configuration expects, without the batch dimension."""
    adds: bool
    """The consumer batches; else the producer does."""

    def apply(self, tensor: Tensor) -> Tensor:
        """``tensor`` as the consumer wants it, or unchanged if its shape is the consumer's business. Never a copy."""
        shape = tuple(tensor.shape)
        matches = shapes_agree(self.dims, shape)
        if self.adds and matches:
            return Tensor(tensor.data_type, tensor.array[None, ...])
        if not self.adds and not matches and shape[:1] == (1,):
            return Tensor(tensor.data_type, tensor.array[0])
        return tensor


class Fits:
    """The tensors of an ensemble that go from a model that batches to one that does not, or the reverse."""

    def __init__(self, config: "ModelConfig", members: Sequence["ModelConfig"]) -> None:
        """``members`` are the completed configurations of the steps' models, in the steps' order."""
        self._config = config
        self._members = members
        self._batched = _batched(config, config.input)
        for step, member in zip(config.ensemble_scheduling.step, members, strict=True):
            made = _batched(member, member.output)
            self._batched |= {tensor: made[name] for name, tensor in step.output_map.items() if name in made}

    def inputs(self, index: int) -> Mapping[str, Fit]:
        """Those of the inputs of a step, by the member's names."""
        member = self._members[index]
        return self._of(member, member.input, self._config.ensemble_scheduling.step[index].input_map)

    def outputs(self) -> Mapping[str, Fit]:
        """Those of the outputs of the ensemble."""
        config = self._config
        return self._of(config, config.output, {item.name: item.name for item in config.output}, reshape=True)

    def _of(
        self, consumer: "ModelConfig", items: Iterable[Any], tensors: Mapping[str, str], *, reshape: bool = False
    ) -> dict[str, Fit]:
        batched = _batched(consumer, items)
        return {
            item.name: Fit(_dims(item, reshape), batched[item.name])
            for item in items
            if item.name in tensors and self._batched.get(tensors[item.name], batched[item.name]) != batched[item.name]
        }


def _dims(item: Any, reshape: bool) -> tuple[int, ...]:
    return tuple(item.reshape.shape if reshape and item.HasField("reshape") else item.dims)


def _batched(config: "ModelConfig", items: Iterable[Any]) -> dict[str, bool]:
    """Which tensors of a model have a batch dimension."""
    return {item.name: config.max_batch_size > 0 and not item.is_shape_tensor for item in items}


def is_ensemble(config: "ModelConfig") -> bool:
    """Whether ``config`` is that of a pipeline of other models."""
    return config.HasField("ensemble_scheduling") or "ensemble" in (config.platform, config.backend)


def member_id(step: "EnsembleStep") -> ModelId:
    """The model that a step calls. Its namespace has been written into the configuration when it was chosen."""
    return ModelId(step.model_name, step.model_namespace)


def member_names(config: "ModelConfig") -> frozenset[ModelId]:
    """The models that an ensemble calls; of any other model, none."""
    return frozenset(member_id(step) for step in config.ensemble_scheduling.step)


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a member."""

    index: int
    model_name: str
    model_version: str
    """A number; empty for the newest."""
    inputs: Mapping[str, str]
    """The member's input -> the tensor of the ensemble."""
    outputs: Mapping[str, str]
    """The member's output -> the tensor of the ensemble."""
    waits_for: frozenset[str]
    label: int
    """Which stream of tensors its inputs belong to: 0 for the request's own, else a decoupled member's answers."""
    output_label: int
    """The same for its outputs; another number only if the member is decoupled."""
    fits: Mapping[str, Fit] = field(default_factory=dict)
    """Those of the member's inputs whose tensors need a batch dimension added or taken off."""

    @property
    def decoupled(self) -> bool:
        """Whether the member may give any number of answers."""
        return self.label != self.output_label


@dataclass(frozen=True, slots=True)
class EnsemblePlan:
    """The steps, compiled once per load. ``output_label`` is the stream that the ensemble's outputs come from."""

    name: str
    steps: tuple[Step, ...]
    inputs: frozenset[str]
    outputs: frozenset[str]
    output_label: int
    fits: Mapping[str, Fit] = field(default_factory=dict)
    """The same for the outputs of the ensemble."""
    reshaper: Reshaper | None = None
    """Between the shapes that clients see and those that the steps do."""
    _users: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, config: "ModelConfig", decoupled: Sequence[bool], fits: Fits | None = None) -> "EnsemblePlan":
        """Compile a checked configuration; ``decoupled`` states for each step whether its member is.

        ``fits``: None where all models batch, or none does.

        Raises:
            InvalidArgumentError: a step would need tensors of two streams, of which one may have more than the other.
        """
        labels = _Labels(config, decoupled)
        steps = [replace(step, fits=fits.inputs(step.index) if fits else {}) for step in labels.steps()]
        users: dict[str, list[Step]] = defaultdict(list)
        for step in steps:
            for tensor in step.waits_for:
                users[tensor].append(step)
        return cls(
            config.name,
            tuple(steps),
            frozenset(item.name for item in config.input),
            frozenset(item.name for item in config.output),
            labels.common([item.name for item in config.output], config.name),
            fits.outputs() if fits else {},
            Reshaper.of(config),
            {tensor: tuple(steps) for tensor, steps in users.items()},
        )

    @property
    def decoupled(self) -> bool:
        """Whether the ensemble itself may give any number of answers."""
        return any(step.decoupled for step in self.steps)

    def users(self, tensor: str) -> tuple[Step, ...]:
        return self._users.get(tensor, ())

    def needed(self, outputs: Collection[str]) -> frozenset[int]:
        """The indexes of the steps without which ``outputs`` cannot be made."""
        makers = {tensor: step for step in self.steps for tensor in step.outputs.values()}
        found: set[int] = set()
        queue = [makers[tensor] for tensor in outputs if tensor in makers]
        while queue:
            step = queue.pop()
            if step.index not in found:
                found.add(step.index)
                queue += [makers[tensor] for tensor in step.waits_for if tensor in makers]
        return frozenset(found)


class _Labels:
    """Gives every tensor the number of its stream, in the order in which the tensors come to be."""

    def __init__(self, config: "ModelConfig", decoupled: Sequence[bool]) -> None:
        self._config = config
        self._decoupled = decoupled
        self._labels = {item.name: 0 for item in config.input}
        self._streams = 0

    def common(self, tensors: Sequence[str], model: str) -> int:
        labels = {self._labels[tensor] for tensor in tensors}
        if len(labels) > 1:
            raise InvalidArgumentError(
                f"in ensemble {self._config.name}, step of model '{model}' receives inputs originated from different "
                "decoupled models"
            )
        return labels.pop()

    def steps(self) -> tuple[Step, ...]:
        left = list(enumerate(self._config.ensemble_scheduling.step))
        done: list[Step] = []
        while left:
            ready = [(index, step) for index, step in left if set(step.input_map.values()) <= self._labels.keys()]
            if not ready:
                # The checks of the configuration let no step pass that can never start; this guards the loop.
                raise InvalidArgumentError(f"in ensemble {self._config.name}, steps wait for each other")
            for index, step in ready:
                done.append(self._step(index, step))
            left = [item for item in left if item not in ready]
        return tuple(sorted(done, key=lambda step: step.index))

    def _step(self, index: int, step: "EnsembleStep") -> Step:
        label = output_label = self.common(list(step.input_map.values()), step.model_name)
        if self._decoupled[index]:
            self._streams += 1
            output_label = self._streams
        self._labels.update(dict.fromkeys(step.output_map.values(), output_label))
        return Step(
            index=index,
            model_name=member_id(step),
            model_version="" if step.model_version < 0 else str(step.model_version),
            inputs=dict(step.input_map),
            outputs=dict(step.output_map),
            waits_for=frozenset(step.input_map.values()),
            label=label,
            output_label=output_label,
        )
