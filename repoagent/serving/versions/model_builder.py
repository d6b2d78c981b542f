"""Making the served versions of a model from what the agents left behind: all of them, or none."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from repoagent.config import ModelConfig, check, copy, no_version, normalize, select_versions
from repoagent.config.backends import model_filenames, way_out
from repoagent.errors import (
    CancelledError,
    ErrorCode,
    InvalidArgumentError,
    RepoAgentError,
    StoreUnavailableError,
    UnsupportedError,
    causes,
)
from repoagent.installing import missing_owner
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.onnx_files.trial_opening import opening_within
from repoagent.serving.backends.registry import BackendRegistry
from repoagent.serving.ensembles.plan import is_ensemble
from repoagent.serving.instances.backend import Backend, BackendModel
from repoagent.serving.instances.batches import RaggedJoiner
from repoagent.serving.instances.instance import VersionContext, as_repoagent_error
from repoagent.serving.instances.left_behind import loading_until
from repoagent.serving.measuring.latencies import LatencyOptions
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import ModelId, read_labels
from repoagent.serving.requests.tensor import Reshaper
from repoagent.serving.scheduling.rate_limiter import RateLimiter
from repoagent.serving.scheduling.response_cache import ResponseCache
from repoagent.serving.scheduling.sequence_controls import SequenceStates
from repoagent.serving.versions.config_limits import check_limits, meaningless_settings
from repoagent.serving.versions.ensemble_builder import EnsembleBuilder
from repoagent.serving.versions.instance_set import InstanceChange, InstanceSet, new_scheduler
from repoagent.serving.versions.reuse import Built, Kept, Present, Share, merged_config
from repoagent.serving.versions.served_model import ServedModel
from repoagent.serving.versions.warmup import warm_up
from repoagent.storage.files.files import ModelFiles
from repoagent.storage.repositories.sources import version_numbers

logger = logging.getLogger(__name__)


class BuildError(InvalidArgumentError):
    """A model whose agents succeeded could not be loaded. ``reasons`` has the reason of each version that failed."""

    def __init__(self, model_name: str, reasons: dict[int, str], general: str = "") -> None:
        self.reasons = reasons
        self.reason = general or "".join(
            f"version {version} is at UNAVAILABLE state: {reason};" for version, reason in reasons.items()
        )
        super().__init__(f"load failed for model '{model_name}': {self.reason}\n")


class UnreadBuildError(BuildError, StoreUnavailableError):
    """None of its files is to blame: a store failed while they were read, and the same load may succeed later."""

    code = ErrorCode.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class ModelBuilder:
    """Builds versions with the backends of ``registry``.

    ``strict`` is the server's ``strict_model_config``; ``retries`` how often a version that failed is tried again;
    ``admit`` raises for a backend or platform that the operator does not allow, before any code of it runs.
    """

    registry: BackendRegistry
    strict: bool = False
    retries: int = 0
    admit: Callable[[str, ModelConfig], None] = lambda _name, _config: None
    ensembles: EnsembleBuilder | None = None
    """None: ensembles are refused."""
    cache: ResponseCache | None = None
    """Where the answers of models with ``response_cache`` are kept; None: nowhere."""
    limiter: RateLimiter | None = None
    """None: resources and priorities of instance groups have no effect."""
    latencies: LatencyOptions = LatencyOptions()  # noqa: RUF009 - frozen
    """What is kept of single requests."""
    limits: Limits = DEFAULT_LIMITS
    """What one version may ask for."""

    def configuration(self, name: str, config: ModelConfig | None) -> ModelConfig:
        """The configuration to start from: what the chain gave, or an empty one to be completed;
        ``InvalidArgumentError`` if nothing may be completed."""
        if config is not None:
            return config
        if self.strict:
            raise InvalidArgumentError(
                f"model '{name}' has no config.pbtxt, which strict_model_config requires: write one, or switch that off"
            )
        return ModelConfig(name=name)

    def plan(
        self, model: str, config: ModelConfig, files: ModelFiles, pinned: frozenset[int] | None = None
    ) -> list[int]:
        """The versions that :meth:`build` is to build: those of the version policy, or those ``pinned`` that are there.

        Raises:
            BuildError: the version policy leaves none, or more than one model may have.
        """
        numbers = version_numbers(files.directories())
        if not numbers and is_ensemble(config):
            numbers = [1]  # It has no files, and object stores and version control keep no empty directories.
        versions = select_versions(config, numbers) if pinned is None else [n for n in numbers if n in pinned]
        if not versions:
            raise BuildError(model, {}, no_version(ModelId.of(model).name, numbers))
        if len(versions) > self.limits.model_versions:
            raise BuildError(
                model,
                {},
                f"{len(versions)} versions are to be loaded, more than the limit of {self.limits.model_versions} "
                f"({Limits.flag('model_versions')})",
            )
        return versions

    def build(
        self,
        model: str,
        config: ModelConfig,
        files: ModelFiles,
        versions: list[int],
        cancelled: Callable[[], bool] = lambda: False,
        present: Present = Present(),  # noqa: B008 - frozen
    ) -> Built:
        """Load ``versions`` of ``model`` (an identity), warm them up, and return them ready to serve.

        Of those that are ``present`` and have not changed, the ones that serve are returned.

        Raises:
            BuildError: one of them failed; none is left loaded.
            CancelledError: ``cancelled`` became true between two versions; none is left loaded.
        """
        name = ModelId.of(model).name
        if is_ensemble(config):
            config = self._with_members(ModelId.of(model), config)
        if meaningless := ", ".join(meaningless_settings(config)):
            logger.warning("model '%s': the server does not go by %s of its configuration", model, meaningless)
        built: dict[int, ServedModel | Kept] = {}
        reasons: dict[int, str] = {}
        later = True
        with ExitStack() as undo:
            for version in versions:
                if cancelled():
                    raise CancelledError(f"the load of model '{model}' was cancelled")
                try:
                    built[version] = one = self._kept(
                        name, config, files, version, cancelled, present
                    ) or self.build_version(name, config, files, version, cancelled)
                    undo.callback(one.discard if isinstance(one, Kept) else one.close)
                except CancelledError:
                    raise
                except RepoAgentError as error:
                    logger.debug("failed to load '%s' version %d: %s", model, version, str(error).rstrip())
                    reasons[version] = f"{error.code.text}: {error}"
                    later &= any(isinstance(one, StoreUnavailableError) for one in causes(error))
            if reasons:
                raise (UnreadBuildError if later else BuildError)(model, reasons)
            undo.pop_all()
        result = Built.of(built)
        for version, served in result.versions.items():
            served.share = served.share or present.share(version, config, served)
        return result

    def _kept(
        self,
        name: str,
        config: ModelConfig,
        files: ModelFiles,
        version: int,
        cancelled: Callable[[], bool],
        present: Present,
    ) -> Kept | None:
        """The version that serves, as a load with ``config`` has it; None if it must be made again."""
        served = present.versions.get(version)
        if served is None:
            return None
        try:
            share = present.share(version, config, served)
            if share is None or not share.keeps(served):
                return None
            return self._keep(served, share, config, files, cancelled)
        except Exception as error:
            raise as_repoagent_error(error, name) from error

    def _keep(
        self, served: ServedModel, share: Share, config: ModelConfig, files: ModelFiles, cancelled: Callable[[], bool]
    ) -> Kept | None:
        """None if its number of instances cannot change while it serves."""
        backend = self.registry.get(served.config.backend)
        gpus = backend.gpus()
        merged = merged_config(served.config, config, gpus)
        is_fresh = served.share is not None and served.share.fresh == share.fresh
        if not is_fresh:  # What the files had completed may be something else now.
            for name in set(merged.parameters).difference(config.parameters):
                del merged.parameters[name]
            backend.auto_complete(merged, files, served.version)
        self._check(served.name, merged, gpus)
        self.admit(served.name, merged)
        refresh = (lambda: None) if is_fresh else served.refresh(merged, files)
        change = served.prepare(merged, cancelled)
        if change is None:
            return None
        self._warm_up(merged, files, change, cancelled)
        how = "has not changed and" if is_fresh else "takes up its new files and"
        logger.info("'%s' version %d %s serves on", served.name, served.version, how)
        return Kept(served, merged, change, share.fresh, refresh)

    def _warm_up(
        self,
        config: ModelConfig,
        files: ModelFiles,
        change: InstanceChange,
        cancelled: Callable[[], bool],
        states: SequenceStates | None = None,
    ) -> None:
        """Warm the instances up that ``change`` adds; if that fails they are closed."""
        with ExitStack() as undo:
            undo.callback(change.discard)
            added, seconds = list(change.added.values()), self.limits.warmup_seconds
            warm_up(config, files, added, states, cancelled, limit_seconds=seconds)
            undo.pop_all()

    def outdated(self, versions: Mapping[int, ServedModel], namespace: str) -> bool:
        """Whether these are versions of an ensemble of ``namespace`` whose members have changed since."""
        ensembles = self.ensembles
        return ensembles is not None and any(ensembles.outdated(served, namespace) for served in versions.values())

    def rebuild(self, versions: Mapping[int, ServedModel], namespace: str) -> dict[int, ServedModel]:
        """The versions of an ensemble again, over the members that are loaded now; no agent is called. Raises
        ``InvalidArgumentError`` if they do not fit any more."""
        if self.ensembles is None:
            raise AssertionError("there is no ensemble without a builder of ensembles")
        return {number: self.ensembles.rebuild(served, namespace) for number, served in versions.items()}

    def build_version(
        self, name: str, config: ModelConfig, files: ModelFiles, version: int, cancelled: Callable[[], bool]
    ) -> ServedModel:
        """Load one version, with as many tries as the server allows; raises what the last one failed with."""
        for remaining in range(self.retries, -1, -1):
            try:
                with loading_until(name, cancelled), opening_within(self.limits, cancelled):
                    return self._build_version(name, copy(config), files, version, cancelled)
            except CancelledError:
                raise
            except Exception as error:
                failure = as_repoagent_error(error, name)
                if not remaining:
                    raise failure from error
                text = str(failure).rstrip()
                logger.warning("loading '%s' version %d failed, trying again: %s", name, version, text)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _build_version(
        self, name: str, config: ModelConfig, files: ModelFiles, version: int, cancelled: Callable[[], bool]
    ) -> ServedModel:
        _refuse_unsupported(name, config)
        if is_ensemble(config):
            return self._build_ensemble(name, config, files, version)
        config = self.named(name, config, files, version)
        backend = self.registry.get(config.backend)
        gpus = backend.gpus()  # First: where nothing can be executed, nothing need be read.
        config = self._complete(name, config, backend, files, version, gpus)
        with ExitStack() as undo:
            model = backend.load(config, files, version)
            undo.callback(model.close)
            context = VersionContext(name, version, config, ModelStatistics(self.latencies.start(config)))
            own = model.keeps_files_open
            keeps_files = backend.keeps_files_open if own is None else own
            served = self._serve(context, files, model, cancelled, keeps_files=keeps_files)
            undo.pop_all()
        return served

    def _serve(
        self,
        version: VersionContext,
        files: ModelFiles,
        model: BackendModel,
        cancelled: Callable[[], bool],
        *,
        keeps_files: bool,
    ) -> ServedModel:
        labels = read_labels(version.config, files, self.limits)
        states = SequenceStates.of(version.config, files)
        instances = InstanceSet(version, model, self.limiter)
        change = instances.prepare(version.config, cancelled)
        self._warm_up(version.config, files, change, cancelled, states)
        instances.apply(change)
        scheduler = new_scheduler(version, instances.instances, cache=self.cache, states=states)
        return ServedModel(
            version,
            backend_model=model,
            scheduler=scheduler,
            keeps_files=keeps_files,
            labels=labels,
            instances=instances,
        )

    def _build_ensemble(self, name: str, config: ModelConfig, files: ModelFiles, version: int) -> ServedModel:
        if self.ensembles is None:
            raise UnsupportedError(f"model '{name}' is an ensemble, which this server does not take")
        return self.ensembles.build(name, version, config, read_labels(config, files, self.limits))

    def _with_members(self, model: ModelId, config: ModelConfig) -> ModelConfig:
        """The completed configuration of an ensemble, whose members are loaded then."""
        try:
            config = self._complete_ensemble(model.name, config)
            if self.ensembles is not None:
                self.ensembles.load_members(model, config)
        except RepoAgentError as error:
            raise BuildError(model, {}, str(error)) from error
        return config

    def _complete_ensemble(self, name: str, config: ModelConfig) -> ModelConfig:
        """The configuration of an ensemble, checked without its members."""
        config = normalize(config, model_name=name)
        check(config, model_name=name, complete=True)
        self.admit(name, config)
        return config

    def examine(self, model: str, config: ModelConfig, files: ModelFiles, version: int) -> tuple[ModelConfig, str]:
        """The configuration of one version as a load would complete and check it, and why this machine cannot execute
        the model: empty if nothing is known against it. Nothing is executed. Raises what a load anywhere would."""
        name = ModelId.of(model).name
        _refuse_unsupported(name, config)
        if is_ensemble(config):
            return self._complete_ensemble(name, config), ""
        config = self.named(name, config, files, version)
        backend = self.registry.get(config.backend)
        gpus: Sequence[int] | None
        try:
            gpus, problem = backend.gpus(), ""
        except UnsupportedError as error:
            gpus, problem = None, str(error)
        return self._complete(name, config, backend, files, version, gpus), problem

    def named(self, name: str, config: ModelConfig, files: ModelFiles, version: int) -> ModelConfig:
        """The configuration with the backend that it names, or that the model's files imply.

        Raises:
            RepoAgentError: there is none, or the operator does not allow it.
        """
        names, known = files.names(str(version)), model_filenames()
        named = config.backend or config.platform or config.default_model_filename
        config = normalize(config, model_name=name, files=names, gpus=None)
        implied = not config.backend or config.backend in known.keys() - self.registry.names()
        way = way_out(names) if implied else "" if named else missing_owner(names, known.values())
        if way:
            raise InvalidArgumentError(f"version directory {version} of model '{name}' holds {way}")
        if not config.backend:
            raise InvalidArgumentError(
                f"must specify 'platform' or 'backend' for model '{name}': nothing in version directory {version} "
                f"({', '.join(names) or 'it is empty'}) identifies the kind of the model"
            )
        self.admit(name, config)
        return config

    def _complete(
        self,
        name: str,
        config: ModelConfig,
        backend: Backend,
        files: ModelFiles,
        version: int,
        gpus: Sequence[int] | None,
    ) -> ModelConfig:
        """The configuration with nothing left open that can be known on this machine, checked."""
        if not self.strict:
            backend.auto_complete(config, files, version)
        config = normalize(config, files=files.names(str(version)), gpus=gpus)
        self.admit(name, config)
        self._check(name, config, gpus)
        return config

    def _check(self, name: str, config: ModelConfig, gpus: Sequence[int] | None) -> None:
        check(config, model_name=name, complete=gpus is not None, gpus=gpus)
        check_limits(config, self.limits)


def _refuse_unsupported(name: str, config: ModelConfig) -> None:
    """Raise ``UnsupportedError`` for what would otherwise be ignored without a word and change answers."""
    asked = {
        "reshape with ragged batches": RaggedJoiner.needed(config) and Reshaper.of(config) is not None,
        "ragged batches with sequence_batching": RaggedJoiner.needed(config) and config.HasField("sequence_batching"),
        "ragged batches without max_batch_size": RaggedJoiner.needed(config) and not config.max_batch_size,
    }
    named = [feature for feature, wanted in asked.items() if wanted]
    if named:
        raise UnsupportedError(f"model '{name}' asks for {', '.join(named)}, which is not supported yet")
