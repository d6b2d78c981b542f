"""What a rule allows: agents, and what executes the model.

Whether an agent is allowed is decided before its code is imported: importing is running.
"""

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from repoagent.config import BACKEND_OF_PLATFORM, ModelConfig, executed_by, platform_of
from repoagent.loader.discovery import AgentInfo
from repoagent.loader.pinned_code import PINNED_CODE
from repoagent.loader.policy.code_digests import code_of
from repoagent.loader.policy.rules import AllowedAgent, Rule

__all__ = ["backend_objections", "command_objection", "objection"]

_UNNAMED: Final = (
    "the policy limits the backends or platforms of the model, and neither judges a command; the operator can allow "
    'commands by name: commands = ["vllm", "prepare"] in the rule'
)


def objection(info: AgentInfo, allowed: Sequence[AllowedAgent] | None) -> str | None:
    """Why ``info`` may not be used, or None if it may. ``allowed`` None allows every agent.

    Of an agent that is allowed by its digest, only code with that digest is imported from now on.
    """
    if allowed is None:
        return None
    named = [entry for entry in allowed if entry.name == info.name]
    if not named:
        return f"the policy allows only: {', '.join(sorted({entry.name for entry in allowed})) or 'no agent'}"
    reasons = [_mismatch(info, entry) for entry in named]
    return None if None in reasons else "; ".join(reason for reason in reasons if reason)


def _mismatch(info: AgentInfo, entry: AllowedAgent) -> str | None:
    if entry.distribution is not None and info.distribution != entry.distribution:
        return f"it comes from {info.distribution or info.target}, the policy wants distribution {entry.distribution}"
    if entry.version is not None and not _version_fits(info.version, entry.version):
        return f"its version is {info.version or 'unknown'}, the policy wants {entry.version}"
    if entry.record_sha256 is not None:
        return _digest_mismatch(info, entry.record_sha256)
    return None


def _version_fits(version: str | None, wanted: str) -> bool:
    if version is None:
        return False
    prefix = wanted.removesuffix("*")
    return version.startswith(prefix) if prefix != wanted else version == wanted


def _digest_mismatch(info: AgentInfo, wanted: str) -> str | None:
    try:
        code = code_of(info)
    except (OSError, ValueError) as error:
        return str(error)
    if code.digest != wanted:
        return f"its code has the digest {code.digest}, the policy wants {wanted}"
    PINNED_CODE.add(code)
    return None


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
    for name in sorted({step.model_name for step in config.ensemble_scheduling.step}):
        if rule.members is not None and not any(fnmatchcase(name, pattern) for pattern in rule.members):
            yield _not_allowed("member", name, rule.members)


def command_objection(command: str | None, rule: Rule) -> str | None:
    """Why ``rule`` does not let the program ``command`` have the model; None if it does.

    A program is named by its file's name, or by the path that it is started by. Backends and platforms say nothing of
    it. ``command`` None is one that is not known yet.
    """
    if rule.commands is None:
        limited = (rule.backends, rule.platforms) != (None, None)
        return _UNNAMED if limited else None
    if command is None:
        return None if rule.commands else _not_allowed("command", "any", ())
    names = (command, os.path.basename(command))
    return None if set(names) & set(rule.commands) else _not_allowed("command", command, rule.commands)


def _contradicts(config: ModelConfig, backend: str) -> bool:
    named = config.platform
    return bool(named and backend) and backend not in (named, BACKEND_OF_PLATFORM.get(named))


def _not_allowed(what: str, name: str, allowed: Sequence[str]) -> str:
    return f"the policy does not allow {what} '{name}'; allowed: {', '.join(allowed) or 'none'}"
