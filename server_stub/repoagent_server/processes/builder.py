"""What the keeper's core takes for a loaded version: one that every worker has built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from repoagent.config import ModelConfig
from repoagent.errors import InternalError, InvalidArgumentError
from repoagent.serving.ensembles.plan import is_ensemble
from repoagent.serving.instances.instance import VersionContext
from repoagent.serving.requests.request import NO_LABELS, InferRequest, Labels
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.scheduling.scheduler import Scheduler
from repoagent.serving.versions.model_builder import ModelBuilder
from repoagent.serving.versions.reuse import Built, Present
from repoagent.serving.versions.served_model import Composition, ServedModel
from repoagent.storage.files.files import ModelFiles

if TYPE_CHECKING:
    from repoagent_server.processes.fleet import Fleet
    from repoagent_server.processes.versions import Handed

_HOME: Final = "home"
"""The parameter by which a model's configuration chooses."""
_HOMES: Final = ("any", "one")
_WITHOUT_CALLS: Final = frozenset({"onnxruntime", "tensorrt", "openvino", "llm"})
"""Backends whose models have no other models called."""


class _Elsewhere(Scheduler):
    """Executes nothing: requests go to the workers."""

    def submit(self, request: InferRequest) -> None:
        answer_error(request, InternalError(f"model '{self._model_name}' is executed by the worker processes"))

    def retire(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Nothing waits here."""


class HandedVersion(ServedModel):
    """A version that the workers serve."""

    def __init__(
        self,
        fleet: "Fleet",
        handed: "Handed",
        config: ModelConfig,
        *,
        keeps_files: bool,
        composition: Composition | None = None,
        labels: Labels = NO_LABELS,
    ) -> None:
        super().__init__(
            VersionContext(handed.model, handed.version, config),
            backend_model=None,
            scheduler=_Elsewhere(handed.model),
            keeps_files=keeps_files,
            composition=composition,
            labels=labels,
        )
        self.handed = handed
        self._fleet = fleet

    def show_receipt(self, receipt: str, *, in_answers: bool) -> None:
        """See :meth:`ServedModel.show_receipt`: the workers do, once they show the version."""
        super().show_receipt(receipt, in_answers=in_answers)
        self.handed.receipt, self.handed.in_answers = receipt, in_answers

    @property
    def running(self) -> int:
        """How many requests are inside, in all workers."""
        return self._fleet.running(self.handed)

    @property
    def last_used_ms(self) -> int:
        """See :attr:`ServedModel.last_used_ms`; in any worker."""
        return self._fleet.last_used_ms(self.handed)

    @property
    def broken(self) -> bool:
        """Whether a worker lacks it."""
        return self.handed.missing

    def retire(self) -> None:
        """See :meth:`ServedModel.retire`."""
        super().retire()
        self._fleet.retire(self.handed)

    def drain(self, timeout: float | None) -> bool:
        """See :meth:`ServedModel.drain`."""
        return self._fleet.drain(self.handed, timeout)

    def close(self) -> None:
        """See :meth:`ServedModel.close`."""
        super().close()
        self._fleet.close_version(self.handed)


@dataclass(frozen=True)
class FleetBuilder(ModelBuilder):
    """Has versions built by ``fleet``. No file of a model is opened here, and no backend is loaded."""

    fleet: "Fleet" = field(kw_only=True)

    def build(
        self,
        model: str,
        config: ModelConfig,
        files: ModelFiles,
        versions: list[int],
        cancelled: Callable[[], bool] = lambda: False,
        present: Present = Present(),  # noqa: B008 - frozen
    ) -> Built:
        """See :meth:`ModelBuilder.build`. All workers show the versions when the load is committed."""
        built = super().build(model, config, files, versions, cancelled, Present())
        return replace(built, on_commit=lambda: self._show(model, built.versions))

    def rebuild(self, versions: Mapping[int, ServedModel], namespace: str) -> dict[int, ServedModel]:
        """See :meth:`ModelBuilder.rebuild`; they are shown at once."""
        rebuilt: dict[int, ServedModel] = {}
        for number, plain in super().rebuild(versions, namespace).items():
            old = versions[number]
            assert isinstance(old, HandedVersion)
            root, fleeting = old.handed.root, old.handed.fleeting
            rebuilt[number] = self._hand_over(plain.name, plain.config, root, number, fleeting, lambda: False, plain)
            rebuilt[number].keep_receipt(old)
        self._show(next(iter(versions.values())).name, rebuilt)
        return rebuilt

    def _build_version(
        self, name: str, config: ModelConfig, files: ModelFiles, version: int, cancelled: Callable[[], bool]
    ) -> ServedModel:
        plain = None
        if is_ensemble(config):
            plain = super()._build_version(name, config, files, version, cancelled)
            config = plain.config
        else:
            config = self.named(name, config, files, version)
        root = str(files.local_path())
        return self._hand_over(name, config, root, version, files.fleeting, cancelled, plain)

    def _hand_over(
        self,
        name: str,
        config: ModelConfig,
        root: str,
        version: int,
        fleeting: bool,
        cancelled: Callable[[], bool],
        plain: ServedModel | None,
    ) -> ServedModel:
        text = config.SerializeToString(deterministic=True)
        self.fleet.hand_over(root)
        calls = is_ensemble(config) or config.backend not in _WITHOUT_CALLS
        self.fleet.prepare(calls=calls)
        homed = self._is_homed(name, config)
        order = (name, version, text, root)
        build = partial(self.fleet.build, *order, fleeting=fleeting, cancelled=cancelled, calls=calls)
        handed, answer = build(homed=homed)
        try:
            complete = ModelConfig.FromString(bytes.fromhex(str(answer["config"])))
            self.admit(name, complete)
            if not homed and _has_home(name, complete):  # Its own code has completed the configuration.
                self.fleet.close_version(handed)
                homed = True
                handed, answer = build(homed=True)
            if homed:
                self.fleet.settle(handed, complete.SerializeToString(deterministic=True))
        except BaseException:
            self.fleet.close_version(handed)
            raise
        return HandedVersion(
            self.fleet,
            handed,
            complete,
            keeps_files=bool(answer["keeps_files"]),
            composition=plain.composition if plain is not None else None,
            labels=plain.classes.labels if plain is not None else NO_LABELS,
        )

    def _is_homed(self, name: str, config: ModelConfig) -> bool:
        """Whether one worker is to have a version, not all of them."""
        asked = _has_home(name, config)
        if asked is None:
            asked = not is_ensemble(config) and self.fleet.stateful(config.backend)
        return asked

    def _show(self, model: str, versions: Mapping[int, ServedModel]) -> None:
        shown = {number: one.handed for number, one in versions.items() if isinstance(one, HandedVersion)}
        self.fleet.show(model, shown)


def _has_home(name: str, config: ModelConfig) -> bool | None:
    """Whether one process is to have all requests of a model; None: if its backend wants that.

    Raises:
        InvalidArgumentError: the configuration asks for something else than "any" or "one", or for what would go wrong.
    """
    sequences = config.HasField("sequence_batching")
    if (asked := config.parameters[_HOME].string_value if _HOME in config.parameters else "") not in ("", *_HOMES):
        raise InvalidArgumentError(f"model '{name}': parameter '{_HOME}' must be 'any' or 'one', not '{asked}'")
    if asked == "any" and sequences:
        raise InvalidArgumentError(
            f"model '{name}' has sequence_batching: the requests of a sequence may come over several connections, and "
            f"must meet in one process. Leave the parameter '{_HOME}' out"
        )
    if asked or sequences:
        return asked != "any"
    return (config.model_transaction_policy.decoupled and config.backend == "python") or None
