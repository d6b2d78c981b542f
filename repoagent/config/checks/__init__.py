"""Whether a configuration makes sense: one module of rules per area, with Triton's texts where it has the rule."""

from collections.abc import Collection, Iterator

from repoagent.config.checks import (
    agents,
    batch_tensors,
    dynamic_batching,
    ensembles,
    instance_groups,
    metrics,
    names,
    paths,
    response_cache,
    sequence_batching,
    sequence_states,
    tensors,
)
from repoagent.config.model_config_pb2 import ModelConfig
from repoagent.errors import ConfigError

__all__ = ["check", "problems"]


def check(
    config: ModelConfig,
    *,
    model_name: str | None = None,
    source: str | None = None,
    complete: bool = False,
    gpus: Collection[int] | None = None,
) -> None:
    """Raise :class:`~repoagent.errors.ConfigError` with the first of :func:`problems`; ``source`` is named in it."""
    for problem in problems(config, model_name=model_name, complete=complete, gpus=gpus):
        raise ConfigError(problem, source=source)


def problems(
    config: ModelConfig,
    *,
    model_name: str | None = None,
    complete: bool = False,
    gpus: Collection[int] | None = None,
) -> Iterator[str]:
    """Everything in ``config`` that cannot work, one text each.

    ``model_name`` is the name of the model's directory, which ``config.name`` must equal if it is given. With
    ``complete`` also what must be there once a backend and :func:`~repoagent.config.normalize` have filled in what the
    file may leave out: name, backend, version policy, types and dims of tensors, instance groups. ``gpus`` are the
    devices that may be used; None means that this is not known here.
    """
    name = config.name or model_name or ""
    yield from names.problems(config, model_name=model_name, complete=complete)
    yield from dynamic_batching.problems(config, name)
    yield from sequence_batching.problems(config, name)
    yield from ensembles.problems(config, name)
    yield from response_cache.problems(config, name)
    yield from metrics.problems(config)
    yield from tensors.problems(config, name, complete=complete)
    yield from batch_tensors.problems(config, name)
    yield from instance_groups.problems(config, name, complete=complete, gpus=gpus)
    yield from paths.problems(config, name)
    yield from sequence_states.problems(config, name)
    yield from agents.problems(config, name)
