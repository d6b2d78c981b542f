"""Whether a configuration leads to one of the backends and platforms that a rule allows."""

from collections.abc import Iterator, Sequence

from repoagent.config import BACKEND_OF_PLATFORM, ModelConfig, executed_by, platform_of
from repoagent.loader.policy.rules import Rule

__all__ = ["backend_objections"]


def backend_objections(config: ModelConfig, rule: Rule) -> Iterator[str]:
    """Why ``rule`` does not allow ``config``; nothing if it does, or if the backend is not known yet.

    What executes the model decides, not what the configuration calls it: the platform follows from the backend.
    """
    backend, platform = executed_by(config), platform_of(config)
    if rule.platforms is not None and _contradicts(config, backend):
        yield (
            f"the platform '{config.platform}' is not one of the backend '{backend}', and the policy allows platforms "
            "by name: leave 'platform' out, or name one of that backend"
        )
    if rule.platforms is not None and platform and platform not in rule.platforms:
        yield _not_allowed("platform", platform, rule.platforms)
    if rule.backends is not None and backend and backend not in rule.backends:
        yield _not_allowed("backend", backend, rule.backends)


def _contradicts(config: ModelConfig, backend: str) -> bool:
    named = config.platform
    return bool(named and backend) and backend not in (named, BACKEND_OF_PLATFORM.get(named))


def _not_allowed(what: str, name: str, allowed: Sequence[str]) -> str:
    return f"the policy does not allow {what} '{name}'; allowed: {', '.join(allowed) or 'none'}"
