"""The application: an ingress before replicas, in Ray Serve's terms."""

from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig

from repoagent_ray.environment import in_process_of
from repoagent_ray.ingress import Ingress
from repoagent_ray.replica import replica_class
from repoagent_ray.settings import Settings

_INGRESS_REQUESTS = 10_000
"""An ingress waits for replicas and computes little: the queue is bounded at its handle of these."""
_QUIET = {"enable_access_log": False}
"""A line of Ray's for each request costs more than the request; the request log has what it lacks."""
_GRACE_SECONDS = 15.0
"""What a replica has to end beyond the time that its requests have."""


def application(args: Settings) -> Any:
    """The application that ``args`` describe, for ``ray.serve.run`` and ``serve run``.

    Raises:
        InvalidArgumentError: an option of the server means nothing.
    """
    settings = args
    settings.server_options()  # a mistake shows here, not in each replica
    models = serve.deployment(
        replica_class(settings.models_per_replica),
        name="Models",
        max_ongoing_requests=settings.max_ongoing_requests,
        max_queued_requests=settings.max_queued_requests,
        ray_actor_options=in_process_of(settings.replica),
        **_of_both(settings),
        **_replicas(settings),
    )
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name="Ingress",
        num_replicas=settings.ingress_replicas,
        max_ongoing_requests=_INGRESS_REQUESTS,
        ray_actor_options=in_process_of(settings.ingress),
        **_of_both(settings),
    )
    return ingress.bind(models.bind(settings), settings)


def _of_both(settings: Settings) -> dict[str, Any]:
    """What holds for replicas and ingresses alike."""
    return {
        "logging_config": _QUIET,
        "graceful_shutdown_timeout_s": settings.drain_seconds + _GRACE_SECONDS,
        "health_check_period_s": settings.health_check_period_s,
        "health_check_timeout_s": settings.health_check_timeout_s,
    }


def _replicas(settings: Settings) -> dict[str, Any]:
    """How many replicas there are: a number, or what Ray's autoscaler goes by."""
    if settings.most_replicas == settings.min_replicas:
        return {"num_replicas": settings.min_replicas}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=settings.min_replicas,
            max_replicas=settings.most_replicas,
            target_ongoing_requests=settings.target_ongoing_requests,
            upscale_delay_s=settings.upscale_delay_s,
            downscale_delay_s=settings.downscale_delay_s,
        )
    }
