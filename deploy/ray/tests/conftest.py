"""The fixtures of :mod:`deploy.ray.tests.kit`, where Ray is installed. Elsewhere each module is skipped."""

from importlib.util import find_spec

if find_spec("ray") is not None:
    from deploy.ray.tests.kit import cluster, in_background, world

    __all__ = ["cluster", "in_background", "world"]
