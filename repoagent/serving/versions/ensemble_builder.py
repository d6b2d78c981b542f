"""Bringing the members of an ensemble up, and making its versions."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from repoagent.api.report import LoadReport
from repoagent.audit import Actor, current_actor
from repoagent.config import ModelConfig, copy
from repoagent.config.model_config_pb2 import DataType
from repoagent.errors import InvalidArgumentError, NotFoundError, RepoAgentError
from repoagent.serving.ensembles.plan import Dependencies, EnsemblePlan, Fits, member_id, member_names
from repoagent.serving.ensembles.run import EnsembleScheduler
from repoagent.serving.instances.instance import VersionContext
from repoagent.serving.measuring.latencies import LatencyOptions
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import NO_LABELS, InferRequest, Labels, ModelId
from repoagent.serving.requests.request_checker import dims_text
from repoagent.serving.requests.tensor import shapes_agree
from repoagent.serving.versions.served_model import Composition, ServedModel


@dataclass(frozen=True, slots=True)
class _Node:
    """How one model declares a tensor."""

    model: str
    data_type: int
    dims: tuple[int, ...]
    full_dims: tuple[int, ...]

    @classmethod
    def of(cls, model: str, config: ModelConfig, item: Any, *, reshape: bool = False) -> "_Node":
        dims = tuple(item.reshape.shape) if reshape and item.HasField("reshape") else tuple(item.dims)
        return cls(model, item.data_type, dims, ((-1, *dims) if config.max_batch_size > 0 else dims))

    def agrees(self, other: "_Node") -> bool:
        return shapes_agree(self.dims, other.dims) or shapes_agree(self.full_dims, other.full_dims)


def check_members(config: ModelConfig, members: Sequence[ModelConfig]) -> None:
    """Check the completed configuration of an ensemble against those of its steps' members, in the steps' order.
    ``InvalidArgumentError`` has the first thing that does not fit."""
    tensors = {item.name: _Node.of(config.name, config, item, reshape=True) for item in config.input}
    tensors |= {item.name: _Node.of(config.name, config, item, reshape=True) for item in config.output}
    for step, member in zip(config.ensemble_scheduling.step, members, strict=True):
        _check_batch_size(config, step.model_name, member)
        _check_step(config.name, step, member, tensors)


def _check_batch_size(config: ModelConfig, model: str, member: ModelConfig) -> None:
    if member.max_batch_size and member.max_batch_size < config.max_batch_size:
        raise InvalidArgumentError(
            f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model {model} "
            f"which only allows maximum batch size to be {member.max_batch_size}"
        )


def _check_step(ensemble: str, step: Any, member: ModelConfig, tensors: dict[str, _Node]) -> None:
    model = step.model_name
    inputs, outputs = {item.name for item in member.input}, {item.name for item in member.output}
    faults = [
        f"ensemble tensor {tensor} is mapping to non-existing input {name} in model {model}"
        for name, tensor in step.input_map.items()
        if name not in inputs
    ]
    faults += [
        f"input {item.name} in model {model} is not mapped to any ensemble tensors"
        for item in member.input
        if item.name not in step.input_map and not item.optional
    ]
    faults += [
        f"ensemble tensor {tensor} is mapped from non-existing output {name} in model {model}"
        for name, tensor in step.output_map.items()
        if name not in outputs
    ]
    if faults:
        raise InvalidArgumentError(f"in ensemble {ensemble}, {faults[0]}")
    for items, mapping in ((member.input, step.input_map), (member.output, step.output_map)):
        for item in items:
            if item.name in mapping:
                _check_tensor(ensemble, mapping[item.name], _Node.of(model, member, item), tensors)


def _check_tensor(ensemble: str, tensor: str, node: _Node, tensors: dict[str, _Node]) -> None:
    known = tensors.setdefault(tensor, node)
    place = f"in ensemble {ensemble}, ensemble tensor {tensor}: "
    if known.data_type != node.data_type:
        raise InvalidArgumentError(
            f"{place}inconsistent data type: {DataType.Name(known.data_type)} is inferred from model {known.model} "
            f"while {DataType.Name(node.data_type)} is inferred from model {node.model}"
        )
    if not known.agrees(node):
        raise InvalidArgumentError(
            f"{place}inconsistent shape: {dims_text(known.full_dims)} is inferred from model {known.model} while "
            f"{dims_text(node.full_dims)} is inferred from model {node.model}"
        )


_NO_VERSION: Final = "which has no loaded version"


class ForbiddenStepError(InvalidArgumentError):
    """A client may not bring a step of an ensemble into service; ``actor`` is that client."""

    def __init__(self, ensemble: str, step: str, actor: Actor) -> None:
        right = "infer" if actor.by == "on-demand" else "manage"
        super().__init__(
            f"ensemble '{ensemble}' has the step '{step}', and client '{actor.client}' lacks the right '{right}' for "
            "that model"
        )
        self.actor = actor


class Members(Protocol):
    """The models of the server, as an ensemble needs them."""

    def choose(self, name: str, namespace: str) -> str | None:
        """The namespace of the model ``name`` for an ensemble of ``namespace``; None if it is nowhere, or ambiguous."""

    def load_needed(self, name: str) -> Future[LoadReport]:
        """Queue a load through the model's own agents; see :class:`LoadRequest`."""

    def find(self, name: str, version: str) -> ServedModel:
        """The version that requests go to. Raises RepoAgentError if there is none."""

    def submit(self, request: InferRequest) -> None:
        """Hand a request over; never raises."""


class EnsembleBuilder:
    """Makes ensembles of ``members``. ``pausing`` is entered while a load waits for other loads."""

    def __init__(
        self,
        members: Members,
        dependencies: Dependencies,
        pausing: Callable[[], AbstractContextManager[None]],
        latencies: LatencyOptions = LatencyOptions(),  # noqa: B008 - frozen
    ) -> None:
        self._latencies = latencies
        self._members = members
        self._dependencies = dependencies
        self._pausing = pausing

    def load_members(self, ensemble: ModelId, config: ModelConfig) -> None:
        """Load the members that are not loaded, or changed since, all at once, and wait for them.

        Which model of a name it is, where there are several, is written into ``config``.

        Raises:
            InvalidArgumentError: one does not exist or failed, or needs the ensemble itself; or the client that loads
                the ensemble may not load it.
        """
        _check_actor(ensemble, config)
        self._choose_members(ensemble, config)
        names = member_names(config)
        self._dependencies.declare(ensemble, names)
        loads = {name: self._members.load_needed(name) for name in sorted(names)}
        with self._pausing():
            wait_for(loads.values())
        errors = {name: error for name, load in loads.items() if (error := load.exception()) is not None}
        missing = [name for name, error in errors.items() if isinstance(error.__cause__, NotFoundError)]
        if missing:
            raise _unavailable(ensemble, missing)
        for name, error in errors.items():
            raise InvalidArgumentError(
                f"ensemble '{ensemble}' depends on '{name}' {_NO_VERSION}. Model '{name}' loading "
                f"failed with error: {error}"
            ) from error

    def _choose_members(self, ensemble: ModelId, config: ModelConfig) -> None:
        missing: dict[str, None] = {}
        for step in config.ensemble_scheduling.step:
            namespace = self._members.choose(step.model_name, ensemble.namespace)
            if namespace is None:
                missing[step.model_name] = None
            else:
                step.model_namespace = namespace
        if missing:
            raise _unavailable(ensemble, missing)

    def build(self, name: str, version: int, config: ModelConfig, labels: Labels = NO_LABELS) -> ServedModel:
        """One version of an ensemble whose members are loaded. ``config`` is complete and checked by itself.

        An output that has no ``labels`` of its own has those of the member's output that it is.

        Raises:
            InvalidArgumentError: the members do not fit.
        """
        members = list(self._step_members(config))
        configs = [member.config for member in members]
        check_members(config, configs)
        plan = EnsemblePlan.of(config, [member.decoupled for member in members], Fits(config, configs))
        config.model_transaction_policy.decoupled = plan.decoupled
        context = VersionContext(name, version, config, ModelStatistics(self._latencies.start(config)))
        max_inflight = config.ensemble_scheduling.max_inflight_requests
        return ServedModel(
            context,
            backend_model=None,
            scheduler=EnsembleScheduler(plan, context, self._members.submit, max_inflight=max_inflight),
            labels={**_member_labels(config, members), **labels},
            composition=Composition(tuple(member.serial for member in members), labels),
        )

    def rebuild(self, ensemble: ServedModel, namespace: str) -> ServedModel:
        """The same version, of an ensemble of ``namespace``, over the members that are loaded now;
        ``InvalidArgumentError`` if they do not fit any more."""
        labels = ensemble.composition.labels if ensemble.composition is not None else NO_LABELS
        rebuilt = self.build(ensemble.name, ensemble.version, self._linked(ensemble, namespace), labels)
        rebuilt.keep_receipt(ensemble)
        return rebuilt

    def outdated(self, ensemble: ServedModel, namespace: str) -> bool:
        """Whether a member of ``ensemble`` is not the one any more that it was checked against."""
        if ensemble.composition is None:
            return False
        try:
            members = self._step_members(self._linked(ensemble, namespace))
            return ensemble.composition.members != tuple(member.serial for member in members)
        except RepoAgentError:
            return True

    def _linked(self, ensemble: ServedModel, namespace: str) -> ModelConfig:
        """The configuration, with the members that it would get if it were loaded now, as far as they are loaded."""
        config = copy(ensemble.config)
        for step in config.ensemble_scheduling.step:
            chosen = self._members.choose(step.model_name, namespace)
            if chosen is not None and chosen != step.model_namespace and self._is_loaded(step.model_name, chosen):
                step.model_namespace = chosen
        return config

    def _is_loaded(self, name: str, namespace: str) -> bool:
        try:
            self._members.find(ModelId(name, namespace), "")
        except RepoAgentError:
            return False
        return True

    def _step_members(self, config: ModelConfig) -> Iterable[ServedModel]:
        for step in config.ensemble_scheduling.step:
            version = "" if step.model_version < 0 else str(step.model_version)
            try:
                yield self._members.find(member_id(step), version)
            except RepoAgentError as error:
                required = f"whose required version {version} is not loaded" if version else _NO_VERSION
                text = f"ensemble '{config.name}' depends on '{step.model_name}' {required}."
                raise InvalidArgumentError(text) from error


def _check_actor(ensemble: ModelId, config: ModelConfig) -> None:
    """What a client may not load itself, an ensemble of its own does not load for it, or reach.

    Every load of an ensemble passes here: by name, on demand, by polling, at start, and as a step of another one. At
    start and by polling the operator acts: there the policy's ``members`` decides alone.
    """
    actor = current_actor()
    for step in config.ensemble_scheduling.step:
        if actor.manages is not None and not actor.manages(step.model_name):
            raise ForbiddenStepError(ensemble, step.model_name, actor)


def _unavailable(ensemble: str, missing: Iterable[str]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"ensemble {ensemble} contains models that are not available or ambiguous: {', '.join(missing)}"
    )


def _member_labels(config: ModelConfig, members: Iterable[ServedModel]) -> Labels:
    """The labels that come with the members' outputs, by the tensor of the ensemble that each of them fills."""
    return {
        tensor: member.classes.labels[output]
        for step, member in zip(config.ensemble_scheduling.step, members, strict=True)
        for output, tensor in step.output_map.items()
        if output in member.classes.labels
    }
