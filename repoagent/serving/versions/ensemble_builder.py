"""Bringing the members of an ensemble up, and making its versions."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol

from repoagent.audit import Actor, current_actor
from repoagent.config import copy
from repoagent.errors import InvalidArgumentError, NotFoundError, RepoAgentError
from repoagent.serving.ensembles.batch_dimension import Fits
from repoagent.serving.ensembles.dependencies import Dependencies
from repoagent.serving.ensembles.member_checks import check_members
from repoagent.serving.ensembles.plan import EnsemblePlan, member_id, member_names
from repoagent.serving.ensembles.scheduler import EnsembleScheduler
from repoagent.serving.instances.instance import VersionContext
from repoagent.serving.measuring.latencies import LatencyOptions
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.class_labels import NO_LABELS, Labels
from repoagent.serving.requests.model_id import ModelId
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.versions.served_model import Composition, ServedModel

if TYPE_CHECKING:
    from repoagent.api.report import LoadReport
    from repoagent.config import ModelConfig

__all__ = ["EnsembleBuilder", "ForbiddenStepError", "Members"]

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

    def load_needed(self, name: str) -> "Future[LoadReport]":
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

    def load_members(self, ensemble: ModelId, config: "ModelConfig") -> None:
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

    def _choose_members(self, ensemble: ModelId, config: "ModelConfig") -> None:
        missing: dict[str, None] = {}
        for step in config.ensemble_scheduling.step:
            namespace = self._members.choose(step.model_name, ensemble.namespace)
            if namespace is None:
                missing[step.model_name] = None
            else:
                step.model_namespace = namespace
        if missing:
            raise _unavailable(ensemble, missing)

    def build(self, name: str, version: int, config: "ModelConfig", labels: Labels = NO_LABELS) -> ServedModel:
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
        """The same version, of an ensemble of ``namespace``, over the members that are loaded now.

        Raises:
            InvalidArgumentError: they do not fit any more.
        """
        labels = ensemble.composition.labels if ensemble.composition is not None else NO_LABELS
        return self.build(ensemble.name, ensemble.version, self._linked(ensemble, namespace), labels)

    def outdated(self, ensemble: ServedModel, namespace: str) -> bool:
        """Whether a member of ``ensemble`` is not the one any more that it was checked against."""
        if ensemble.composition is None:
            return False
        try:
            members = self._step_members(self._linked(ensemble, namespace))
            return ensemble.composition.members != tuple(member.serial for member in members)
        except RepoAgentError:
            return True

    def _linked(self, ensemble: ServedModel, namespace: str) -> "ModelConfig":
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

    def _step_members(self, config: "ModelConfig") -> Iterable[ServedModel]:
        for step in config.ensemble_scheduling.step:
            version = "" if step.model_version < 0 else str(step.model_version)
            try:
                yield self._members.find(member_id(step), version)
            except RepoAgentError as error:
                required = f"whose required version {version} is not loaded" if version else _NO_VERSION
                text = f"ensemble '{config.name}' depends on '{step.model_name}' {required}."
                raise InvalidArgumentError(text) from error


def _check_actor(ensemble: ModelId, config: "ModelConfig") -> None:
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


def _member_labels(config: "ModelConfig", members: Iterable[ServedModel]) -> Labels:
    """The labels that come with the members' outputs, by the tensor of the ensemble that each of them fills."""
    return {
        tensor: member.classes.labels[output]
        for step, member in zip(config.ensemble_scheduling.step, members, strict=True)
        for output, tensor in step.output_map.items()
        if output in member.classes.labels
    }
